"""Pass ``merge-launches``: kernels that do the same to tensors of different sizes become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.attributes import to_python
from irc.dialects.builder import entry, functions
from irc.dialects.comm import WaitOp
from irc.dialects.flow import FlowOp, id_of, loc_of, phase_of
from irc.dialects.launches import LaunchOp, ViewOp
from irc.dialects.task import KernelOp
from irc.kernels.foreach import Pointwise, join, most_parts, pointwise_of
from irc.kernels.schedule import require_target
from irc.plan.memories import collective_of

LEAST = 3
"""Launches that become one: two save too little to change what a reader of the plan sees."""


@dataclass(frozen=True)
class MergeLaunchesPass(ModulePass):
    """Let one launch do one pointwise body for many tensors: an optimiser's step is one kernel.

    A model has some hundred parameters, most of them small: as a kernel for each shape, their
    update is bound by the start of kernels, on a GPU as on a CPU's thread pool. Functions that hold
    nothing but such kernels (the step of layers that are alike) are written out first.

    Run: merge-launches{target=cpu}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[6], f32>, %y: !flow.tensor<[2, 5], f32>,
        %z: !flow.tensor<[1], f32>) -> (!flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>,
        !flow.tensor<[1], f32>) {
      %0 = task.launch(%x) {kernel = @k0_exp, loc = "m.py:1", id = "n1", results = ["n1"]}
          : (!flow.tensor<[6], f32>) -> !flow.tensor<[6], f32>
      %1 = task.launch(%y) {kernel = @k1_exp, loc = "m.py:2", id = "n2", results = ["n2"]}
          : (!flow.tensor<[2, 5], f32>) -> !flow.tensor<[2, 5], f32>
      %2 = task.launch(%z) {kernel = @k2_exp, loc = "m.py:3", id = "n3", results = ["n3"]}
          : (!flow.tensor<[1], f32>) -> !flow.tensor<[1], f32>
      func.return %0, %1, %2
          : !flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>, !flow.tensor<[1], f32>
    }
    task.kernel @k0_exp {template = "rows", space = array<i64: 6>, parallel = 1, num_inputs = 1,
        mapping = #task.map<spatial(1) * repeat(6)>, tile = {}, sources = ["n1"],
        loc = "m.py:1"} : {
    ^bb0(%0: !task.buffer<6, f32>, %1: !task.buffer<6, f32>):
      %2 = task.load(%0) {offset = 0, strides = array<i64: 1>, loc = "m.py:1", id = "n1"}
          : (!task.buffer<6, f32>) -> !task.value<f32, row>
      %3 = task.pointwise(%2) {fn = "exp", loc = "m.py:1", id = "n1"}
          : (!task.value<f32, row>) -> !task.value<f32, row>
      task.store(%3, %1) {offset = 0, strides = array<i64: 1>, loc = "m.py:1"}
          : (!task.value<f32, row>, !task.buffer<6, f32>) -> ()
    }
    task.kernel @k1_exp {template = "rows", space = array<i64: 2, 5>, parallel = 2, num_inputs = 1,
        mapping = #task.map<spatial(1, 1) * repeat(2, 5)>, tile = {}, sources = ["n2"],
        loc = "m.py:2"} : {
    ^bb0(%0: !task.buffer<10, f32>, %1: !task.buffer<10, f32>):
      %2 = task.load(%0) {offset = 0, strides = array<i64: 5, 1>, loc = "m.py:2", id = "n2"}
          : (!task.buffer<10, f32>) -> !task.value<f32, row>
      %3 = task.pointwise(%2) {fn = "exp", loc = "m.py:2", id = "n2"}
          : (!task.value<f32, row>) -> !task.value<f32, row>
      task.store(%3, %1) {offset = 0, strides = array<i64: 5, 1>, loc = "m.py:2"}
          : (!task.value<f32, row>, !task.buffer<10, f32>) -> ()
    }
    task.kernel @k2_exp {template = "rows", space = array<i64: 1>, parallel = 1, num_inputs = 1,
        mapping = #task.map<spatial(1) * repeat(1)>, tile = {}, sources = ["n3"],
        loc = "m.py:3"} : {
    ^bb0(%0: !task.buffer<1, f32>, %1: !task.buffer<1, f32>):
      %2 = task.load(%0) {offset = 0, strides = array<i64: 1>, loc = "m.py:3", id = "n3"}
          : (!task.buffer<1, f32>) -> !task.value<f32, row>
      %3 = task.pointwise(%2) {fn = "exp", loc = "m.py:3", id = "n3"}
          : (!task.value<f32, row>) -> !task.value<f32, row>
      task.store(%3, %1) {offset = 0, strides = array<i64: 1>, loc = "m.py:3"}
          : (!task.value<f32, row>, !task.buffer<1, f32>) -> ()
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[6], f32>, %y: !flow.tensor<[2, 5], f32>,
        %z: !flow.tensor<[1], f32>) -> (!flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>,
        !flow.tensor<[1], f32>) {
      %0, %1, %2 = task.launch(%x, %y, %z) {kernel = @k0_exp_each, loc = "m.py:1", id = "n1",
          results = ["n1", "n2", "n3"]}
          : (!flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>, !flow.tensor<[1], f32>)
          -> (!flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>, !flow.tensor<[1], f32>)
      func.return %0, %1, %2
          : !flow.tensor<[6], f32>, !flow.tensor<[2, 5], f32>, !flow.tensor<[1], f32>
    }
    task.kernel @k0_exp_each {template = "foreach", space = array<i64: 17>, parallel = 1,
        num_inputs = 3, mapping = #task.map<spatial(1) * repeat(32)>, tile = {chunk = 4096},
        sources = ["n1", "n2", "n3"], lengths = array<i64: 6, 10, 1>, loc = "m.py:1"} : {
    ^bb0(%0: !task.buffer<6, f32>, %1: !task.buffer<10, f32>, %2: !task.buffer<1, f32>,
        %3: !task.buffer<6, f32>, %4: !task.buffer<10, f32>, %5: !task.buffer<1, f32>):
      %6 = task.load(%0) {offset = 0, strides = array<i64: 1>, loc = "m.py:1", id = "n1"}
          : (!task.buffer<6, f32>) -> !task.value<f32, row>
      %7 = task.pointwise(%6) {fn = "exp", loc = "m.py:1", id = "n1"}
          : (!task.value<f32, row>) -> !task.value<f32, row>
      task.store(%7, %3) {offset = 0, strides = array<i64: 1>, loc = "m.py:1"}
          : (!task.value<f32, row>, !task.buffer<6, f32>) -> ()
    }
    ```

    Launches are joined where nothing but row kernels and views lie between them, so that what they
    read is kept no longer than before; a product, a collective or a library op ends a run. It
    declines where a kernel reduces, looks up, reads a transpose, or reads what another of them
    makes. Updates whose gradients come from different exchanges stay apart: none waits for the
    other's.
    """

    name = "merge-launches"
    level: ClassVar[str] = "task"
    after: ClassVar[str] = "map-tasks"

    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target)
        known = _kernels(op)
        plain = {
            name: pointwise
            for name, k in known.items()
            if (pointwise := pointwise_of(k)) is not None
        }
        _inline_steps(op, plain)
        joiner = _Joiner(op, self.target, known, plain)
        for func in functions(op).values():
            if not func.is_declaration:
                joiner.run(func)
        _drop_unused(op)


def _inline_steps(module: ModuleOp, plain: dict[str, Pointwise]) -> None:
    """Write out the steps of layers that are alike, where they hold pointwise kernels alone."""
    known, func = functions(module), entry(module)
    fits = {
        name: all(
            isinstance(op, ViewOp | ReturnOp)
            or (isinstance(op, LaunchOp) and op.kernel_name in plain)
            for op in callee.body.block.ops
        )
        for name, callee in known.items()
        if not callee.is_declaration
    }
    for call in [op for op in func.body.block.ops if isinstance(op, CallOp)]:
        name = call.callee.string_value()
        if phase_of(call) == "step" and fits.get(name):
            _inline(call, known[name])
    called = Counter(op.callee.string_value() for op in module.walk() if isinstance(op, CallOp))
    for name, callee in known.items():
        if fits.get(name) and callee is not func and not called[name]:
            callee.detach()
            callee.erase()


def _inline(call: CallOp, callee: FuncOp) -> None:
    """Put the ops of a function in the place of its call, under the names that a plan has."""
    block, path = call.parent, f"{id_of(call)}/"
    assert block is not None
    values: dict[SSAValue, SSAValue] = dict(zip(callee.body.block.args, call.operands, strict=True))
    for op in callee.body.block.ops:
        if isinstance(op, ReturnOp):
            for old, value in zip(call.results, op.operands, strict=True):
                old.replace_all_uses_with(values[value])
            continue
        copy = op.clone(values)
        copy.attributes["id"] = StringAttr(path + id_of(op))
        if "results" in copy.attributes:
            copy.attributes["results"] = ArrayAttr([StringAttr(path + n) for n in _names(op)])
        block.insert_op_before(copy, call)
    call.detach()
    call.erase()


@dataclass
class _Joiner:
    """Joins launches, run by run.

    Attributes:
        known: the kernels by name; ``pointwise`` those that may be parts.
        waiting: launches of the current run that no op has read, by what they do.
    """

    module: ModuleOp
    target: str
    known: dict[str, KernelOp]
    pointwise: dict[str, Pointwise]
    waiting: list[list[LaunchOp]] = field(default_factory=list[list[LaunchOp]])

    def run(self, func: FuncOp) -> None:
        """Join the launches of a function."""
        for op in list(func.body.block.ops):
            makers = {value.owner for value in op.operands}
            for group in [g for g in self.waiting if makers & set(g)]:
                self._flush(group, op)
            if isinstance(op, LaunchOp) and op.kernel_name in self.pointwise and _names(op):
                self._add(op)
            elif not isinstance(op, ViewOp) and not self._is_rows(op):
                for group in list(self.waiting):
                    self._flush(group, op)

    def _is_rows(self, op: Operation) -> bool:
        """True for a launch that takes little memory and time: none of a product."""
        return isinstance(op, LaunchOp) and self.known[op.kernel_name].template.data == "rows"

    def _add(self, op: LaunchOp) -> None:
        own, awaited = self.pointwise[op.kernel_name], _awaited(op)
        for group in self.waiting:
            shaped = [self.pointwise[o.kernel_name] for o in group]
            if all(own.fits(other) for other in shaped) and awaited == _awaited(group[0]):
                group.append(op)
                if len(group) == most_parts(self.known[op.kernel_name]):
                    following = op.next_op
                    assert following is not None
                    self._flush(group, following)
                return
        self.waiting.append([op])

    def _flush(self, group: list[LaunchOp], before: Operation) -> None:
        """Launch the kernels of a group as one, in front of an op."""
        self.waiting.remove(group)
        if len(group) < LEAST:
            return
        first = self.known[group[0].kernel_name]
        parts = [self.known[op.kernel_name] for op in group]
        kernel = join(parts, self._free(f"{first.sym_name.data}_each"), self.target)
        self.module.body.block.add_op(kernel)
        self.known[kernel.sym_name.data] = kernel
        launch = _launch(kernel, group)
        block = before.parent
        assert block is not None
        block.insert_op_before(launch, before)
        outputs = iter(launch.outputs)
        for op in group:
            for old in op.outputs:
                old.replace_all_uses_with(next(outputs))
            op.detach()
            op.erase()

    def _free(self, name: str) -> str:
        number, free = 0, name
        while free in self.known:
            number += 1
            free = f"{name}{number}"
        return free


def _awaited(op: LaunchOp) -> frozenset[Operation | str]:
    """Return the exchanges that a launch waits for, also where a bucket was unpacked between."""
    waits: set[Operation | str] = set()
    left = [value.owner for value in op.operands]
    while left:
        owner = left.pop()
        if isinstance(owner, WaitOp):
            begun = collective_of(owner)
            waits.add(owner if begun.bucket is None else begun.bucket)
        elif isinstance(owner, ViewOp):
            left += [value.owner for value in owner.operands]
        elif isinstance(owner, CallOp) and len(owner.operands) == 1:  # what unpacks a bucket
            left.append(owner.operands[0].owner)
    return frozenset(waits)


def _launch(kernel: KernelOp, group: Sequence[LaunchOp]) -> FlowOp:
    """Return the launch of all parts; its id is that of the first."""
    launch = LaunchOp.make(
        [value for op in group for value in op.inputs],
        [value.type for op in group for value in op.outputs],
        kernel=SymbolRefAttr(kernel.sym_name.data),
    )
    launch.attributes["loc"] = StringAttr(loc_of(group[0]))
    launch.attributes["id"] = StringAttr(id_of(group[0]))
    names = [name for op in group for name in _names(op)]
    launch.attributes["results"] = ArrayAttr([StringAttr(name) for name in names])
    placed: list[Attribute] = []
    for op in group:
        attr = op.attributes.get("sbp")
        placed += list(attr.data) if isinstance(attr, ArrayAttr) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    if len(placed) == len(names):
        launch.attributes["sbp"] = ArrayAttr(placed)
    return launch


def _drop_unused(module: ModuleOp) -> None:
    """Drop the kernels that no launch names any more."""
    used = {op.kernel_name for op in module.walk() if isinstance(op, LaunchOp)}
    for name, kernel in _kernels(module).items():
        if name not in used:
            kernel.detach()
            kernel.erase()


def _kernels(module: ModuleOp) -> dict[str, KernelOp]:
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, KernelOp)}


def _names(op: Operation) -> list[str]:
    """Return the flow id of each result of a launch; nothing where they have none."""
    ids = op.attributes.get("results")
    return [] if ids is None else list(to_python(ids))
