"""Derivatives of the ops that move elements: each sends the gradient back where it came from."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.attributes import to_python
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import GatherOp, IotaOp, PadOp, ScatterOp, SliceOp, TransposeOp, tensor
from irc.dialects.size import product
from irc.dialects.types import Shape, TensorType
from irc.ops.derivative import Adjoint, PhaseBuilder, known


def reshape(at: Adjoint, operand: int) -> SSAValue:
    """Reshape back."""
    return at.b.reshape(at.g, at.kind(0).shape)


def transpose(at: Adjoint, operand: int) -> SSAValue:
    """Apply the inverse permutation."""
    perm: tuple[int, ...] = at.attrs["perm"]
    inverse = tuple(perm.index(dim) for dim in range(len(perm)))
    return at.b.op(TransposeOp, [at.g], perm=inverse)


def broadcast(at: Adjoint, operand: int) -> SSAValue:
    """Add up what was stretched."""
    return at.reduced_to(at.g, at.kind(0).shape)


def padded(b: FlowBuilder, x: SSAValue, low: tuple[int, ...], high: tuple[int, ...]) -> SSAValue:
    """Add zeros around a value; negative amounts crop."""
    if not any((*low, *high)):
        return x
    return b.op(PadOp, [x], low=low, high=high, value=0.0)


def slice_(at: Adjoint, operand: int) -> SSAValue:
    """Put zeros where nothing was taken: between the elements of a step, and around."""
    g, shape = at.g, at.kind(0).shape
    starts: tuple[int, ...] = at.attrs["starts"]
    steps: tuple[int, ...] = at.attrs["steps"]
    for dim, step in enumerate(steps):
        if step != 1:
            g = _spread(at.b, g, dim, step)
    high = tuple(
        known(size - start - length)
        for size, start, length in zip(shape, starts, tensor(g).shape, strict=True)
    )
    return padded(at.b, g, starts, high)


def _spread(b: PhaseBuilder, g: SSAValue, dim: int, step: int) -> SSAValue:
    """Put ``step - 1`` zeros after each element along a dim."""
    shape = tensor(g).shape
    columns = b.reshape(g, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    zero = (0,) * (len(shape) + 1)
    columns = padded(b, columns, zero, (*zero[: dim + 1], step - 1, *zero[dim + 2 :]))
    return b.reshape(columns, (*shape[:dim], shape[dim] * step, *shape[dim + 1 :]))


def cut(b: PhaseBuilder, x: SSAValue, dim: int, start: int, stop: int) -> SSAValue:
    """Return ``x[start:stop]`` along a dim, the others whole."""
    shape = tensor(x).shape
    if start == 0 and stop == shape[dim]:
        return x
    starts = tuple(start if i == dim else 0 for i in range(len(shape)))
    stops = tuple(
        stop if i == dim else size if isinstance(size, int) else -1 for i, size in enumerate(shape)
    )
    return b.op(SliceOp, [x], starts=starts, stops=stops, steps=(1,) * len(shape))


def concat(at: Adjoint, operand: int) -> SSAValue:
    """Cut the operand's part out."""
    dim: int = at.attrs["dim"]
    sizes = [known(tensor(value).shape[dim]) for value in at.inputs]
    start = sum(sizes[:operand])
    return cut(at.b, at.g, dim, start, start + sizes[operand])


def pad(at: Adjoint, operand: int) -> SSAValue:
    """Crop what was added, add zeros where it cropped."""
    low, high = at.attrs["low"], at.attrs["high"]
    if min((*low, *high), default=0) < 0:
        return padded(at.b, at.g, tuple(-n for n in low), tuple(-n for n in high))
    g = at.g
    for dim, (start, size) in enumerate(zip(low, at.kind(0).shape, strict=True)):
        if start or high[dim]:
            g = cut(at.b, g, dim, start, start + known(size))
    return g


def added_at(
    at: Adjoint, kind: TensorType, dim: int, index: SSAValue, source: SSAValue
) -> SSAValue:
    """Add elements into zeros of a type at their index along ``dim`` (torch.scatter_add)."""
    index = at.b.cast(index, "i64")
    return at.b.op(ScatterOp, [at.zeros(kind), index, source], dim=dim, fn="sum")


def take(at: Adjoint, operand: int) -> SSAValue | None:
    """Add each looked-up row to its row of the table."""
    if operand:
        return None
    table, indices, dim = at.kind(0), at.kind(1), at.attrs["dim"]
    count = product(indices.shape)
    flat: Shape = (*table.shape[:dim], count, *table.shape[dim + 1 :])
    lead = tuple(count if i == dim else 1 for i in range(table.ndim))
    rows = at.b.reshape(at.inputs[1], lead)
    g = at.b.reshape(at.g, flat)
    padding = at.op.attributes.get("padding_idx")
    if padding is not None:
        # torch.nn.Embedding: the row that stands for padding is not trained.
        skipped = at.b.pointwise("eq", rows, at.b.scalar(to_python(padding), at.kind(1).dtype))
        g = at.b.pointwise("where", skipped, at.b.scalar(0, table.dtype), g)
    return added_at(at, table, dim, at.b.broadcast(rows, flat), g)


