"""Programs of level task, written by hand, and torch functions that mean their kernels.

``reference_segments`` stands in for a backend: it runs those functions on the addresses of a base
table, as compiled kernels would, so that wrong offsets and stale buffers show.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from irc.dialects import comm, flow, launches, task, task_types
from irc.dialects.builder import argument_attrs
from irc.dialects.mapping import Atom, TaskMapping
from irc.dialects.placement import Placement
from irc.dialects.types import PlacementAttr, TensorType
from irc.pipeline import run_passes
from irc.pipeline.memory import MEMORY
from irc.plan.build import build_plan as written
from irc.plan.load import LoadedPlan
from irc.plan.save import make_plan
from irc.plan.schema import Plan
from irc.plugin import builtin_pass
from irc.runtime.dtypes import dtypes
from irc.runtime.segments import SegmentCall

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {"add": torch.add, "mul": torch.mul}
UNARY = {"relu": torch.relu, "neg": torch.neg, "exp": torch.exp}


class Task:
    """Writes one module: kernels as they are needed, functions, the entry."""

    def __init__(self, mesh: str = "") -> None:
        self.module = ModuleOp([])
        if mesh:
            self.module.attributes["irc.mesh"] = StringAttr(mesh)
        self.kernels: dict[str, task.KernelOp] = {}
        self.block = Block()
        self.count = 0
        self.arg_attrs: list[DictionaryAttr] = []

    def argument(
        self, role: str, name: str, shape: Sequence[int], placed: Placement | None = None,
        dtype: str = "f32",
    ) -> SSAValue:  # fmt: skip
        """Add an argument of the entry; the shape is local."""
        attrs = dict(argument_attrs(role, name).data)
        if placed is not None:
            attrs["sbp"] = PlacementAttr(placed)
        self.arg_attrs.append(DictionaryAttr(attrs))
        return self.block.insert_arg(TensorType.of(shape, dtype), len(self.block.args))

    def add(self, op: Operation) -> SSAValue:
        """Append an op with a fresh id."""
        op.attributes["id"] = StringAttr(f"n{self.count}")
        op.attributes["loc"] = StringAttr(f"model.py:{10 + self.count}")
        self.count += 1
        self.block.add_op(op)
        return op.results[0]

    def pointwise(self, fn: str, *inputs: SSAValue) -> SSAValue:
        """Launch an elementwise kernel over values of one shape."""
        kind = flow.tensor(inputs[0])
        name = f"{fn}_{'x'.join(map(str, kind.shape))}"
        if name not in self.kernels:
            self.kernels[name] = elementwise_kernel(name, fn, kind.static_shape(), len(inputs))
        return self.launch(name, inputs, kind)

    def matmul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Launch a matmul of two matrices."""
        (m, k), (_, n) = flow.tensor(a).static_shape(), flow.tensor(b).static_shape()
        name = f"matmul_{m}x{n}x{k}"
        if name not in self.kernels:
            self.kernels[name] = matmul_kernel(name, m, n, k)
        return self.launch(name, (a, b), TensorType.of((m, n)))

    def launch(self, name: str, inputs: Sequence[SSAValue], result: TensorType) -> SSAValue:
        """Append a launch."""
        return self.add(launches.LaunchOp.make(inputs, [result], kernel=symbol(name)))

    def view(
        self, x: SSAValue, shape: Sequence[int], strides: Sequence[int], offset: int = 0
    ) -> SSAValue:
        """Append a view."""
        kind = TensorType.of(shape, flow.tensor(x).dtype)
        return self.add(launches.ViewOp.make([x], [kind], offset=offset, strides=tuple(strides)))

    def start(
        self, cls: type[comm.CollectiveOp], x: SSAValue, shape: Sequence[int], **attrs: object
    ) -> SSAValue:
        """Append the start of a collective."""
        kind = comm.PendingType(TensorType.of(shape, flow.tensor(x).dtype))
        return self.add(cls.make([x], [kind], **attrs))

    def wait(self, pending: SSAValue) -> SSAValue:
        """Append a wait."""
        assert isinstance(pending.type, comm.PendingType)
        return self.add(comm.WaitOp.make([pending], [pending.type.tensor]))

    def collective(
        self, cls: type[comm.CollectiveOp], x: SSAValue, shape: Sequence[int], **attrs: object
    ) -> SSAValue:
        """Append a start and its wait."""
        return self.wait(self.start(cls, x, shape, **attrs))

    def library(
        self,
        cls: type[flow.FlowOp],
        inputs: Sequence[SSAValue],
        *results: TensorType,
        **attrs: object,
    ) -> list[SSAValue]:
        """Append a flow op that stays one."""
        op = cls.make(inputs, results, **attrs)
        self.add(op)
        return list(op.results)

    def call(
        self, name: str, inputs: Sequence[SSAValue], results: Sequence[TensorType]
    ) -> list[SSAValue]:
        """Append a call of a block."""
        op = CallOp(name, list(inputs), list(results))
        self.add(op)
        return list(op.results)

    def function(self, name: str, block: Block, results: Sequence[SSAValue]) -> None:
        """Close a block function."""
        block.add_op(ReturnOp(*results))
        kind = FunctionType.from_lists([a.type for a in block.args], [r.type for r in results])
        self.module.body.block.add_op(FuncOp(name, kind, Region(block), visibility="private"))

    def finish(
        self, *results: SSAValue, roles: Sequence[tuple[str, str]] | None = None
    ) -> ModuleOp:
        """Close the entry and verify the module."""
        named = roles or [("output", f"y{i}") for i in range(len(results))]
        self.block.add_op(ReturnOp(*results))
        kind = FunctionType.from_lists([a.type for a in self.block.args], [r.type for r in results])
        forward = FuncOp(
            "forward", kind, Region(self.block), arg_attrs=ArrayAttr(self.arg_attrs),
            res_attrs=ArrayAttr([argument_attrs(role, name) for role, name in named]),
        )  # fmt: skip
        self.module.body.block.add_ops([*self.kernels.values(), forward])
        self.module.verify()
        return self.module


