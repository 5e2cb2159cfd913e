"""Data of a kernel that holds sizes, as JSON: how a launch finds its numbers without an emitter."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

from irc.dialects.size import Dim
from irc.kernels.gpu.run_time import RunTimeSize, RunTimeSizes


def encoded(data: Any) -> Any:
    """Return JSON of data that holds sizes: a polynomial is ``{"+": [[factor, ..], ..]}``.

    A factor is a number, the position of a size among the kernel's, or ``{"/": [dim, by]}``.

    >>> from irc.dialects.size import symbol
    >>> S = RunTimeSizes(("S",))(symbol("S"))
    >>> encoded([-(-S // 64) * 3]), evaluated(encoded([-(-S // 64) * 3]), [65])
    ([{'+': [[3, {'/': [{'+': [[1, {'N': 0}], [63]]}, 64]}]]}], [6])
    """
    match data:
        case RunTimeSize():
            return _encoded(data.dim, data.sizes)
        case dict():
            return {key: encoded(value) for key, value in cast("dict[str, Any]", data).items()}
        case list() | tuple():
            return [encoded(value) for value in cast("Sequence[Any]", data)]
        case _:
            return data


def _encoded(dim: Dim, sizes: RunTimeSizes) -> Any:
    if isinstance(dim, int):
        return dim
    quotients = {name: key for key, name in sizes.quotients.items()}

    def factor(name: str) -> Any:
        if name not in quotients:
            return {"N": sizes.symbols.index(name)}
        top, by, up = quotients[name]
        return {"/": [_encoded(top + (by + -1 if up else 0), sizes), _encoded(by, sizes)]}

    return {
        "+": [
            [coefficient, *(factor(name) for name, power in monomial for _ in range(power))]
            for monomial, coefficient in dim.terms
        ]
    }


def evaluated(data: Any, sizes: Sequence[int]) -> Any:
    """Return data that :func:`encoded` gave, with numbers for its sizes."""
    match data:
        case {"N": int() as position, **rest} if not rest:
            return sizes[position]
        case {"/": [dim, by], **rest} if not rest:
            return evaluated(dim, sizes) // evaluated(by, sizes)
        case {"+": [*terms], **rest} if not rest:
            return sum(prod(evaluated(factor, sizes) for factor in term) for term in terms)
        case dict():
            pairs = cast("dict[str, Any]", data).items()
            return {key: evaluated(value, sizes) for key, value in pairs}
        case list():
            return [evaluated(value, sizes) for value in cast("list[Any]", data)]
        case _:
            return data
