"""What a caller needs to know of a kernel: the first line of its text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from irc.dialects.size import Dim, Size, symbol, terms_of, value_of
from irc.errors import InternalError
from irc.plan.native import parts_of


@dataclass(frozen=True)
class KernelInfo:
    """What a caller needs to know of a kernel.

    Attributes:
        name: the function.
        num_args: how many buffers it takes.
        scratch_bytes: scratch memory for each thread.
        parallel: whether several threads pay.
        template: which emitter wrote it.
        weight: the argument that threads read from end to end, each its share, if there is one;
            the kernel before asks for the beginning of each share.
        weight_bytes: its size.
        pieces: into how many parts a large call divides each thread's share
            (:mod:`irc.backends.cpu.turns`).
        checks: whether it says that an index lay outside, in a word before its scratch memory.
        sizes: the names of the sizes that it takes when it runs.
        work, least_work: where it takes sizes, several threads pay from this much work on.
        extents: sizes of its loops that have names; each is at least 1 in a call.
    """

    name: str
    num_args: int
    scratch_bytes: Dim
    parallel: bool
    template: str
    weight: int = -1
    weight_bytes: int = 0
    checks: bool = False
    pieces: int = 1
    sizes: tuple[str, ...] = ()
    work: Dim = 0
    least_work: int = 0
    extents: tuple[Dim, ...] = ()

    def bound(self, values: Sequence[int]) -> KernelInfo:
        """Return what holds for a call with these sizes, in the order of :attr:`sizes`.

        Raises:
            InternalError: where a loop would be empty, or the sizes are others than it takes.
        """
        if not self.sizes and not values:
            return self
        if len(values) != len(self.sizes):
            raise InternalError(f"kernel {self.name} takes {self.sizes}, not {tuple(values)}")
        sizes = dict(zip(self.sizes, values, strict=True))
        for extent in self.extents:
            if value_of(extent, sizes) < 1:
                raise InternalError(f"kernel {self.name}: no loop over {extent} for {sizes}")
        work = value_of(self.work, sizes)
        parts = parts_of(work, self.least_work, self.pieces) if self.parallel else 0
        return replace(
            self,
            scratch_bytes=value_of(self.scratch_bytes, sizes),
            parallel=parts > 0,
            pieces=max(parts, 1),
            work=work,
            extents=(),
        )


def to_text(info: KernelInfo) -> str:
    """Return a description as JSON; a size with names is a list of its terms.

    >>> to_text(KernelInfo("k", 2, symbol("S") * 4, False, "rows", sizes=("S",)))[:59]
    '{"name": "k", "num_args": 2, "scratch_bytes": [[4, "S"]], "'
    """
    plain = {name: getattr(info, name) for name in KernelInfo.__dataclass_fields__}
    short = {name: value for name, value in plain.items() if info.sizes or name not in _OF_SIZES}
    return json.dumps(short, default=_terms)


_OF_SIZES = ("sizes", "work", "least_work", "extents")


def _terms(size: Any) -> list[list[int | str]]:
    if not isinstance(size, Size):
        raise TypeError(f"no text for {size!r}")
    return [
        [coefficient, *(name for name, power in monomial for _ in range(power))]
        for monomial, coefficient in terms_of(size)
    ]


def from_text(text: str) -> KernelInfo:
    """Read a description back.

    Raises:
        ValueError, TypeError: where it is not one.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError("a description is a JSON object")
    fields = cast("dict[str, Any]", fields)
    for name in ("scratch_bytes", "work"):
        if name in fields:
            fields[name] = _dim(fields[name])
    fields["extents"] = tuple(_dim(item) for item in fields.get("extents", ()))
    fields["sizes"] = tuple(fields.get("sizes", ()))
    return KernelInfo(**fields)


def _dim(value: Any) -> Dim:
    if isinstance(value, int):
        return value
    total: Dim = 0
    for coefficient, *names in value:
        term: Dim = int(coefficient)
        for name in names:
            term = term * symbol(name)
        total = total + term
    return total
