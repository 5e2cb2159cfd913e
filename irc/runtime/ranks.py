"""What the plans of one model share on the processes of a run: groups, weights, placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from irc.dialects.placement import Mesh, Placement
from irc.plan.load import LoadedPlan
from irc.plan.schema import Plan, placement_of
from irc.runtime.agreement import agree_on_weights, is_checked
from irc.runtime.call_agreement import Call, compare_call
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.join import join_processes, shared_plan
from irc.runtime.local_weights import WeightCopy, version_of
from irc.runtime.prepared import Store
from irc.runtime.same_program import Marks
from irc.runtime.segments import LoadSegments, load_segments
from irc.runtime.weights import slice_weights

WEIGHTS = ("parameter", "buffer")
"""Roles of what a module holds by name; a constant is one program's own."""


@dataclass
class Ranks:
    """The processes of a mesh, for the plans of one model.

    Every plan after the first finds the weights where the first has put them (its planner is given
    ``placements`` as pins), so that each rank holds one part of each weight, whichever plan reads.

    Attributes:
        mesh: over all processes.
        rank: of this one.
        communicator: starts collectives of this mesh.
        placements: of the parameters and buffers that a plan has loaded, by name.
        copies: contiguous copies of this rank's parts, where the parts themselves are not so.
        store: what is prepared of this rank's parts.
        wholes: the weights that parts were taken of, and torch's count of writes to each when the
            ranks compared them last.
    """

    mesh: Mesh
    rank: int
    communicator: TorchCommunicator
    placements: dict[str, Placement] = field(default_factory=dict[str, Placement])
    copies: dict[str, WeightCopy] = field(default_factory=dict[str, WeightCopy])
    store: Store = field(default_factory=Store)
    wholes: dict[str, tuple[torch.Tensor, int | None]] = field(
        default_factory=dict[str, "tuple[torch.Tensor, int | None]"]
    )

    @staticmethod
    def of(mesh: Mesh) -> Ranks:
        """Join the processes of a mesh; every one of them calls it.

        Raises:
            IrcError: ``world-size``.
        """
        rank = join_processes(mesh)
        return Ranks(mesh, rank, TorchCommunicator.of(mesh, rank))

    def are_written(self) -> bool:
        """True where a parameter was written to since the ranks compared it."""
        return any(version_of(whole) != seen for whole, seen in self.wholes.values())

    def compare(self) -> None:
        """Compare the parameters between ranks again; all call it.

        Raises:
            IrcError: ``state-mismatch``.
        """
        agree_on_weights({name: whole for name, (whole, _) in self.wholes.items()})
        for name, (whole, _) in self.wholes.items():
            self.wholes[name] = whole, version_of(whole)

    def agree(self, call: Call, ready: int, *, goes_on: bool = False) -> None:
        """Compare a call between ranks, and parameters that were written to; all call it.

        Args:
            call: what this rank calls.
            ready: which compiled version this rank has for the call, -1 for none.
            goes_on: the call may go on meanwhile, as far as its first collective.

        Raises:
            IrcError: ``input-mismatch``, ``state-mismatch``.
        """
        if ready >= 0 and not is_checked():
            return
        self.communicator.end_before()
        finish = compare_call(call, ready=ready, due=self.are_written())

        def end() -> None:
            if finish():
                self.compare()

        if goes_on:
            self.communicator.before = end
        else:
            end()

    def executor(
        self,
        make: Callable[[], LoadedPlan],
        tensors: Mapping[str, torch.Tensor],
        own: Marks,
        *,
        load: LoadSegments = load_segments,
        parts: Mapping[str, torch.Tensor] | None = None,
        fed: Callable[[LoadedPlan], LoadedPlan] | None = None,
    ) -> Executor:
        """Compile on rank 0, send the plan to all, and return what runs it on this rank.

        Args:
            make: compiles; runs on rank 0 only. Where it fails there, the other ranks fail too.
            tensors: whole weights by name, of which this rank takes its parts.
            own: of what this rank would compile (:func:`irc.runtime.same_program.marks_of`).
            load: compiles the kernels.
            parts: what this rank holds of some already; these have no whole that would count.
            fed: changes the plan so that it takes of inputs what a rank is given.
        """
        loaded = shared_plan(make, self.rank, own)
        plan = loaded.plan
        tensors = {name: t for name, t in tensors.items() if name not in (parts or {})}
        named = {plan.buffers[i].name: i for i in plan.weights if plan.buffers[i].name in tensors}
        agree_on_weights({name: tensors[name] for name in named})
        for name, index in named.items():
            if plan.buffers[index].role in WEIGHTS:
                self.placements[name] = argument_placement(plan, index)
            if plan.buffers[index].role == "parameter":
                self.wholes[name] = tensors[name], version_of(tensors[name])
        return executor_of(
            loaded if fed is None else fed(loaded),
            slice_weights(plan, tensors, self.rank, parts),
            rank=self.rank,
            communicator=self.communicator,
            load=load,
            copies=self.copies,
            store=self.store,
        )


def argument_placement(plan: Plan, index: int) -> Placement:
    """Return how a buffer lies, also where that is whole on every rank."""
    # plan.json writes nothing for a replicated one.
    placed = placement_of(plan.buffers[index])
    return placed if placed.axes else Placement.replicated(plan.device_mesh.names)