def symbol(name: str):
    from xdsl.dialects.builtin import FlatSymbolRefAttr, SymbolRefAttr

    reference = SymbolRefAttr(name)
    assert isinstance(reference, SymbolRefAttr), FlatSymbolRefAttr
    return reference


def elementwise_kernel(name: str, fn: str, shape: Sequence[int], arity: int) -> task.KernelOp:
    """A kernel of one pointwise function over contiguous buffers."""
    size = prod(shape)
    block = Block(arg_types=[task_types.BufferType.of(size, "f32")] * (arity + 1))
    value = task_types.ValueType.of("f32", full=False)
    loads = [task.LoadOp.make([arg], [value], offset=0, strides=(1,)) for arg in block.args[:-1]]
    out = task.KernelPointwiseOp.make([op.results[0] for op in loads], [value], fn=fn)
    store = task.StoreOp.make([out.results[0], block.args[-1]], [], offset=0, strides=(1,))
    block.add_ops([*loads, out, store])
    return task.KernelOp.make(
        name, block, template="rows", space=(size,), parallel=1, num_inputs=arity,
        mapping=TaskMapping((Atom("spatial", (1,)), Atom("repeat", (size,)))),
    )  # fmt: skip


def matmul_kernel(name: str, m: int, n: int, k: int) -> task.KernelOp:
    """A kernel of one matmul."""
    block = Block(arg_types=[task_types.BufferType.of(s, "f32") for s in (m * k, k * n, m * n)])
    full, row = (
        task_types.ValueType.of("f32", full=True),
        task_types.ValueType.of("f32", full=False),
    )
    a = task.LoadOp.make([block.args[0]], [full], offset=0, strides=(k, 0, 1))
    b = task.LoadOp.make([block.args[1]], [full], offset=0, strides=(0, 1, n))
    c = task.KernelContractOp.make([a.results[0], b.results[0]], [row])
    store = task.StoreOp.make([c.results[0], block.args[2]], [], offset=0, strides=(n, 1, 0))
    block.add_ops([a, b, c, store])
    return task.KernelOp.make(
        name, block, template="matmul", space=(m, n, k), parallel=2, num_inputs=2,
        mapping=TaskMapping((Atom("spatial", (1, 1)), Atom("repeat", (m, n)))),
        tile={"block_m": 8, "block_n": 8, "block_k": 8},
    )  # fmt: skip


def build_plan(module: ModuleOp, **options: Any) -> Plan:
    """Decide where values lie, and write the plan down."""
    run_passes(module, [builtin_pass(name)() for name in MEMORY], verify_each="ir")
    return written(module, **options)


def loaded(module: ModuleOp, **options: object) -> LoadedPlan:
    """Plan a module; kernels have no source."""
    return make_plan(build_plan(module, **options))


