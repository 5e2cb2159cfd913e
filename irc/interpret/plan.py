"""The interpreter of a plan: all ranks in one process, on real arenas at the planned offsets.

It follows plan.json alone for memory: a value that another overwrites too early gives wrong numbers
here, as it would in the executor. Kernels run by their IR of level task. What must not be read is
made not-a-number: fresh arenas, and outputs of collectives until their wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import torch

from irc.dialects.task import KernelOp
from irc.interpret.collectives import COLLECTIVES
from irc.interpret.task import run_kernel
from irc.plan.schema import Action, Call, Copy, Kernels, Library, Plan, Start, Wait
from irc.runtime import library
from irc.runtime.actions import POSITIONAL
from irc.runtime.arguments import input_part
from irc.runtime.dtypes import dtypes
from irc.runtime.frame import Frame, new_frame, new_prepared
from irc.runtime.local_weights import LocalWeights
from irc.runtime.rooms import with_room
from irc.runtime.weights import slice_weights

PlanTrace: TypeAlias = Callable[[str, int, "list[torch.Tensor]"], None]
"""Called with a value's op id, result index, and what each rank holds: copy what you keep."""

GARBAGE = 0xFF
"""Every float format reads these bytes as NaN."""

REDUCE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def run_plan_ranks(
    plan: Plan,
    kernels: Mapping[str, KernelOp],
    inputs: Sequence[torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    *,
    trace: PlanTrace | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Run a plan on all ranks of its mesh.

    Args:
        plan: what every rank runs.
        kernels: level-task IR of the kernels by name.
        inputs: whole inputs in the plan's order.
        weights: whole weights by name; not written to (states go to copies).
        trace: called with every value as it is computed.

    Returns:
        The outputs of each rank.
    """
    run = _Ranks(plan, kernels, inputs, weights, trace)
    for action in (*plan.prepared, *plan.actions):
        run.action(action)
    return [tuple(run.tensor(rank, index).clone() for index in plan.outputs) for rank in run.ranks]


class _Ranks:
    def __init__(
        self,
        plan: Plan,
        kernels: Mapping[str, KernelOp],
        inputs: Sequence[torch.Tensor],
        weights: Mapping[str, torch.Tensor],
        trace: PlanTrace | None,
    ) -> None:
        self.plan, self.kernels, self.trace = plan, kernels, trace
        self.ranks = range(plan.device_mesh.num_ranks)
        self.frames: list[Frame] = []
        for rank in self.ranks:
            parts = slice_weights(plan, weights, rank)
            rooms = {plan.buffers[i].name: plan.buffers[i] for i in plan.weights}
            clones = {
                name: with_room(part, rooms[name].shape) if rooms[name].rows else part.clone()
                for name, part in parts.items()
            }
            own = LocalWeights(plan, clones).by_buffer
            frame = new_frame(plan, {**own, **new_prepared(plan)}, show_all=True)
            frame.arena.fill_(GARBAGE)
            bound = {
                index: input_part(plan, index, rank, value).clone().contiguous()
                for index, value in zip(plan.inputs, inputs, strict=True)
            }
            for index, buffer in enumerate(plan.buffers):
                if buffer.storage == "output":
                    dtype = dtypes()[buffer.dtype]
                    bound[index] = torch.empty(buffer.shape, dtype=dtype)
                    fill_garbage(bound[index])
            frame.bind(bound)
            self.frames.append(frame)
        self.aliases: dict[int, list[int]] = {}
        for index in range(len(plan.buffers)):
            self.aliases.setdefault(plan.root(index), []).append(index)

    def tensor(self, rank: int, index: int) -> torch.Tensor:
        tensor = self.frames[rank].tensors[index]
        assert tensor is not None
        return tensor

    def action(self, action: Action) -> None:
        match action:
            case Kernels():
                for call in action.calls:
                    self._call(call)
            case Library():
                self._library(action)
            case Copy():
                for rank in self.ranks:
                    self.tensor(rank, action.target).copy_(self.tensor(rank, action.source))
            case Start():
                self._spoil(action)
            case Wait():
                start = self.plan.actions[action.start]
                assert isinstance(start, Start)
                self._collective(start)

    def _call(self, call: Call) -> None:
        kernel = self.plan.kernels[call.kernel]
        count = kernel.num_inputs
        for rank in self.ranks:
            flat = [self.tensor(rank, index).view(-1) for index in call.args]
            run_kernel(self.kernels[kernel.name], flat[:count], flat[count:])
        self._report(call.args[count:])

    def _library(self, action: Library) -> None:
        mesh = self.plan.device_mesh
        results = [(self.plan.buffers[i].shape, self.plan.buffers[i].dtype) for i in action.outputs]
        for rank in self.ranks:
            inputs = [self.tensor(rank, i) for i in action.inputs]
            outputs = [self.tensor(rank, i) for i in action.outputs]
            if action.op in POSITIONAL:
                axis = action.attrs["axis"]
                place, size = mesh.coordinates(rank)[axis], mesh.size(axis)
                POSITIONAL[action.op](action.attrs, place, size, inputs, outputs[0])
                continue
            values = library.run(action.op, action.attrs, inputs, results)
            for out, value in zip(outputs, values, strict=True):
                out.copy_(value)
        self._report(action.outputs)

    def _spoil(self, start: Start) -> None:
        # A library may write these at any time from now on.
        written = {*start.held} - {*start.inputs}
        for rank in self.ranks:
            for index in written:
                fill_garbage(self.tensor(rank, index))

    def _collective(self, start: Start) -> None:
        # Read as late as it may be, so that whoever overwrote the input early is found.
        self._spoil(start)
        for group in self.plan.device_mesh.groups(start.attrs["axis"]):
            held = [[self.tensor(rank, index) for rank in group] for index in start.inputs]
            for rank, value in zip(group, exchange(start, *held), strict=True):
                self.tensor(rank, start.outputs[0]).copy_(value)
        self._report(start.outputs)

    def _report(self, written: Sequence[int]) -> None:
        if self.trace is None:
            return
        for owner in written:
            for index in self.aliases[self.plan.root(owner)]:
                name, _, result = self.plan.buffers[index].source.rpartition("#")
                if name:
                    self.trace(name, int(result), [self.tensor(rank, index) for rank in self.ranks])


def exchange(
    start: Start, sources: Sequence[torch.Tensor], *marks: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return what a collective gives each rank of one group; marks: of rows that go, that come."""
    size, attrs = len(sources), start.attrs
    match start.op:
        case "comm.all_reduce":
            return [reduce(REDUCE[attrs["fn"]], sources)] * size
        case "comm.all_gather":
            return [torch.cat([*sources], attrs["dim"])] * size
        case "comm.reduce_scatter":
            return [*reduce(REDUCE[attrs["fn"]], sources).chunk(size, attrs["dim"])]
        case "comm.all_to_all":
            parts = [source.chunk(size, attrs["split_dim"]) for source in sources]
            return [torch.cat([p[r] for p in parts], attrs["concat_dim"]) for r in range(size)]
        case "comm.dispatch_rows" | "comm.combine_rows" as op:
            return COLLECTIVES[op](attrs, list(sources), *map(list, marks))
        case "comm.permute":
            senders = {target: source for source, target in enumerate(attrs["targets"])}
            return [
                sources[senders[r]] if r in senders else torch.zeros_like(sources[r])
                for r in range(size)
            ]
        case _:
            raise KeyError(start.op)


def fill_garbage(tensor: torch.Tensor) -> None:
    """Overwrite a contiguous tensor with bytes that no computation gives."""
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).fill_(GARBAGE)
