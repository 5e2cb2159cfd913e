"""ATen's views, joins and copies: where elements go, not what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import ConcatOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.size import Dim, Size, product
from irc.dialects.types import TensorType, is_complex
from irc.frontends.torch.lowering import Lowering, Operand, dim_of, enter, lowers, number
from irc.ops.derivatives import is_smooth

# fmt: off
RESHAPES = (
    "view.default", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
    "view_as", "reshape_as", "_reshape_alias", "view_copy.default",
)
EXPANDS = ("expand", "expand_as", "broadcast_to", "expand_copy")
COPIES = (
    "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "lift", "lift_fresh",
    "detach_copy", "alias_copy", "positive",
)
CASTS = ("to", "_to_copy", "type_as")
# fmt: on


def _reshape(t: Lowering, self: SSAValue, *shape: Any, **options: Any) -> SSAValue:
    return t.b.reshape(self, t.shape)


def _expand(t: Lowering, self: SSAValue, *shape: Any, **options: Any) -> SSAValue:
    return t.b.broadcast(self, t.shape)


def _copy(t: Lowering, self: SSAValue, **options: Any) -> SSAValue:
    return self


def _cast(t: Lowering, self: Operand, *options: Any, **more: Any) -> SSAValue:
    if not isinstance(self, SSAValue):
        return t.value(self, t.dtype)  # vmap casts a number beside numbers of its examples
    if is_complex(tensor(self).dtype) and not is_complex(t.dtype):
        t.decline()  # torch warns of the part that is dropped
    return t.b.cast(self, t.dtype)


enter(dict.fromkeys(RESHAPES, _reshape), numbers="any")
enter(dict.fromkeys(EXPANDS, _expand), numbers="any")
enter(dict.fromkeys(COPIES, _copy), numbers="any")


def may_be_trained(value: SSAValue) -> bool:
    """Return whether a value depends on a real argument: a weight, or an input."""
    todo, seen = [value], {value}
    while todo:
        here = todo.pop()
        if not isinstance(here.owner, Operation):
            if is_smooth(here):
                return True
            continue
        fresh = [operand for operand in here.owner.operands if operand not in seen]
        todo += fresh
        seen.update(fresh)
    return False


def _detach(t: Lowering, self: SSAValue) -> SSAValue:
    """Keep what a step of training is to see: whose operand is no number of a weight or input."""
    if not is_smooth(self) or not may_be_trained(self):
        return self
    return t.b.pointwise("detach", self)


@lowers("irc_capture::written", numbers="any")
def _written(t: Lowering, before: SSAValue, value: SSAValue) -> SSAValue:
    """Give a value with the gradient of another, where that has one."""
    if not is_smooth(before) or not may_be_trained(before):
        return _detach(t, value)
    return t.b.pointwise("written", before, value)


enter({"irc_capture::detach": _detach}, numbers="any")
enter(dict.fromkeys(CASTS, _cast), numbers="any")


def permuted(t: Lowering, x: SSAValue, perm: Sequence[int]) -> SSAValue:
    """Transpose, unless the order stays."""
    if list(perm) == list(range(len(perm))):
        return x
    return t.b.op(TransposeOp, [x], perm=tuple(perm))


def sliced(t: Lowering, x: SSAValue, dim: int, start: Dim, stop: Dim, step: int = 1) -> SSAValue:
    """Slice one dim; a dim of named size only from its front or as a whole."""
    shape = tensor(x).shape
    size = shape[dim]
    if start == 0 and stop == size and step == 1:
        return x
    if isinstance(start, Size) or (stop != size and isinstance(stop, Size)):
        t.decline()
    if isinstance(size, Size) and (stop != size or step != 1):
        t.decline()
    last = -1 if stop == size else number(stop)
    starts, stops, steps = [0] * len(shape), [-1] * len(shape), [1] * len(shape)
    starts[dim], stops[dim], steps[dim] = number(start), last, step
    return t.b.op(SliceOp, [x], starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def joined(t: Lowering, parts: Sequence[SSAValue], dim: int) -> SSAValue:
    """Concatenate, unless there is one part."""
    return parts[0] if len(parts) == 1 else t.b.op(ConcatOp, list(parts), dim=dim)


def iota(t: Lowering, size: Dim, dtype: str = "i64") -> SSAValue:
    """Return 0, 1, ... size - 1."""
    return t.b.op(IotaOp, [], result=TensorType.of((size,), dtype), dim=0)


@lowers("permute", "permute_copy", numbers="any")
def permute(t: Lowering, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Reorder dims."""
    return permuted(t, self, [dim_of(dim, len(dims)) for dim in dims])