def gather(at: Adjoint, operand: int) -> SSAValue | None:
    """Add each element to where it was looked up.

    One look-up a row (cross-entropy) is a comparison with the counted dim instead of a scatter: it
    fuses, and any dim of it can be split.
    """
    if operand:
        return None
    x, index, dim = at.kind(0), at.kind(1), at.attrs["dim"]
    rest = all(
        n == m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if i != dim
    )
    if not (rest and index.shape[dim] == 1):
        return added_at(at, x, dim, at.inputs[1], at.g)
    line = tuple(size if i == dim else 1 for i, size in enumerate(x.shape))
    place = at.b.op(IotaOp, [], result=TensorType.of(line, index.dtype), dim=dim)
    here = at.b.pointwise("eq", at.inputs[1], place)
    return at.b.pointwise("where", here, at.g, at.b.scalar(0, x.dtype))


def scatter(at: Adjoint, operand: int) -> SSAValue | None:
    """By function: what was written, added, multiplied or compared."""
    if operand == 1:
        return None
    fn = at.attrs["fn"]
    if fn == "sum" and operand == 0:
        return at.g
    if fn in ("sum", "set"):
        if operand == 2:
            return _like_source(at, _looked_up(at, at.g))
        index = at.inputs[1]
        nothing = at.b.constant([0], tensor(index).shape, at.kind(0).dtype)
        return at.b.op(ScatterOp, [at.g, index, nothing], dim=at.attrs["dim"], fn="set")
    return _scatter_product(at, operand) if fn == "prod" else _scatter_extreme(at, operand)


def _looked_up(at: Adjoint, value: SSAValue) -> SSAValue:
    return at.b.op(GatherOp, [value, at.inputs[1]], dim=at.attrs["dim"])


def _like_source(at: Adjoint, value: SSAValue) -> SSAValue:
    """Elements of the source past the index's shape are not read."""
    sizes = zip(at.kind(2).shape, tensor(value).shape, strict=True)
    high = tuple(known(size - used) for size, used in sizes)
    return padded(at.b, value, (0,) * len(high), high)


def _read_source(at: Adjoint) -> SSAValue:
    source, index = at.inputs[2], at.kind(1)
    for dim, size in enumerate(index.shape):
        source = cut(at.b, source, dim, 0, known(size))
    return source


def _scatter_extreme(at: Adjoint, operand: int) -> SSAValue:
    """Share the gradient evenly among all that equal the result."""

    def parts() -> tuple[SSAValue, SSAValue, SSAValue]:
        x = at.kind(0)
        kept = at.b.cast(at.b.pointwise("eq", at.x, at.y), x.dtype)
        hit = at.b.pointwise("eq", _read_source(at), _looked_up(at, at.y))
        hits = at.b.cast(hit, x.dtype)
        count = at.b.op(ScatterOp, [kept, at.inputs[1], hits], dim=at.attrs["dim"], fn="sum")
        one = at.b.pointwise("maximum", count, at.b.scalar(1, x.dtype))
        return kept, hits, at.b.pointwise("div", at.g, one)

    kept, hits, each = at.shared("parts", parts)
    if operand == 0:
        return at.b.pointwise("mul", kept, each)
    return _like_source(at, at.b.pointwise("mul", hits, _looked_up(at, each)))


def _scatter_product(at: Adjoint, operand: int) -> SSAValue:
    """Multiply by the other factors; factors of 0 are left out of the product, not divided out."""
    b, dim, dtype = at.b, at.attrs["dim"], at.kind(0).dtype
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    source, index = _read_source(at), at.inputs[1]
    if operand == 0:
        ones = b.constant([1], at.kind(0).shape, dtype)
        others = b.op(ScatterOp, [ones, index, source], dim=dim, fn="prod")
        return b.pointwise("mul", at.g, others)
    is_zero = b.pointwise("eq", source, zero)
    nothing = at.zeros(at.kind(0))
    zeros = b.op(ScatterOp, [nothing, index, b.cast(is_zero, dtype)], dim=dim, fn="sum")
    single = b.pointwise("logical_and", is_zero, b.pointwise("eq", _looked_up(at, zeros), one))
    filled = b.pointwise("where", single, one, source)
    product_without = b.op(ScatterOp, [at.x, index, filled], dim=dim, fn="prod")
    at_zero = _looked_up(at, b.pointwise("mul", at.g, product_without))
    whole = _looked_up(at, b.pointwise("mul", at.g, at.y))
    elsewhere = b.pointwise("div", whole, b.pointwise("where", is_zero, one, source))
    return _like_source(at, b.pointwise("where", single, at_zero, elsewhere))
