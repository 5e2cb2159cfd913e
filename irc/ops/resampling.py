"""Resampling of images and signals by torch's own ops: what irc declares of them.

Every mode works along the grid alone, so batch and channels can be split; a split grid would need
its neighbours' rows. FLOPs are those of the separable form: per result a product and a sum for each
tap of each dim. Sums do not pass, though all modes are linear: those of whole numbers round.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from irc.ops.custom import Call, Declaration, Formula

GRID = "xyz"
TAPS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "nearest": (0, ("nearest1d", "nearest2d", "nearest3d")),
    "nearest-exact": (0, ("_nearest_exact1d", "_nearest_exact2d", "_nearest_exact3d")),
    "linear": (2, ("linear1d", "bilinear2d", "trilinear3d")),
    "cubic": (4, ("", "bicubic2d", "")),
    # Its filter is as wide as the picture shrinks: at least as many taps as without.
    "linear-antialiased": (2, ("", "_bilinear2d_aa", "")),
    "cubic-antialiased": (4, ("", "_bicubic2d_aa", "")),
}
"""By mode, the neighbours that a result reads along each dim, and the ops for 1, 2 and 3 dims."""


def _formula(taps: int, dims: int) -> Formula:
    def count(call: Call) -> int:
        results = call["b"] * call["c"] * prod(call[f"{name}o"] for name in GRID[:dims])
        # A copy costs what it moves; one operation says that it is known.
        return results * max(2 * taps * dims, 1)

    return count


def _declared(name: str, taps: int, dims: int) -> Declaration:
    dims_in = " ".join(f"{n}i" for n in GRID[:dims])
    dims_out = " ".join(f"{n}o" for n in GRID[:dims])
    rule = f"(b c {dims_in}) -> (b c {dims_out}) whole({dims_in} {dims_out})"
    stem = f"_upsample{name}" if name.startswith("_") else f"upsample_{name}"
    return Declaration(f"aten::{stem}", rule, _formula(taps, dims), _moved)


def _moved(call: Call) -> int:
    """0, nothing special: the picture and the result once."""
    return 0


DECLARATIONS: tuple[Declaration, ...] = tuple(
    _declared(name, taps, dims)
    for taps, names in TAPS.values()
    for dims, name in enumerate(names, start=1)
    if name
)