class ReferenceSegment:
    """Runs launches by name through torch, on raw addresses."""

    def __init__(self, plan: LoadedPlan, calls: Sequence[SegmentCall]) -> None:
        self.plan, self.calls = plan.plan, calls
        self.runs = 0

    def run(self, table: int) -> None:
        bases = (ctypes.c_int64 * (1 + len(self.plan.bases))).from_address(table)
        self.runs += 1
        for call in self.calls:
            kernel = self.plan.kernels[call.kernel]
            tensors = [
                at(bases[base] + offset, arg.elements, arg.dtype)
                for (base, offset), arg in zip(call.args, kernel.args, strict=True)
            ]
            tensors[-1].copy_(meaning(kernel.name, tensors[:-1]))


def at(address: int, elements: int, dtype: str) -> torch.Tensor:
    kind = dtypes()[dtype]
    if elements == 0:
        return torch.empty(0, dtype=kind)
    memory = (ctypes.c_char * (elements * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind)


def meaning(name: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a kernel of this file computes, from its name."""
    fn, _, sizes = name.partition("_")
    if fn == "matmul":
        m, n, k = map(int, sizes.split("x"))
        return (inputs[0].view(m, k) @ inputs[1].view(k, n)).view(-1)
    return ({**FUNCTIONS, **UNARY})[fn](*inputs)


def reference_segments(
    plan: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], _threads: int
) -> list[ReferenceSegment]:
    """Load segments as a backend would."""
    return [ReferenceSegment(plan, calls) for calls in segments]


# ---------------------------------------------------------------------------------- programs


def mlp() -> ModuleOp:
    """One device: relu(x @ up) @ down, twice a block, with a skip; odd sizes."""
    t = Task()
    x = t.argument("input", "x", (5, 6))
    up = t.argument("parameter", "up.weight", (6, 9))
    down = t.argument("parameter", "down.weight", (9, 6))
    block = Block(arg_types=[TensorType.of(s) for s in ((5, 6), (6, 9), (9, 6))])
    inner = Task()
    inner.kernels, inner.block = t.kernels, block
    a, u, d = block.args
    t.function(
        "block",
        block,
        [inner.pointwise("add", a, inner.matmul(inner.pointwise("relu", inner.matmul(a, u)), d))],
    )
    for _ in range(2):
        (x,) = t.call("block", [x, up, down], [TensorType.of((5, 6))])
    return t.finish(x)


def mlp_eager(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + torch.relu(x @ up) @ down
    return x


def sharded() -> ModuleOp:
    """Four ranks: every collective, in dims that need packing and dims that do not.

    y0 = relu(x @ w1) @ w2, tensor parallel and data parallel; y1 = 2 y0 through reduce_scatter and
    all_to_all; y2 the sum over data of rank_index, spread.
    """
    data, tensor = 2, 2
    t = Task("data=2,tensor=2")
    x = t.argument("input", "x", (8, 6))
    w1 = t.argument("parameter", "w1", (6, 10 // tensor), Placement.of(data=B, tensor=Split(1)))
    w2 = t.argument("parameter", "w2", (10 // tensor, 6), Placement.of(data=B, tensor=Split(0)))
    chunk = t.add(comm.LocalChunkOp.make([x], [TensorType.of((4, 6))], axis="data", dim=0))
    h = t.pointwise("relu", t.matmul(chunk, w1))
    partial = t.matmul(h, w2)
    reduced = t.start(comm.AllReduceOp, partial, (4, 6), axis="tensor", fn="sum")
    scattered = t.start(comm.ReduceScatterOp, partial, (4, 3), axis="tensor", fn="sum", dim=1)
    r, s = t.wait(reduced), t.wait(scattered)
    y0 = t.collective(comm.AllGatherOp, r, (8, 6), axis="data", dim=0)
    columns = t.collective(comm.AllGatherOp, s, (4, 6), axis="tensor", dim=1)
    both = t.pointwise("add", columns, r)
    there = t.collective(comm.AllToAllOp, both, (8, 3), axis="data", split_dim=1, concat_dim=0)
    back = t.collective(comm.AllToAllOp, there, (4, 6), axis="data", split_dim=0, concat_dim=1)
    y1 = t.collective(comm.AllGatherOp, back, (8, 6), axis="data", dim=0)
    place = t.add(comm.RankIndexOp.make([], [TensorType.of((), "i64")], axis="data"))
    y2 = t.collective(comm.AllReduceOp, place, (), axis="data", fn="max")
    del data
    return t.finish(y0, y1, y2)


def sharded_eager(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.relu(x @ w1) @ w2
    return y, 2 * y, torch.tensor(1)


from irc.dialects.placement import B, Split  # noqa: E402


def rank_environment(rank: int, world: int, store: str) -> dict[str, str]:
    """What a launcher sets for one process."""
    return {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "IRC_STORE": store, "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
