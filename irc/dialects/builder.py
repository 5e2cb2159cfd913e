"""Building flow functions: operands in, values out, result types inferred.

Both frontends and most rewrites use one :class:`FlowBuilder`; it numbers the ops (``n0``, ``n1``,
...), stamps the current source line, and turns a shape that cannot be into a located error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from xdsl.builder import Builder
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from irc.dialects.flow import (
    BroadcastOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    signature,
    tensor,
)
from irc.dialects.literals import ConstantOp
from irc.dialects.size import Dim
from irc.dialects.types import TensorType, number_in
from irc.ops.infer import check_cast

Op = TypeVar("Op", bound=Operation)


class FlowBuilder:
    """Appends ops to one block.

    Args:
        block: where ops go.
        prefix: first letters of the ids, so that blocks of one module do not share ids.
        before: insert before this op instead of at the end.
    """

    def __init__(self, block: Block, prefix: str = "n", before: Operation | None = None) -> None:
        self.loc = "unknown"
        self._prefix = prefix
        self._count = 0
        self._builder = Builder(InsertPoint.before(before) if before else InsertPoint.at_end(block))

    def ops(
        self,
        cls: type[FlowOp],
        inputs: Sequence[SSAValue],
        *,
        results: Sequence[Attribute] | None = None,
        id: str | None = None,
        **attrs: Any,
    ) -> list[SSAValue]:
        """Append an op and return its results; ``results`` are inferred where the op allows.

        Raises:
            ShapeError: where operands do not fit.
        """
        if results is None:
            inferred = cls.infer(attrs, [signature(value) for value in inputs])
            results = [TensorType.of(shape, dtype) for shape, dtype in inferred]
        if id is None:
            id = f"{self._prefix}{self._count}"
            self._count += 1
        op = cls.make(inputs, results, loc=self.loc, id=id, **attrs)
        self._builder.insert(op)
        return list(op.outputs)

    def op(
        self,
        cls: type[FlowOp],
        inputs: Sequence[SSAValue],
        *,
        result: TensorType | None = None,
        **attrs: Any,
    ) -> SSAValue:
        """Append an op of one result and return it."""
        assert result is not None or not cls.is_stated(), f"{cls.name} needs its result type"
        (value,) = self.ops(cls, inputs, results=None if result is None else [result], **attrs)
        return value

    def pointwise(self, fn: str, *inputs: SSAValue) -> SSAValue:
        """Append a scalar function."""
        return self.op(PointwiseOp, inputs, fn=fn)

    def cast(self, value: SSAValue, dtype: str) -> SSAValue:
        """Convert to a dtype; the value itself where it has it.

        Raises:
            ShapeError: where the cast would drop the imaginary part.
        """
        kind = tensor(value)
        if kind.dtype == dtype:
            return value
        check_cast(kind.dtype, dtype)
        return self.op(PointwiseOp, [value], result=TensorType.of(kind.shape, dtype), fn="cast")

    def scalar(self, value: float, dtype: str) -> SSAValue:
        """Append a rank-0 constant.

        Raises:
            NumberError: where the dtype does not hold the number.
        """
        return self.constant([value], (), dtype)

    def constant(self, values: Sequence[float], shape: Sequence[Dim], dtype: str) -> SSAValue:
        """Append a literal: one value for all elements, or all of them row-major.

        Raises:
            NumberError: where the dtype does not hold a number.
        """
        numbers = tuple(number_in(v, dtype) for v in values)
        return self.op(ConstantOp, [], result=TensorType.of(shape, dtype), value=numbers)

    def reduce(self, fn: str, value: SSAValue, dims: Sequence[int], *, keep_dims: bool) -> SSAValue:
        """Append a reduction."""
        return self.op(ReduceOp, [value], fn=fn, dims=tuple(dims), keep_dims=keep_dims)

    def reshape(self, value: SSAValue, shape: Sequence[Dim]) -> SSAValue:
        """Append a reshape; the value itself where it has the shape."""
        kind = tensor(value)
        if kind.shape == tuple(shape):
            return value
        return self.op(ReshapeOp, [value], result=TensorType.of(shape, kind.dtype))

    def broadcast(self, value: SSAValue, shape: Sequence[Dim]) -> SSAValue:
        """Append a broadcast; the value itself where it has the shape."""
        kind = tensor(value)
        if kind.shape == tuple(shape):
            return value
        return self.op(BroadcastOp, [value], result=TensorType.of(shape, kind.dtype))

    def call(
        self, callee: str, inputs: Sequence[SSAValue], results: Sequence[Attribute]
    ) -> list[SSAValue]:
        """Append a call of an outlined block."""
        op = CallOp(callee, list(inputs), list(results))
        op.attributes["loc"] = StringAttr(self.loc)
        op.attributes["id"] = StringAttr(f"{self._prefix}{self._count}")
        self._count += 1
        self._builder.insert(op)
        return list(op.res)


def argument_attrs(role: str, name: str) -> DictionaryAttr:
    """Return what an argument or result carries: its role and its original dotted name."""
    return DictionaryAttr({"role": StringAttr(role), "name": StringAttr(name)})


def finish_function(
    name: str,
    block: Block,
    results: Sequence[SSAValue],
    *,
    arg_attrs: Sequence[DictionaryAttr] | None = None,
    res_attrs: Sequence[DictionaryAttr] | None = None,
) -> FuncOp:
    """Close a block with a return and wrap it in a function."""
    block.add_op(ReturnOp(*results))
    kind = FunctionType.from_lists([a.type for a in block.args], [r.type for r in results])
    return FuncOp(
        name,
        kind,
        Region(block),
        arg_attrs=None if arg_attrs is None else ArrayAttr(arg_attrs),
        res_attrs=None if res_attrs is None else ArrayAttr(res_attrs),
    )


def cloned(op: Op, known: dict[SSAValue, SSAValue]) -> Op:
    """Return what ``op.clone(known)`` does: of an op without regions in half the time.

    Args:
        op: what is copied.
        known: what stands for a value in the copy; its results are added.
    """
    return op.clone(known) if op.regions else op.clone_without_regions(known)


def entry(module: ModuleOp, name: str = "forward") -> FuncOp:
    """Return a function of a module by name (a missing one is an internal error)."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == name:
            return op
    raise LookupError(f"the module has no function @{name}")


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Return the functions of a module by name, in order."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


def arguments(func: FuncOp) -> list[tuple[str, str, SSAValue]]:
    """Return (role, name, value) of each argument; blocks' arguments have role ``value``."""
    attrs = (
        func.arg_attrs.data if func.arg_attrs else [DictionaryAttr({})] * len(func.body.block.args)
    )
    return [(_text(a, "role", "value"), _text(a, "name", f"arg{i}"), v)
            for i, (a, v) in enumerate(zip(attrs, func.body.block.args, strict=True))]  # fmt: skip


def results(func: FuncOp) -> list[tuple[str, str]]:
    """Return (role, name) of each result."""
    count = len(func.function_type.outputs)
    attrs = func.res_attrs.data if func.res_attrs else [DictionaryAttr({})] * count
    return [
        (_text(a, "role", "output"), _text(a, "name", f"output{i}")) for i, a in enumerate(attrs)
    ]


def _text(attrs: DictionaryAttr, key: str, default: str) -> str:
    attr = attrs.data.get(key)
    return attr.data if type(attr) is StringAttr else default
