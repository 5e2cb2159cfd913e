"""Result types of flow ops from their attributes and operand types: one function per op.

Ops whose result shape is their meaning (reshape, broadcast, constant, iota, pad of symbolic sizes,
extern) are listed in :data:`STATED`; there the result type is given and only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from irc.dialects.items import Shape, is_complex
from irc.dialects.size import Dim, Size, UnboundSizeError, decided, is_traced, product
from irc.errors import did_you_mean
from irc.ops.functions import POINTWISE

Signature: TypeAlias = tuple[Shape, str]
"""Shape and dtype name of one value."""

Attrs: TypeAlias = Mapping[str, Any]

STATED = frozenset({
    "flow.reshape", "flow.broadcast", "flow.extern",
    "flow.fusion",
})  # fmt: skip


class ShapeError(ValueError):
    """The operands do not fit the op; the text says which sizes disagree."""


def infer(name: str, attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    """Return the results' shapes and dtypes.

    Raises:
        ShapeError: where operands disagree.
        KeyError: for an op whose results are :data:`STATED`.
    """
    return INFER[name](attrs, operands)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Broadcast as numpy does: align right, size 1 stretches.

    >>> broadcast_shapes([(8, 1), (5,)])
    (8, 5)
    """
    ndim = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * ndim
    for shape in shapes:
        for position, dim in enumerate(shape, ndim - len(shape)):
            if result[position] == 1:
                result[position] = dim
            elif dim != 1 and not equal_sizes(dim, result[position]):
                shown = ", ".join(f"[{', '.join(map(str, each))}]" for each in shapes)
                raise ShapeError(f"sizes {result[position]} and {dim} do not broadcast: {shown}")
    return tuple(result)


def equal_sizes(a: Dim, b: Dim) -> bool:
    """True where two sizes are one; of a program being traced, also where its numbers say so."""
    return a == b or decided("==", a - b) is True


