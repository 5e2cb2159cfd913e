"""Pass ``canonicalize``: the same program with less in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.flow import (
    CUT,
    BroadcastOp,
    ConcatOp,
    ExternOp,
    FlowOp,
    FusionOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    ShapeOp,
    SliceOp,
    TransposeOp,
    carry,
    tensor,
)
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.types import TensorType, is_complex, is_float, number_in
from irc.dialects.windows import PoolOp
from irc.kernels.holds import LIBRARY_DTYPES, is_unread
from irc.ops.fold import fold_pointwise, fold_shape
from irc.ops.infer import broadcast_shapes

Rewrite: TypeAlias = FlowOp | SSAValue | None
"""A new op, a value that is there already, or nothing to do."""

EXACT_CASTS: Mapping[str, frozenset[str]] = {
    "f16": frozenset({"f32", "f64"}),
    "bf16": frozenset({"f32", "f64"}),
    "f32": frozenset({"f64"}),
    "i1": frozenset({"u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"}),
    "i8": frozenset({"i16", "i32", "i64", "f16", "f32", "f64"}),
    "u8": frozenset({"i16", "i32", "i64", "f16", "f32", "f64"}),
    "i16": frozenset({"i32", "i64", "f32", "f64"}),
    "i32": frozenset({"i64", "f64"}),
}
"""The casts that lose nothing, from a dtype to others."""


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """Fold literals, drop ops that change nothing and results that nobody reads, share equal ops.

    Captured programs are full of such ops (casts to the dtype that is there, reshapes of reshapes,
    masks made of literals); each would cost a kernel, and hide a fusion.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32>) -> !flow.tensor<[4, 8], f32> {
      %0 = flow.constant() {value = array<f64: 1.0>, loc = "m.py:2", id = "n0"}
          : () -> !flow.tensor<[], f32>
      %1 = flow.pointwise(%x, %0) {fn = "mul", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[], f32>) -> !flow.tensor<[8, 4], f32>
      %2 = flow.reshape(%1) {loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[2, 16], f32>
      %3 = flow.reshape(%2) {loc = "m.py:4", id = "n3"}
          : (!flow.tensor<[2, 16], f32>) -> !flow.tensor<[4, 8], f32>
      func.return %3 : !flow.tensor<[4, 8], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32>) -> !flow.tensor<[4, 8], f32> {
      %0 = flow.reshape(%x) {loc = "m.py:4", id = "n3"}
          : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[4, 8], f32>
      func.return %0 : !flow.tensor<[4, 8], f32>
    }
    ```

    Option: ``keep_detached`` leaves ``detach`` and ``written`` alone, which say to
    ``differentiate`` where no gradient passes; in a program that is differentiated already, or is
    not to be, they are nothing.

    It declines where a bit could change: ``x + 0`` of floats stays (it turns -0 into 0), ``x * 0``
    stays (NaN), ``exp`` of a literal stays. The arguments and results of functions never change.
    """

    name = "canonicalize"
    level: ClassVar[str] = "flow"
    also_on: ClassVar[tuple[str, ...]] = ("flow+sbp", "spmd", "task")

    keep_detached: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in op.body.block.ops:
            if isinstance(func, FuncOp) and not func.is_declaration:
                simplify(func.body.block, keep_detached=self.keep_detached)


def simplify(block: Block, *, keep_detached: bool = True) -> None:
    """Simplify a block in one walk: operands are simple before their readers are met."""
    seen: dict[Any, FlowOp] = {}
    for op in list(block.ops):
        if not isinstance(op, FlowOp) or op.dialect_name() != "flow":
            continue
        kept = keep_detached and isinstance(op, PointwiseOp) and op.fn in ("detach", "written")
        simple = op if kept else _rewritten(op)
        if simple is not None and not isinstance(simple, ExternOp | FusionOp):
            twin = seen.setdefault(_identity(simple), simple)
            if twin is not simple:
                _replace(simple, list(twin.outputs))
    for op in reversed(list(block.ops)):
        if is_unread(op):
            op.detach()
            op.erase()


def _rewritten(op: FlowOp) -> FlowOp | None:
    """Apply identities to an op until none holds; None where an older value took its place."""
    while not _is_pinned(op):
        replacement = next(
            (f for f in (i(op) for i in (nothing, *IDENTITIES.get(type(op), ()))) if f is not None),
            None,
        )
        if replacement is None:
            return op
        if isinstance(replacement, SSAValue):
            _replace(op, [replacement])
            return None
        carry(replacement, op)
        for key, attr in op.attributes.items():
            replacement.attributes.setdefault(key, attr)
        assert op.parent is not None
        op.parent.insert_op_before(replacement, op)
        _replace(op, list(replacement.outputs))
        op = replacement
    return op


def _is_pinned(op: Operation) -> bool:
    """True for a reshape that is there for the placement that the model asks for."""
    return "pin" in op.properties


def _replace(op: Operation, values: Sequence[SSAValue]) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def _identity(op: FlowOp) -> tuple[Any, ...]:
    properties = tuple(sorted(op.properties.items(), key=lambda item: item[0]))
    # What backward computes again to save memory is not to be kept from forward instead.
    again = op.attributes.get("recompute")
    return op.name, properties, tuple(op.inputs), tuple(v.type for v in op.outputs), again


# Identities. Each takes an op and returns what equals it, or None.


def nothing(op: FlowOp) -> Rewrite:
    """A value without elements is a literal: what would compute it may ask for some."""
    if len(op.outputs) != 1 or isinstance(op, ConstantOp | ExternOp):
        return None  # a library op may raise, or print: its empty result orders it
    kind: Attribute = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype in LIBRARY_DTYPES:
        return None
    return _constant(op, (0,)) if 0 in kind.shape and not _placed(op) else None


def same_type(op: ReshapeOp | BroadcastOp) -> Rewrite:
    """``reshape(x, x.shape)`` and ``broadcast(x, x.shape)`` are ``x``."""
    return op.x if op.x.type == op.outputs[0].type else None


def same_dtype(op: PointwiseOp) -> Rewrite:
    """``cast(x, x.dtype)`` is ``x``."""
    return op.a if op.fn == "cast" and op.a.type == op.outputs[0].type else None


def transpose_in_order(op: TransposeOp) -> Rewrite:
    """``transpose(x, (0, 1, ...))`` is ``x``."""
    return op.x if op.perm == tuple(range(len(op.perm))) else None


def slice_of_all(op: SliceOp) -> Rewrite:
    """``x[0:n:1]`` in all dims is ``x``; a cut that leaves all by chance stays one."""
    if CUT in op.attributes:
        return None
    untouched = not any(op.starts) and all(step == 1 for step in op.steps)
    return op.x if untouched and op.x.type == op.outputs[0].type else None


def reshape_of_reshape(op: ReshapeOp) -> Rewrite:
    """``reshape(reshape(x, s), t)`` is ``reshape(x, t)``."""
    inner = op.x.owner
    if isinstance(inner, Operation) and _is_pinned(inner):
        return None
    return _past_inner(ReshapeOp, op)


def transpose_of_transpose(op: TransposeOp) -> Rewrite:
    """``transpose(transpose(x, p), q)`` is ``transpose(x, p[q])``."""
    inner = op.x.owner
    if not isinstance(inner, TransposeOp):
        return None
    perm = tuple(inner.perm[i] for i in op.perm)
    return TransposeOp.make(inner.inputs, [op.outputs[0].type], perm=perm)


def broadcast_of_broadcast(op: BroadcastOp) -> Rewrite:
    """``broadcast(broadcast(x, s), t)`` is ``broadcast(x, t)``."""
    return _past_inner(BroadcastOp, op)


def _past_inner(kind: type[ShapeOp], op: ShapeOp) -> Rewrite:
    """Apply an op, which its result's type says in full, to what one of its kind was applied to."""
    inner = op.x.owner
    if isinstance(inner, kind) and not _placed(op):
        return kind.make(inner.inputs, [op.outputs[0].type])
    return None


def cast_of_exact_cast(op: PointwiseOp) -> Rewrite:
    """``cast(cast(x, wide), t)`` is ``cast(x, t)`` where ``wide`` holds all values of ``x``."""
    inner = op.a.owner
    if not (op.fn == "cast" and isinstance(inner, PointwiseOp) and inner.fn == "cast"):
        return None
    if tensor(inner.outputs[0]).dtype not in EXACT_CASTS.get(tensor(inner.a).dtype, ()):
        return None
    # To a half type through f32 a value is rounded once either way; through f64 likewise.
    return PointwiseOp.make(inner.inputs, [op.outputs[0].type], fn="cast")


def function_of_neutral(op: PointwiseOp) -> Rewrite:
    """``x * 1``, ``x / 1``, ``x - 0``, ``x + -0.0`` and, of integers, ``x + 0`` are ``x``."""
    if len(op.inputs) != 2:
        return None
    fn, (left, right) = op.fn, op.inputs
    if right.type and _is_neutral(fn, _literal(right), tensor(left).dtype):
        return left if left.type == op.outputs[0].type else None
    if fn in ("add", "mul") and _is_neutral(fn, _literal(left), tensor(right).dtype):
        return right if right.type == op.outputs[0].type else None
    return None


def square(op: PointwiseOp) -> Rewrite:
    """``x ** 2`` is ``x * x``, ``x ** 1`` is ``x`` (as torch computes them)."""
    if op.fn != "pow":
        return None
    base, power = op.a, _literal(op.b)
    if base.type != op.outputs[0].type:
        return None
    if power == 2:
        return PointwiseOp.make([base, base], [base.type], fn="mul")
    return base if power == 1 else None


def copy_of_value(op: PointwiseOp) -> Rewrite:
    """``copy(x)`` is ``x``: values do not change."""
    return op.a if op.fn == "copy" and op.a.type == op.outputs[0].type else None


def detached(op: PointwiseOp) -> Rewrite:
    """``detach(x)`` and ``written(y, x)`` are ``x`` where nothing is differentiated any more."""
    if op.fn == "written":
        return op.b
    return op.a if op.fn == "detach" else None


def negative_of_negative(op: PointwiseOp) -> Rewrite:
    """``-(-x)`` is ``x``."""
    inner = op.a.owner
    if op.fn == "neg" and isinstance(inner, PointwiseOp) and inner.fn == "neg":
        return inner.a
    return None


def function_of_broadcast(op: PointwiseOp) -> Rewrite:
    """``f(broadcast(x), y)`` is ``f(x, y)`` where the other operands stretch ``x`` as far."""
    if len(op.inputs) < 2 or _placed(op):
        return None
    shape, inputs = tensor(op.outputs[0]).shape, list(op.inputs)
    for index, value in enumerate(inputs):
        if isinstance(value.owner, BroadcastOp):
            source = value.owner.x
            shapes = [tensor(source if i == index else v).shape for i, v in enumerate(inputs)]
            if broadcast_shapes(shapes) == shape:
                inputs[index] = source
    if inputs == list(op.inputs):
        return None
    return PointwiseOp.make(inputs, [op.outputs[0].type], fn=op.fn)


def choice_by_literal(op: PointwiseOp) -> Rewrite:
    """``where(True, x, y)`` is ``x``, ``where(False, x, y)`` is ``y``."""
    if op.fn != "where" or (condition := _literal(op.a)) is None:
        return None
    chosen = op.b if condition else op.c
    return chosen if chosen.type == op.outputs[0].type else None


def function_of_literals(op: PointwiseOp) -> Rewrite:
    """``f(literals)`` is a literal, where ``f`` is exact (:mod:`irc.ops.fold`)."""
    if not all(isinstance(value.owner, ConstantOp) for value in op.inputs):
        return None
    shapes = [_static(value) for value in (*op.inputs, *op.outputs)]
    literals = [v.owner.value for v in op.inputs if isinstance(v.owner, ConstantOp)]
    if any(shape is None for shape in shapes) and any(len(v) > 1 for v in literals):
        return None
    operands = [
        (values, shape or (), tensor(v).dtype)
        for values, shape, v in zip(literals, shapes, op.inputs, strict=False)
    ]
    dtype = tensor(op.outputs[0]).dtype
    return _constant(op, fold_pointwise(op.fn, operands, shapes[-1] or (), dtype))


def view_of_literal(op: ShapeOp) -> Rewrite:
    """A reshape, transpose, broadcast or slice of a literal is a literal."""
    inner, old, new = op.x.owner, _static(op.x), _static(op.outputs[0])
    if not isinstance(inner, ConstantOp):
        return None
    values = inner.value
    if len(values) > 1 and (old is None or new is None):
        return None
    return _constant(op, fold_shape(op.name, op.plain, values, old or (), new or ()))


def reduction_of_nothing(op: ReduceOp) -> Rewrite:
    """A reduction over dims of size 1 is a reshape (``any`` and ``all`` only of booleans).

    A sum of floats is not: it starts at 0, and 0 + -0 is 0. A product of complex numbers starts at
    1, and 1 times an infinity has a part that is NaN.
    """
    source, result, dims = tensor(op.x), tensor(op.outputs[0]), op.dims
    if source.dtype != result.dtype or any(source.shape[d] != 1 for d in dims):
        return None
    if _placed(op) or is_complex(source.dtype):
        return None
    if op.fn == "sum" and is_float(source.dtype):
        return None
    return op.x if source == result else ReshapeOp.make(op.inputs, [result])


def sum_of_literal(op: ReduceOp) -> Rewrite:
    """The sum of n integers that are one literal is n times it: a size that was counted."""
    source, literal, dims = tensor(op.x), _literal(op.x), op.dims
    counted = [size for d in dims if isinstance(size := source.shape[d], int)]
    if op.fn != "sum" or source.dtype != "i64" or literal is None:
        return None
    if len(counted) != len(dims) or _placed(op):
        return None
    return _constant(op, (int(literal) * prod(counted),))


def take_in_order(op: TakeOp) -> Rewrite:
    """``take(x, start + iota(n))`` is a slice of ``x``."""
    places, table = op.index.owner, _static(op.table)
    start: float | int | None = 0
    if isinstance(places, PointwiseOp) and places.fn == "add":
        first, second = places.inputs
        shifted = isinstance(first.owner, IotaOp)
        start = _literal(second if shifted else first)
        places = (first if shifted else second).owner
    if not isinstance(places, IotaOp) or table is None or start is None or _placed(op):
        return None
    dim, shape = op.dim, _static(op.index)
    if shape is None or len(shape) != 1 or not 0 <= start <= start + shape[0] <= table[dim]:
        return None
    whole, count = range(len(table)), int(start) + shape[0]
    return SliceOp.make(
        [op.table],
        [op.outputs[0].type],
        starts=tuple(int(start) if i == dim else 0 for i in whole),
        stops=tuple(count if i == dim else table[i] for i in whole),
        steps=(1,) * len(table),
    )


def concat_of_one(op: ConcatOp) -> Rewrite:
    """``concat(x)`` is ``x``."""
    first, *others = op.inputs
    return None if others else first


def pad_of_nothing(op: PadOp) -> Rewrite:
    """``pad(x, 0, 0)`` is ``x``."""
    return None if any((*op.low, *op.high)) else op.x


def window_within(op: PoolOp) -> Rewrite:
    """A pool's window ends where no place of it reaches the image (or padding that counts).

    A global pool may be written as one whose window is far larger than the image.
    """
    attrs, image, places_of = op.plain, _static(op.x), _static(op.outputs[0])
    if image is None or places_of is None:
        return None
    window, count = list[int](), len(attrs["window"])
    for i, (size, places) in enumerate(zip(image[-count:], places_of[-count:], strict=True)):
        reached = size + attrs["low"][i] + (attrs["high"][i] if attrs["count_padding"] else 0)
        within = -(-reached // attrs["dilations"][i])
        window.append(min(attrs["window"][i], within) if places else attrs["window"][i])
    if tuple(window) == tuple(attrs["window"]):
        return None
    changed: dict[str, Any] = {name: attrs[name] for name in POOL_ATTRIBUTES}
    changed["window"] = tuple(window)
    return PoolOp.make(op.inputs, [op.outputs[0].type], **changed)


POOL_ATTRIBUTES = ("fn", "window", "strides", "low", "high", "dilations", "count_padding")

Identity: TypeAlias = Callable[[Any], Rewrite]
IDENTITIES: Mapping[type[FlowOp], tuple[Identity, ...]] = {
    PointwiseOp: (
        function_of_literals, copy_of_value, detached, square, function_of_neutral,
        cast_of_exact_cast, negative_of_negative, choice_by_literal, function_of_broadcast,
        same_dtype,
    ),
    ReshapeOp: (same_type, view_of_literal, reshape_of_reshape),
    TransposeOp: (transpose_in_order, view_of_literal, transpose_of_transpose),
    BroadcastOp: (same_type, view_of_literal, broadcast_of_broadcast),
    SliceOp: (slice_of_all, view_of_literal),
    ReduceOp: (reduction_of_nothing, sum_of_literal),
    TakeOp: (take_in_order,),
    ConcatOp: (concat_of_one,),
    PadOp: (pad_of_nothing,),
    PoolOp: (window_within,),
}  # fmt: skip


def _placed(op: FlowOp) -> bool:
    """True on level flow+sbp, where a shorter way may need other placements."""
    return any(tensor(v).placement is not None for v in (*op.inputs, *op.outputs))


def _literal(value: SSAValue) -> float | int | None:
    """The one number that all elements of a value are."""
    if isinstance(value.owner, ConstantOp) and len(values := value.owner.value) == 1:
        return values[0]
    return None


def _is_neutral(fn: str, literal: float | None, dtype: str) -> bool:
    if literal is None or is_complex(dtype):
        return False  # 1 times an infinity has a part that is NaN, and 0 loses signs
    if fn == "mul" or (fn == "div" and is_float(dtype)):
        return literal == 1 and dtype != "i1"
    zero = literal == 0 and dtype != "i1"
    if fn == "sub":
        return zero and not str(literal).startswith("-")
    return fn == "add" and zero and (not is_float(dtype) or str(literal).startswith("-"))


def _static(value: SSAValue) -> tuple[int, ...] | None:
    shape = tensor(value).shape
    known = tuple(dim for dim in shape if isinstance(dim, int))
    return known if len(known) == len(shape) else None


def _constant(op: FlowOp, values: tuple[float | int, ...] | None) -> Rewrite:
    if values is None:
        return None
    kind: Attribute = op.outputs[0].type
    assert isinstance(kind, TensorType)
    numbers = tuple(number_in(v, kind.dtype) for v in values)
    return ConstantOp.make([], [kind], value=numbers)