@lowers("transpose", "swapaxes", "swapdims", "transpose_copy", numbers="any")
def transpose(t: Lowering, self: SSAValue, dim0: int, dim1: int) -> SSAValue:
    """Swap two dims."""
    perm = list(range(tensor(self).ndim))
    if perm:
        a, b = dim_of(dim0, len(perm)), dim_of(dim1, len(perm))
        perm[a], perm[b] = perm[b], perm[a]
    return permuted(t, self, perm)


@lowers("t", "t_copy", "numpy_T", "mT", numbers="any")
def matrix_transpose(t: Lowering, self: SSAValue) -> SSAValue:
    """Swap the last two dims; a vector stays."""
    return self if tensor(self).ndim < 2 else transpose(t, self, -2, -1)


@lowers("movedim", "moveaxis", numbers="any")
def movedim(t: Lowering, self: SSAValue, source: Any, destination: Any) -> SSAValue:
    """Move dims, the others keep their order."""
    ndim = tensor(self).ndim
    sources = [source] if isinstance(source, int) else source
    targets = [destination] if isinstance(destination, int) else destination
    moved = {dim_of(to, ndim): dim_of(dim, ndim) for dim, to in zip(sources, targets, strict=True)}
    rest = iter(dim for dim in range(ndim) if dim not in moved.values())
    return permuted(t, self, [moved[i] if i in moved else next(rest) for i in range(ndim)])


