"""The first half of plan-memory: blocks inlined, ops as steps, values as unplaced buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.comm import CollectiveOp, LocalChunkOp, RankIndexOp, WaitOp
from irc.dialects.flow import FlowOp, id_of, loc_of, result_id
from irc.dialects.placement import Mesh, Placement
from irc.dialects.task import BufferType, KernelOp, LaunchOp, ViewOp
from irc.dialects.types import ITEM_BYTES, PlacementAttr, TensorType
from irc.errors import InternalError, IrcError
from irc.plan.in_place import scatters_in_place
from irc.plan.packing import scratch_sizes
from irc.plan.schema import (
    AxisCut,
    Buffer,
    Call,
    Copy,
    Kernel,
    KernelArg,
    Library,
    Start,
    Step,
    Wait,
    cut,
    row_major,
)
from irc.plan.update import element_pairs

Seconds: TypeAlias = Callable[[Operation], float | None]
"""Predicted time of one launch, library op or collective."""

MAX_CALL_DEPTH = 32
CALLER_ROLES = ("input", "value", "cache", "saved", "boundary")


class Flattener:
    """Walks the entry and the blocks it calls, in order."""

    def __init__(self, module: ModuleOp, seconds: Seconds) -> None:
        self.seconds = seconds
        self.functions = functions(module)
        self.entry: FuncOp = entry(module)
        self.kernel_ops = {op.sym_name.data: op for op in module.ops if isinstance(op, KernelOp)}
        mesh = module.attributes.get("irc.mesh")
        self.mesh = mesh.data if isinstance(mesh, StringAttr) else ""
        self.sizes = dict(Mesh.parse(self.mesh).axes)
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.kernels: list[Kernel] = []
        self.inputs: list[int] = []
        self.weights: list[int] = []
        self.outputs: list[int] = []
        self._kernel_index: dict[str, int] = {}
        self._pending: dict[int, int] = {}
        self._in_place = scatters_in_place(self.entry, self.functions)

    def run(self) -> None:
        values = self._arguments()
        returned = self._body(self.entry, values, "", 0)
        self._finish(returned)

    def _arguments(self) -> list[int]:
        found: list[int] = []
        attrs = self.entry.arg_attrs.data if self.entry.arg_attrs else ()
        for position, (role, name, value) in enumerate(arguments(self.entry)):
            own = attrs[position] if position < len(attrs) else DictionaryAttr({})
            is_input = role in CALLER_ROLES
            shape, dtype = _signature(value)
            index = self._new(
                Buffer(
                    dtype,
                    shape,
                    "input" if is_input else "weight",
                    name=name,
                    role=role,
                    placement=cut(_placement(own)),
                )
            )
            (self.inputs if is_input else self.weights).append(index)
            found.append(index)
        return found

    def _new(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _body(self, func: FuncOp, given: Sequence[int], path: str, depth: int) -> list[int]:
        if depth > MAX_CALL_DEPTH:
            raise IrcError("ir-invalid", f"@{func.sym_name.data} calls itself, or too deeply")
        block = func.body.block
        values: dict[SSAValue, int] = dict(zip(block.args, given, strict=True))
        for op in block.ops:
            operands = [values[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                return operands
            if isinstance(op, CallOp):
                callee = self.functions[op.callee.string_value()]
                made = self._body(callee, operands, f"{path}{id_of(op)}/", depth + 1)
            else:
                made = self._op(op, operands, path)
            values.update(zip(op.results, made, strict=True))
        raise InternalError(f"@{func.sym_name.data} does not return")

    def _op(self, op: Operation, operands: list[int], path: str) -> list[int]:
        name = path + id_of(op)
        match op:
            case ViewOp():
                return [self._view(op, operands[0], name)]
            case LaunchOp():
                return self._launch(op, operands, path)
            case CollectiveOp():
                return [self._start(op, operands, name)]
            case WaitOp():
                (value,) = operands
                self.steps.append(Wait("wait", self._pending[value], name, loc_of(op)))
                self.buffers[value] = replace(self.buffers[value], source=f"{name}#0")
                return operands
            case FlowOp():
                return self._library(op, operands, path)
            case _:
                raise InternalError(f"{op.name} has no place in a program of level task")

    def _value(self, value: SSAValue, source: str) -> int:
        shape, dtype = _signature(value)
        return self._new(Buffer(dtype, shape, "arena", source=source))

    def _results(self, op: Operation, path: str) -> list[int]:
        # A launch computes several ops of level flow; each of its results says which.
        names = [path + _numbered(result_id(value)) for value in op.results]
        return [self._value(v, own) for v, own in zip(op.results, names, strict=True)]

    def _view(self, op: ViewOp, source: int, name: str) -> int:
        shape, dtype = _signature(op.outputs[0])
        of = self.buffers[source]
        if not of.is_contiguous:
            raise InternalError(f"view {name} shows a view with gaps; task.view takes dense values")
        attrs = op.plain
        strides = tuple(attrs["strides"])
        start = of.offset if of.storage == "alias" else 0
        return self._new(
            Buffer(
                dtype,
                shape,
                "alias",
                offset=start + attrs["offset"] * ITEM_BYTES[dtype],
                root=source if of.root is None else of.root,
                strides=None if _is_dense(shape, strides) else strides,
                source=_numbered(name),
            )
        )

    def _launch(self, op: LaunchOp, operands: list[int], path: str) -> list[int]:
        made = self._results(op, path)
        self.steps.append(
            Call(
                self._kernel(op.kernel_name),
                (*operands, *made),
                path + id_of(op),
                loc_of(op),
                self.seconds(op),
            )
        )
        return made

    def _kernel(self, symbol: str) -> int:
        if symbol not in self._kernel_index:
            kernel = self.kernel_ops[symbol]
            args: list[KernelArg] = []
            for arg in kernel.args:
                assert isinstance(arg.type, BufferType)
                args.append(KernelArg(arg.type.num_elements, arg.type.dtype))
            self._kernel_index[symbol] = len(self.kernels)
            count, pairs = kernel.num_inputs.value.data, element_pairs(kernel)
            self.kernels.append(Kernel(symbol, tuple(args), count, pairs))
        return self._kernel_index[symbol]

    def _library(self, op: FlowOp, operands: list[int], path: str) -> list[int]:
        in_place = (path, op) in self._in_place
        made = operands[:1] if in_place else self._results(op, path)
        self.steps.append(
            Library(
                "library",
                op.name,
                tuple(operands),
                tuple(made),
                _without_placements(op.plain),
                path + id_of(op),
                loc_of(op),
                # Positions on the mesh cost nothing; the cost model knows flow ops only.
                None if isinstance(op, RankIndexOp | LocalChunkOp) else self.seconds(op),
            )
        )
        return made

    def _start(self, op: CollectiveOp, operands: list[int], name: str) -> int:
        kind = op.result_tensor
        made = self._new(Buffer(kind.dtype, _static(kind), "arena", source=f"{name}#0"))
        attrs = _without_placements(op.plain)
        source, target = self.buffers[operands[0]], self.buffers[made]
        scratch = scratch_sizes(
            op.name, attrs, source.shape, target.shape, self.sizes[attrs["axis"]]
        )
        send, receive = (
            None if shape is None else self._new(Buffer(kind.dtype, shape, "arena"))
            for shape in scratch
        )
        self._pending[made] = len(self.steps)
        self.steps.append(
            Start(
                "start",
                op.name,
                tuple(operands),
                (made,),
                f"comm:{attrs['axis']}",
                send,
                receive,
                attrs,
                name,
                loc_of(op),
                self.seconds(op),
            )
        )
        return made

    def _finish(self, returned: Sequence[int]) -> None:
        """Make outputs of the returned values, then write the states back."""
        named = results(self.entry)
        states: list[tuple[int, int]] = []
        held = (*self.weights, *(i for i in self.inputs if self.buffers[i].role == "cache"))
        by_name = {self.buffers[i].name: i for i in held}
        attrs = self.entry.res_attrs
        placed = attrs.data if attrs else [DictionaryAttr({})] * len(named)
        for (role, name), value, own in zip(named, returned, placed, strict=True):
            # The new value of an input goes back to the caller, whose memory it is.
            if role == "state" and name in by_name:
                states.append((value, by_name[name]))
            else:
                self.outputs.append(self._output(value, name, cut(_placement(own))))
        # All states are read before one is written: `a, b = b, a` swaps.
        staged = [(self._staged(value, target), target) for value, target in states]
        for value, target in staged:
            if value == target:  # written in place
                continue
            self.steps.append(Copy("copy", value, target, id=self.buffers[target].name))

    def _output(self, value: int, name: str, placed: tuple[AxisCut, ...]) -> int:
        buffer = self.buffers[value]
        root = value if buffer.root is None else buffer.root
        owner = self.buffers[root]
        covers = buffer.is_contiguous and buffer.size_bytes == owner.size_bytes
        if owner.storage == "arena" and covers:
            self.buffers[root] = replace(owner, storage="output")
            self.buffers[value] = replace(
                self.buffers[value], name=name, role="output", placement=placed
            )
            return value
        made = self._new(
            Buffer(buffer.dtype, buffer.shape, "output", name=name, role="output", placement=placed)
        )
        self.steps.append(Copy("copy", value, made, id=name))
        return made

    def _staged(self, value: int, target: int) -> int:
        if value == target:
            return value
        buffer = self.buffers[value]
        root = self.buffers[value if buffer.root is None else buffer.root]
        if root.storage != "weight" and root.role != "cache":
            return value
        made = self._new(Buffer(buffer.dtype, buffer.shape, "arena"))
        self.steps.append(Copy("copy", value, made))
        return made


def _numbered(name: str) -> str:
    """Return the id of a result with its number also where that is 0."""
    return name if "#" in name else f"{name}#0"


def _signature(value: SSAValue) -> tuple[tuple[int, ...], str]:
    kind = value.type
    if not isinstance(kind, TensorType):
        raise IrcError("op-unsupported", f"a value of type {kind} has no place in a plan")
    return _static(kind), kind.dtype


def _static(kind: TensorType) -> tuple[int, ...]:
    try:
        return kind.static_shape()
    except ValueError as error:
        raise IrcError("ir-invalid", f"{kind} in a plan: {error}") from None


def _placement(attrs: DictionaryAttr) -> Placement | None:
    found = attrs.data.get("sbp")
    return found.data if isinstance(found, PlacementAttr) else None


def _without_placements(attrs: Mapping[str, Any]) -> dict[str, Any]:
    # `sbp` records placements for `irc check`, which reads them from the IR.
    return {name: value for name, value in attrs.items() if name != "sbp"}


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    # The stride of a dim of size 1 (or of anything in an empty tensor) is never used.
    return 0 in shape or all(
        n == 1 or s == d for n, s, d in zip(shape, strides, row_major(shape), strict=True)
    )
