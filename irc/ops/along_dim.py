"""Rules of library ops that work along one dim, or write at several indices: the others split."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2, prod

from irc.ops.custom import Call, Declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule
from irc.ops.rules_naming import letters

ALONG: Mapping[str, tuple[int, int]] = {
    "aten::kthvalue": (2, -1),
    "aten::median.dim": (1, -1),
    "aten::nanmedian.dim": (1, -1),
    "aten::mode": (1, -1),
    "aten::cummax": (1, -1),
    "aten::cummin": (1, -1),
    "aten::logcumsumexp": (1, -1),
}
"""Where each op says its dim, and its default: the position of the argument ``dim``."""


def _along(place: int, default: int) -> Callable[..., Rule]:
    def rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
        positional, keywords = json.loads(attrs["arguments"])
        stated_dim: int = (
            positional[place] if len(positional) > place else keywords.get("dim", default)
        )
        shape = operands[0][0]
        dim = stated_dim % len(shape) if shape else 0
        names = letters(shape)
        kept = [name for i, name in enumerate(names) if i != dim]
        result_shape = results[0][0]
        if len(result_shape) == len(shape):
            middle = names[dim : dim + 1] if result_shape == shape else ((),) * bool(shape)
            kept[dim:dim] = middle
        return Rule((names,), (tuple(kept),) * len(results), whole=tuple(*names[dim : dim + 1]))

    return rule


def _index_put(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """The dims that are not indexed: of the table, and of values that have them whole.

    Indices that stand apart put their dims in front of the others; then nothing is split.
    """
    table, (*indices, values) = operands[0][0], [shape for shape, _ in operands[1:]]
    places = [i for i, each in enumerate(json.loads(attrs["arguments"])[0][1]) if each is not None]
    first, last = places[0], places[-1] + 1
    if places != list(range(first, last)):
        terms = tuple(((),) * len(shape) for shape, _ in operands)
        return Rule(terms, terms[:1], linear=((0, len(operands) - 1),))
    whole = range(first, last)
    names = tuple(() if i in whole else name for i, name in enumerate(letters(table)))
    index_ndim = max(map(len, indices))
    written = [*zip(names, table, strict=True)]
    written[first:last] = [((), 0)] * index_ndim
    own = tuple(
        name if size == wanted else ()
        for (name, wanted), size in zip(written[len(written) - len(values) :], values, strict=True)
    )
    alone = [((),) * len(shape) for shape in indices]
    together = ((0, len(operands) - 1),)
    return Rule((names, *alone, own), (names,), linear=together)


def _sorted(call: Call) -> int:
    """Of each element its place among those of its row, in as many steps as a sort takes."""
    elements = prod(call.sizes.values())
    return elements * ceil(log2(max(elements, 2)))


def _elements(call: Call) -> int:
    return prod(call.sizes.values())


def _as_operands(call: Call) -> int:
    """0, nothing special: each operand and result once."""
    return 0


DECLARATIONS: tuple[Declaration, ...] = (
    *(
        Declaration(target, _along(place, default), _sorted, _as_operands)
        for target, (place, default) in ALONG.items()
    ),
    Declaration("aten::index_put", _index_put, _elements, _as_operands),
)
