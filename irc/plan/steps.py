"""A program whose memory is decided, written down as steps on buffers.

Nothing is decided here: each op is a step, each value a buffer that lies where the passes have put
it (:mod:`irc.plan.memories`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, results
from irc.dialects.comm import CollectiveOp, RankIndexOp, WaitOp
from irc.dialects.flow import FlowOp, id_of, loc_of
from irc.dialects.launches import CopyOp, LaunchOp, ViewOp
from irc.dialects.noted import result_id
from irc.dialects.placement import Placement
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.dialects.types import PlacementAttr
from irc.errors import InternalError
from irc.plan.element_pairs import element_pairs
from irc.plan.memories import (
    ARENA,
    CALLER_ROLES,
    INTO,
    OVER,
    PREPARED,
    Memories,
    decided,
    returned,
    scratch_of,
    signature_of,
)
from irc.plan.schema import (
    Buffer,
    Call,
    Copy,
    Kernel,
    KernelArg,
    Library,
    Start,
    Step,
    Storage,
    Wait,
    cut,
)
from irc.sharding.mesh import mesh_of
from irc.sharding.padding import rows_of

Seconds: TypeAlias = Callable[[Operation], float | None]
"""Predicted time of one launch, library op or collective."""


@dataclass(frozen=True)
class Unplaced:
    """A plan whose launches are not grouped; behind ``plan-memory`` its buffers have a place.

    Attributes:
        mesh: as in :class:`Plan`, with ``inputs``, ``weights``, ``outputs`` and ``kernels``.
        prepared: steps on weights alone.
        steps: those of every call.
    """

    mesh: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    prepared: tuple[Step, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    outputs: tuple[int, ...]


def steps_on_buffers(module: ModuleOp, seconds: Seconds | None = None) -> Unplaced:
    """Return what a module of level task does, as steps on buffers.

    Args:
        module: the passes up to ``prepare-weights``, or all, have run.
        seconds: predicts the time of an op.
    """
    writer = _Writer(module, seconds or (lambda _: None))
    return writer.run()


class _Writer:
    """Walks the entry in order."""

    def __init__(self, module: ModuleOp, seconds: Seconds) -> None:
        self._seconds = seconds
        self._entry = entry(module)
        self._kernel_ops = {op.sym_name.data: op for op in module.ops if isinstance(op, KernelOp)}
        self._mesh = mesh_of(module)
        self._memories = Memories(self._entry)
        self._names = {value: name for name, value, _ in returned(self._entry)}
        self._values: dict[SSAValue, int] = {}
        self._buffers: list[Buffer] = []
        self._prepared: list[Step] = []
        self._steps: list[Step] = []
        self._kernels: list[Kernel] = []
        self._kernel_index: dict[str, int] = {}
        self._begun: dict[Operation, int] = {}

    def run(self) -> Unplaced:
        inputs, weights = self._arguments()
        for op in self._entry.body.block.ops:
            if not isinstance(op, ReturnOp):
                self._op(op)
        return Unplaced(
            str(self._mesh),
            outputs=tuple(self._outputs()),
            buffers=tuple(self._buffers),
            kernels=tuple(self._kernels),
            prepared=tuple(self._prepared),
            steps=tuple(self._steps),
            inputs=tuple(inputs),
            weights=tuple(weights),
        )

    def _arguments(self) -> tuple[list[int], list[int]]:
        inputs: list[int] = []
        weights: list[int] = []
        attrs = self._entry.arg_attrs.data if self._entry.arg_attrs else ()
        for position, (role, name, value) in enumerate(arguments(self._entry)):
            own = attrs[position] if position < len(attrs) else DictionaryAttr({})
            is_input = role in CALLER_ROLES
            shape, dtype = signature_of(value)
            self._values[value] = self._new(
                Buffer(
                    dtype,
                    shape,
                    "input" if is_input else "weight",
                    name=name,
                    role=role,
                    placement=cut(_placement(own)),
                    rows=rows_of(own),
                )
            )
            (inputs if is_input else weights).append(self._values[value])
        return inputs, weights

    def _outputs(self) -> list[int]:
        """Name the outputs; return them in the order of results."""
        outputs: list[int] = []
        attrs = self._entry.res_attrs
        count = len(results(self._entry))
        placed = attrs.data if attrs else [DictionaryAttr({})] * count
        for (name, value, state), own in zip(returned(self._entry), placed, strict=True):
            if state is None:
                index = self._values[value]
                outputs.append(index)
                self._buffers[index] = replace(
                    self._buffers[index], name=name, role="output", placement=cut(_placement(own))
                )
        return outputs

    def _new(self, buffer: Buffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _op(self, op: Operation) -> None:
        match op:
            case ViewOp():
                self._view(op)
            case LaunchOp():
                self._launch(op)
            case CollectiveOp():
                self._start(op)
            case WaitOp():
                self._wait(op)
            case CopyOp():
                self._copy(op)
            case FlowOp():
                self._library(op)
            case _:
                raise InternalError(f"{op.name} has no place in a program of level task")

    def _step(self, op: Operation, step: Step) -> None:
        (self._prepared if PREPARED in op.attributes else self._steps).append(step)

    def _result(self, value: SSAValue, place: int, source: str) -> int:
        """Return the buffer of a result, which lies where it was put.

        Args:
            value: the result.
            place: its first byte in the arena.
            source: the id that it goes by.
        """
        shape, dtype = signature_of(value)
        root = self._memories.root(value)
        if root is not value:
            return self._new(Buffer(dtype, shape, "alias", root=self._values[root], source=source))
        return self._new(Buffer(dtype, shape, self._storage(value), max(place, 0), source=source))

    def _storage(self, value: SSAValue) -> Storage:
        if self._memories.is_in_arena(value):
            return "arena"
        return "output" if value in self._memories.outputs else "prepared"

    def _results(self, op: Operation) -> list[int]:
        places = decided(op, ARENA) or [0] * len(op.results)
        # A launch computes several ops of level flow; each of its results says which.
        outputs = [
            self._result(value, place, _numbered(result_id(value)))
            for value, place in zip(op.results, places, strict=True)
        ]
        self._values.update(zip(op.results, outputs, strict=True))
        return outputs

    def _view(self, op: ViewOp) -> None:
        source, result = op.x, op.outputs[0]
        if not self._memories.is_dense(source):
            raise InternalError(
                f"view {id_of(op)} shows a view with gaps; task.view takes dense values"
            )
        shape, dtype = signature_of(result)
        view = self._memories.view(result)
        self._values[result] = self._new(
            Buffer(
                dtype,
                shape,
                "alias",
                offset=view.offset,
                root=self._values[self._memories.root(result)],
                strides=view.strides,
                source=_numbered(id_of(op)),
            )
        )

    def _launch(self, op: LaunchOp) -> None:
        operands = [self._values[value] for value in op.operands]
        outputs = self._results(op)
        for index, place in enumerate(decided(op, INTO)):
            if place >= 0:
                outputs[index] = self._values[self._entry.body.block.args[place]]
        for index, place in enumerate(decided(op, OVER)):
            if place >= 0:
                outputs[index] = operands[place] = self._root(op.operands[place])
        step = Call(
            self._kernel(op.kernel_name),
            (*operands, *outputs),
            id_of(op),
            loc_of(op),
            self._seconds(op),
        )
        self._step(op, step)

    def _root(self, value: SSAValue) -> int:
        return self._values[self._memories.root(value)]

    def _kernel(self, symbol: str) -> int:
        if symbol not in self._kernel_index:
            kernel = self._kernel_ops[symbol]
            args: list[KernelArg] = []
            for arg in kernel.args:
                assert isinstance(arg.type, BufferType)
                args.append(KernelArg(arg.type.num_elements, arg.type.dtype))
            self._kernel_index[symbol] = len(self._kernels)
            count, pairs = kernel.num_inputs.value.data, element_pairs(kernel)
            self._kernels.append(Kernel(symbol, tuple(args), count, pairs))
        return self._kernel_index[symbol]

    def _library(self, op: FlowOp) -> None:
        operands = [self._values[value] for value in op.operands]
        if INTO in op.attributes:
            outputs = [self._root(value) for value in op.results]
            self._values.update(zip(op.results, outputs, strict=True))
        else:
            outputs = self._results(op)
        step = Library(
            "library",
            op.name,
            tuple(operands),
            tuple(outputs),
            _without_placements(op.plain),
            id_of(op),
            loc_of(op),
            # A position on the mesh is a number that is known.
            None if isinstance(op, RankIndexOp) else self._seconds(op),
        )
        self._step(op, step)

    def _start(self, op: CollectiveOp) -> None:
        (result,), name = op.outputs, id_of(op)
        attrs = _without_placements(op.plain)
        place, *packed = decided(op, ARENA) or (0, 0, 0)
        output = self._values[result] = self._result(result, place, f"{name}#0")
        is_over = OVER in op.attributes
        operands = [output] if is_over else [self._values[value] for value in op.operands]
        dtype = self._buffers[output].dtype
        send, receive = (
            None if shape is None else self._new(Buffer(dtype, shape, "arena", offset))
            for shape, offset in zip(scratch_of(op, self._mesh.size(op.axis)), packed, strict=True)
        )
        self._begun[op] = len(self._steps)
        step = Start(
            "start",
            op.name,
            tuple(operands),
            (output,),
            f"comm:{attrs['axis']}",
            send,
            receive,
            attrs,
            name,
            loc_of(op),
            self._seconds(op),
        )
        self._step(op, step)

    def _wait(self, op: WaitOp) -> None:
        begun, name = op.pending, id_of(op)
        index = self._values[op.outputs[0]] = self._values[begun]
        assert isinstance(begun.owner, CollectiveOp)
        self._step(op, Wait("wait", self._begun[begun.owner], name, loc_of(op)))
        self._buffers[index] = replace(self._buffers[index], source=f"{name}#0")

    def _copy(self, op: CopyOp) -> None:
        (value,), (result,) = op.inputs, op.outputs
        if INTO in op.attributes:
            output = self._root(result)
        else:
            place, *_ = decided(op, ARENA) or (0,)
            output = self._result(result, place, "")
        self._values[result] = output
        self._step(op, Copy("copy", self._values[value], output, id=self._names.get(result, "")))


def _numbered(name: str) -> str:
    """Return the id of a result with its number also where that is 0."""
    return name if "#" in name else f"{name}#0"


def _placement(attrs: DictionaryAttr) -> Placement | None:
    attribute = attrs.data.get("sbp")
    return attribute.data if isinstance(attribute, PlacementAttr) else None


def _without_placements(attrs: Mapping[str, Any]) -> dict[str, Any]:
    # `sbp` records placements for `irc check`, which reads them from the IR.
    return {name: value for name, value in attrs.items() if name != "sbp"}
