"""Writes to memory that is several elements of a tensor, or that the same call reads elsewhere.

Eager takes few of them (``fill_`` of an expanded tensor, a copy between columns) and refuses the
rest (``a.t().add_(a)``). A functional graph knows neither: its numbers are those of a copy. So
torch itself runs what holds such a write.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from irc.frontends.torch.real_writes import IN_PLACE
from irc.frontends.torch.result_memory import hint_of
from irc.frontends.torch.tensor_memory import memory_of


def overlapping_write(nodes: Iterable[Node]) -> Node | None:
    """Return the first call that writes to memory which is more than one element of its operands.

    Args:
        nodes: of a graph of ``torch.export`` or of Dynamo, as traced: with its writes.
    """
    return next((node for node in nodes if _overlaps(node)), None)


APART = frozenset(
    {
        "cat", "concat", "concatenate", "stack", "gather", "scatter", "scatter_add",
        "scatter_reduce", "index", "index_put", "index_copy", "index_add", "index_reduce",
        "index_select", "take", "put", "masked_select", "masked_scatter", "bmm", "baddbmm",
    }
)  # fmt: skip
"""Ops that may not write where they read at all: elements of theirs are read for several."""


SETTING = ("setitem", "__setitem__")


def _overlaps(node: Node) -> bool:
    written, read = _operands(node)
    if any(map(is_overlapping, written)):
        return True
    apart = name_of(node).partition(".")[0].rstrip("_") in APART or (
        name_of(node) in SETTING and not _names_a_view(node.args[1])
    )
    return any(meet_elsewhere(one, other, apart=apart) for one, other in product(written, read))


def is_overlapping(value: object) -> bool:
    """True for a tensor of which several elements are one place, as eager's check has it."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    traced: Any = value  # symbols are among its sizes, whatever torch's annotations say
    return any(
        isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
        for size, step in zip(traced.shape, traced.stride(), strict=True)
    )


def meet_elsewhere(written: object, read: object, *, apart: bool = False) -> bool:
    """True for two tensors with an element in common that lies elsewhere in one than in the other.

    It is false where all elements are read before they are written, as columns that move to the
    front (``x[:, :-1] = x[:, 1:]``): a copy has the same numbers, and eager takes it.

    Args:
        written: a tensor; for all else it is false.
        read: likewise.
        apart: count elements that lie alike in both, too.

    >>> a = torch.zeros(4, 4)
    >>> [meet_elsewhere(a, x) for x in (a, a.t(), a[0])]
    [False, True, True]
    >>> [meet_elsewhere(a[:, 1:3], x) for x in (a[:, 3:], a[:, 2:], a[:, :2], a.t()[1:3])]
    [False, False, True, True]
    """
    if not isinstance(written, torch.Tensor) or not isinstance(read, torch.Tensor):
        return False
    if (memory := memory_of(written)) is None or memory != memory_of(read):
        return False
    places = [_place(written), _place(read)]
    if None in places or (not apart and (places[0] == places[1] or _is_ahead(*places))):
        return False
    low, high = Counter[int](), Counter[int]()
    starts: list[int] = []
    for (shape, strides, start), width, bounds, sign in zip(
        places, (written.itemsize, read.itemsize), (high, low), (1, -1), strict=True
    ):
        if 0 in shape:
            return False
        for size, stride in zip(shape, strides, strict=True):
            bounds[stride * width] += sign * (size - 1)
        bounds[1] += sign * (width - 1)  # an element is some bytes
        starts.append(start * width)
    steps = sorted({*low, *high} - {0}, reverse=True)
    return _is_sum(starts[1] - starts[0], [(step, low[step], high[step]) for step in steps])


def _is_ahead(written: Any, read: Any) -> bool:
    """True where a place is read that is written later; eager refuses it between places of rows."""
    shape, strides, start = written
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return read[:2] == (shape, strides) and read[2] > start and prod(shape) < span


def _place(value: torch.Tensor) -> Any:
    """Return sizes, strides and start of a tensor; None where they are not known.

    Of sizes that are open, the numbers decide with which the graph was traced.
    """
    shape, strides = (tuple(map(hint_of, each)) for each in (value.shape, value.stride()))
    start = hint_of(value.storage_offset())
    return None if None in (*shape, *strides, start) else (shape, strides, start)


def _is_sum(total: int, terms: Sequence[tuple[int, int, int]]) -> bool:
    """True where some ``k`` have ``total == sum(k * step)``, each from its low to its high number.

    Args:
        total: what is to be reached.
        terms: (step, low, high), the largest step first: of memory that is cut up row by row, one
            or two ``k`` of each step come into question.
    """
    if not terms:
        return total == 0
    (step, low, high), rest = terms[0], terms[1:]
    least, most = (sum(each[0] * each[end] for each in rest) for end in (1, 2))
    first, last = max(low, -((most - total) // step)), min(high, (total - least) // step)
    return any(_is_sum(total - k * step, rest) for k in range(first, last + 1))


def writes(node: Node) -> bool:
    """True for a call in a graph of Dynamo that writes to what it is given."""
    name = name_of(node)
    if getattr(node.target, "__module__", "") == "_operator":
        return name == "setitem" or (name.startswith("i") and hasattr(operator, name[1:]))
    is_in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return node.op.startswith("call") and (
        is_in_place or "out" in node.kwargs or node.kwargs.get("inplace") is True
    )


def name_of(node: Node) -> str:
    """Return what a node of Dynamo calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def written_by(node: Node) -> list[Any]:
    """Return what a call writes to, as it was traced: fake tensors, views among them."""
    return _operands(node)[0]


def _operands(node: Node) -> tuple[list[Any], list[Any]]:
    """Return what a call writes to, and what else it takes: none where it does not write."""
    if isinstance(node.target, OpOverload):
        schema: Any = node.target._schema  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        if not schema.is_mutable:
            return [], []
        told = [each.alias_info for each in schema.arguments]
        is_written = [each is not None and each.is_write for each in told]
        named = {each.name: i for i, each in enumerate(schema.arguments)}
        operands = [*enumerate(node.args), *((named[name], x) for name, x in node.kwargs.items())]
        return (
            [x for i, operand in operands if is_written[i] for x in _values(operand)],
            [x for i, operand in operands if not is_written[i] for x in _values(operand)],
        )
    if not writes(node):
        return [], []
    if "out" in node.kwargs:
        rest = {name: x for name, x in node.kwargs.items() if name != "out"}
        return [*_values(node.kwargs["out"])], [*_values((node.args, rest))]
    if name_of(node) in SETTING:
        return [*_part(*node.args[:2])], [*_values(node.args[1:])]
    return [*_values(node.args[:1])], [*_values((node.args[1:], node.kwargs))]


def _part(operand: Any, index: Any) -> Iterator[Any]:
    """Yield the view of a tensor that an index names, or all of it where that is no view."""
    (value,) = _values(operand)
    if not _names_a_view(index) or not isinstance(value, torch.Tensor):
        yield value
        return
    with torch.no_grad():
        yield value[index]


def _names_a_view(index: Any) -> bool:
    parts: list[Any] = [*index] if isinstance(index, tuple) else [index]
    slices: list[slice[Any, Any, Any]] = [part for part in parts if isinstance(part, slice)]
    numbers = [x for part in slices for x in (part.start, part.stop, part.step)]
    return all(part is None or type(part) in (int, slice, type(...)) for part in parts) and all(
        number is None or type(number) is int for number in numbers
    )


def _values(operand: Any) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(operand):
        if isinstance(leaf, Node):
            yield from pytree.tree_leaves(leaf.meta.get("val", leaf.meta.get("example_value")))