def equal_shapes(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True where all sizes of two shapes are :func:`equal_sizes`."""
    return len(a) == len(b) and all(map(equal_sizes, a, b))


def parse_spec(spec: str) -> tuple[list[str], str]:
    """Split an einsum spec into operand letters and result letters.

    >>> parse_spec("mk,kn->mn")
    (['mk', 'kn'], 'mn')
    """
    operands, arrow, result = spec.partition("->")
    if not arrow:
        raise ShapeError(f"contraction {spec!r} lacks '->'")
    return operands.split(","), result


def contract_sizes(spec: str, shapes: Sequence[Shape]) -> dict[str, Dim]:
    """Return the size of each letter of a contraction."""
    letters, result = parse_spec(spec)
    if len(letters) != len(shapes):
        raise ShapeError(f"contraction {spec!r} has {len(letters)} operands, got {len(shapes)}")
    sizes: dict[str, Dim] = {}
    for operand, shape in zip(letters, shapes, strict=True):
        if len(operand) != len(shape) or len(set(operand)) != len(operand):
            raise ShapeError(f"'{operand}' of contraction {spec!r} does not fit {len(shape)} dims")
        for letter, dim in zip(operand, shape, strict=True):
            if not equal_sizes(sizes.setdefault(letter, dim), dim):
                raise ShapeError(f"'{letter}' of contraction {spec!r} is {sizes[letter]} and {dim}")
    if unknown := set(result) - set(sizes):
        raise ShapeError(f"contraction {spec!r} makes up {sorted(unknown)}")
    return sizes


def window_size(
    size: Dim, kernel: int, stride: int, low: int, high: int, dilation: int, ceil: bool = False
) -> Dim:
    """Return how many windows fit along a dim (torch.nn.Conv2d, "Shape")."""
    reach = dilation * (kernel - 1) + 1
    span = size + (low + high - reach)
    # Asked of a trace, too: a program for a window that fits is not for one that does not.
    asked = isinstance(span, Size) and is_traced() and low + high < reach
    if asked and decided("<", span):
        raise ShapeError(f"a window over {reach} elements does not fit in {size}")
    if isinstance(span, Size) and stride == 1:
        return span + 1
    try:
        count = (-(-span // stride) if ceil else span // stride) + 1
    except UnboundSizeError:
        raise ShapeError(
            f"size '{size}' must be bound to a number before a window of stride {stride}"
        ) from None
    # A window that starts in the high padding does not count (torch.nn.MaxPool2d, ceil_mode).
    if ceil and (count - 1) * stride >= size + low:
        count = count - 1
    if isinstance(count, int) and count < 0:
        raise ShapeError(f"a window over {reach} elements does not fit in {size}")
    return count


def _known(fn: str) -> str:
    return did_you_mean(fn, POINTWISE) or f"irc.ops.functions has {len(POINTWISE)}, such as 'add'"


def _pointwise(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    if (row := POINTWISE.get(attrs["fn"])) is None:
        raise ShapeError(f"no pointwise function '{attrs['fn']}'; {_known(attrs['fn'])}")
    if len(operands) != row.arity:
        raise ShapeError(f"{attrs['fn']} takes {row.arity} operands, got {len(operands)}")
    values = operands[1:] if attrs["fn"] == "where" else operands
    if len({dtype for _, dtype in values}) > 1:
        raise ShapeError(f"{attrs['fn']} mixes dtypes {[dtype for _, dtype in values]}; cast first")
    if is_complex(values[0][1]) and not row.complex:
        raise ShapeError(f"{attrs['fn']} has no meaning for {values[0][1]} here: use flow.extern")
    shape = broadcast_shapes([shape for shape, _ in operands])
    return [(shape, "i1" if row.result == "bool" else values[0][1])]


def check_cast(source: str, dtype: str) -> None:
    """Refuse a cast that drops a part of a complex number: no program means one.

    Raises:
        ShapeError: with both dtypes.
    """
    if is_complex(source) and not is_complex(dtype):
        raise ShapeError(f"a cast of {source} to {dtype} would drop the imaginary part")


def _contract(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    sizes = contract_sizes(attrs["spec"], [shape for shape, _ in operands])
    _, result = parse_spec(attrs["spec"])
    return [(tuple(sizes[letter] for letter in result), operands[0][1])]


def _reduce(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (shape, dtype), dims = operands[0], attrs["dims"]
    if any(not 0 <= dim < len(shape) for dim in dims) or len(set(dims)) != len(dims):
        raise ShapeError(f"reduced dims {list(dims)} do not fit {len(shape)} dims")
    kept = [
        1 if i in dims else d for i, d in enumerate(shape) if attrs["keep_dims"] or i not in dims
    ]
    return [(tuple(kept), "i1" if attrs["fn"] in ("any", "all") else dtype)]


def _transpose(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    shape, dtype = operands[0]
    perm: Sequence[int] = attrs["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise ShapeError(f"{list(perm)} does not permute {len(shape)} dims")
    return [(tuple(shape[i] for i in perm), dtype)]


def _slice(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    shape, dtype = operands[0]
    starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ShapeError(f"slice bounds do not fit {len(shape)} dims")
    result: list[Dim] = []
    for dim, start, stop, step in zip(shape, starts, stops, steps, strict=True):
        if isinstance(dim, Size):
            # A dim of named size is taken whole (stop == -1), or from its front.
            if stop != -1 or step != 1:
                raise ShapeError(f"size '{dim}' must be bound to a number before it is sliced")
            result.append(dim - start)
            continue
        stop = dim if stop == -1 else stop
        if not (0 <= start <= stop <= dim and step >= 1):
            raise ShapeError(f"slice {start}:{stop}:{step} does not fit size {dim}")
        result.append(-(-(stop - start) // step))
    return [(tuple(result), dtype)]


def _concat(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    dim: int = attrs["dim"]
    first, dtype = operands[0]
    total: Dim = 0
    for shape, other in operands:
        if (
            other != dtype
            or len(shape) != len(first)
            or not equal_shapes(shape[:dim], first[:dim])
            or not equal_shapes(shape[dim + 1 :], first[dim + 1 :])
        ):
            raise ShapeError(f"concat of {[str(s) for s, _ in operands]} on dim {dim}")
        total = total + shape[dim]
    return [((*first[:dim], total, *first[dim + 1 :]), dtype)]


def _pad(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    shape, dtype = operands[0]
    return [
        (
            tuple(
                d + (lo + hi) for d, lo, hi in zip(shape, attrs["low"], attrs["high"], strict=True)
            ),
            dtype,
        )
    ]


def is_multiple(size: Dim, groups: int) -> bool:
    """True unless a number of channels does not come out even in groups."""
    if isinstance(size, Size):
        return groups > 0 and (not is_traced() or decided("==", size % groups) is not False)
    return groups > 0 and size % groups == 0


def check_within(indices: Shape, other: Shape, dim: int | None) -> None:
    """Check that indices are no more than the elements of a tensor, but along one dim.

    Raises:
        ShapeError: where they are, or have another number of dims.
    """
    pairs = [p for i, p in enumerate(zip(indices, other, strict=False)) if i != dim]
    if len(indices) != len(other) or any(decided("<", size - own) for own, size in pairs):
        raise ShapeError(f"indices of {[*map(str, indices)]} into {[*map(str, other)]}")


INFER: Mapping[str, Callable[[Attrs, Sequence[Signature]], list[Signature]]] = {
    "flow.pointwise": _pointwise,
    "flow.contract": _contract,
    "flow.reduce": _reduce,
    "flow.transpose": _transpose,
    "flow.slice": _slice,
    "flow.concat": _concat,
    "flow.pad": _pad,
}


def check_stated(name: str, operands: Sequence[Signature], results: Sequence[Signature]) -> None:
    """Check what can be checked of an op whose result type is stated.

    Raises:
        ShapeError: where the statement is impossible.
    """
    if name == "flow.reshape" and not equal_sizes(product(operands[0][0]), product(results[0][0])):
        raise ShapeError(
            f"reshape of {[*map(str, operands[0][0])]} to {[*map(str, results[0][0])]}"
        )
    if name == "flow.broadcast" and not equal_shapes(
        broadcast_shapes([operands[0][0], results[0][0]]), results[0][0]
    ):
        raise ShapeError(
            f"broadcast of {[*map(str, operands[0][0])]} to {[*map(str, results[0][0])]}"
        )
    if name in ("flow.reshape", "flow.broadcast") and operands[0][1] != results[0][1]:
        raise ShapeError(f"{name} changes the dtype from {operands[0][1]} to {results[0][1]}")