@lowers("slice", "slice_copy", numbers="any")
def slice_(
    t: Lowering,
    self: SSAValue,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> SSAValue:
    """Slice one dim as Python does."""
    dim = dim_of(dim, tensor(self).ndim)
    size = tensor(self).shape[dim]
    first, last = bound(start, size, 0), bound(end, size, size)
    if isinstance(first, int) and isinstance(last, int):
        last = max(first, last)
    return sliced(t, self, dim, first, last, step)


def bound(index: Dim | None, size: Dim, default: Dim) -> Dim:
    """Return a slice bound counted from the front and inside the dim."""
    if index is None:
        return default
    if isinstance(index, Size):
        return index
    if isinstance(size, Size):
        return size if index > 1 << 40 else index if index >= 0 else size + index
    return max(0, min(size, index + size if index < 0 else index))


@lowers("select", "select_copy", numbers="any")
def select(t: Lowering, self: SSAValue, dim: int, index: Dim) -> SSAValue:
    """Take one element of a dim, and drop the dim."""
    dim = dim_of(dim, tensor(self).ndim)
    size = tensor(self).shape[dim]
    if isinstance(index, Size) or (index < 0 and isinstance(size, Size)):
        t.decline()
    start = index + number(size) if index < 0 else index
    if isinstance(size, Size):
        # The slice op takes named dims from the front only; an index takes any element.
        return t.b.op(TakeOp, [self, t.b.scalar(start, "i64")], dim=dim)
    return t.b.reshape(sliced(t, self, dim, start, start + 1), t.shape)


@lowers("narrow", numbers="any")
def narrow(t: Lowering, self: SSAValue, dim: int, start: Dim, length: Dim) -> SSAValue:
    """Slice by start and length."""
    dim = dim_of(dim, tensor(self).ndim)
    first = bound(start, tensor(self).shape[dim], 0)
    return sliced(t, self, dim, first, first + length)


@lowers(
    "split",
    "split_with_sizes",
    "chunk",
    "tensor_split",
    "unsafe_chunk",
    "unsafe_split",
    "split_copy",
    "split_with_sizes_copy",
    numbers="any",
)
def split(
    t: Lowering, self: SSAValue, sizes: Any = None, dim: int = 0, **more: Any
) -> list[SSAValue | None]:
    """Cut a dim into the stated parts."""
    dim = dim_of(dim, tensor(self).ndim)
    parts: list[SSAValue | None] = []
    start: Dim = 0
    for kind, read in zip(t.results, t.read, strict=True):
        stop = start + kind.shape[dim]
        parts.append(sliced(t, self, dim, start, stop) if read else None)
        start = stop
    return parts


@lowers("unbind", "unbind_copy", numbers="any")
def unbind(t: Lowering, self: SSAValue, dim: int = 0) -> list[SSAValue | None]:
    """Cut a dim into its elements."""
    dim = dim_of(dim, tensor(self).ndim)
    return [
        t.b.reshape(sliced(t, self, dim, i, i + 1), kind.shape) if read else None
        for i, (kind, read) in enumerate(zip(t.results, t.read, strict=True))
    ]


@lowers("cat", "concat", "concatenate", numbers="complex")
def cat(t: Lowering, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    """Join along a dim; empty vectors of one dim are left out, as torch does."""
    ndim = len(t.shape)
    parts = [t.b.cast(x, t.dtype) for x in tensors if tensor(x).shape != (0,) or ndim == 1]
    return joined(t, parts, dim_of(dim, ndim))


@lowers("stack", numbers="complex")
def stack(t: Lowering, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    """Join along a new dim."""
    dim = dim_of(dim, len(t.shape))
    one = (*t.shape[:dim], 1, *t.shape[dim + 1 :])
    return joined(t, [t.b.reshape(t.b.cast(x, t.dtype), one) for x in tensors], dim)


@lowers("repeat", "tile", numbers="complex")
def repeat(t: Lowering, self: SSAValue, repeats: Sequence[Dim]) -> SSAValue:
    """Lay copies side by side: broadcast over new dims, then merge them."""
    shape, repeats = tensor(self).shape, list(repeats)
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    shape = (*(1,) * (len(repeats) - len(shape)), *shape)
    ones = t.b.reshape(self, [d for size in shape for d in (1, size)])
    wide = t.b.broadcast(
        ones, [d for r, size in zip(repeats, shape, strict=True) for d in (r, size)]
    )
    return t.b.reshape(wide, t.shape)


@lowers("repeat_interleave.self_int", numbers="complex")
def repeat_interleave(
    t: Lowering, self: SSAValue, repeats: Dim, dim: int | None = None, **more: Any
) -> SSAValue:
    """Repeat each element of a dim."""
    shape = tensor(self).shape
    if dim is None:
        self = t.b.reshape(self, (product(shape),))
        shape, dim = tensor(self).shape, 0
    dim = dim_of(dim, len(shape))
    ones = t.b.reshape(self, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    return t.b.reshape(
        t.b.broadcast(ones, (*shape[: dim + 1], repeats, *shape[dim + 1 :])), t.shape
    )


@lowers("flip", numbers="complex")
def flip(t: Lowering, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Reverse dims: take element ``size - 1 - i``."""
    for dim in sorted({dim_of(d, len(t.shape)) for d in dims}):
        size = t.shape[dim]
        last = t.b.pointwise("sub", t.value(size, "i64"), t.value(1, "i64"))
        self = t.b.op(TakeOp, [self, t.b.pointwise("sub", last, iota(t, size))], dim=dim)
    return self


def _triangle(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, diagonal: int = 0) -> SSAValue:
        rows, columns = t.shape[-2:]
        i = t.b.reshape(iota(t, rows), (rows, 1))
        offset = t.b.pointwise("add", i, t.value(diagonal, "i64"))
        kept = t.b.pointwise(fn, iota(t, columns), offset)
        return t.b.pointwise("where", kept, self, t.value(0, t.dtype))

    return row


enter({"tril": _triangle("le"), "triu": _triangle("ge")}, numbers="complex")


@lowers("copy", numbers="complex")
def copy(t: Lowering, self: SSAValue, src: Operand, non_blocking: bool = False) -> SSAValue:
    """Give the source the shape and dtype of the target."""
    if not isinstance(src, SSAValue):
        return t.full(src)
    return t.b.broadcast(_cast(t, src), t.shape)


@lowers("fill", numbers="complex")
def fill(t: Lowering, self: SSAValue, value: Operand) -> SSAValue:
    """Replace all elements; of a complex number a real tensor takes the real part, as in eager."""
    return copy(t, self, value)


@lowers("diff", numbers="complex")
def diff(
    t: Lowering,
    self: SSAValue,
    n: int = 1,
    dim: int = -1,
    prepend: SSAValue | None = None,
    append: SSAValue | None = None,
) -> SSAValue:
    """Return the difference of neighbours."""
    dim = dim_of(dim, len(t.shape))
    ends = [end for end in (prepend, self, append) if end is not None]
    whole = joined(t, [t.b.cast(end, tensor(self).dtype) for end in ends], dim)
    size = tensor(whole).shape[dim]
    if n != 1 or isinstance(size, Size):
        t.decline()
    after, before = sliced(t, whole, dim, 1, size), sliced(t, whole, dim, 0, size - 1)
    return t.b.pointwise("ne" if t.dtype == "i1" else "sub", after, before)
