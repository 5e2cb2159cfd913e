"""Kinds of processors that plans hold machine code for, the most capable first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from irc.backends.cpu.features import AVX2, AVX512, Features
from irc.errors import IrcError, did_you_mean
from irc.runtime.native.processor import TILES

TRIPLE = "x86_64-unknown-linux-gnu"
SYSTEM = "linux-x86_64"

V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni",
      "popcnt", "sse4_1", "sse4_2", "ssse3", "xsave")  # fmt: skip
"""What x86-64-v3 of the psABI has, as Linux names it."""
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Variant:
    """One kind: its name, how kernels are written for it, what the processor must have."""

    name: str
    features: Features
    requires: tuple[str, ...]


DOTS = Features(
    64, masked=True, fma=True, half=True, cpu="x86-64-v4", flags="+avx512vnni,+avx512bf16"
)
AMX = replace(DOTS, flags=f"{DOTS.flags},+amx-tile,+amx-bf16,+amx-int8")
VARIANTS: Mapping[str, Variant] = {
    v.name: v
    for v in (
        Variant("x86-64-v4-amx", AMX, (*V4, "avx512_bf16", "avx512_vnni", *TILES)),
        Variant("x86-64-v4-dots", DOTS, (*V4, "avx512_bf16", "avx512_vnni")),
        Variant("x86-64-v4", AVX512, V4),
        Variant("x86-64-v3", AVX2, V3),
    )
}
"""By name. ``x86-64-v4-dots`` adds dot products of bytes (VNNI) and of bfloat16; programs that have
neither get no code of their own for it."""
DEFAULT = tuple(VARIANTS)
NONE = "none"


def parse_variants(text: str) -> tuple[Variant, ...]:
    """Return the kinds that a user names, in the order of :data:`VARIANTS`.

    >>> [variant.name for variant in parse_variants("x86-64-v3,x86-64-v4")]
    ['x86-64-v4', 'x86-64-v3']

    Raises:
        IrcError: ``option-value``.
    """
    names: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if names == [NONE]:
        return ()
    for name in names:
        if name not in VARIANTS:
            raise IrcError(
                "option-value",
                f"irc writes no machine code for '{name}'",
                help=did_you_mean(name, [*VARIANTS, NONE]),
            )
    return tuple(v for v in VARIANTS.values() if v.name in (names or VARIANTS))
