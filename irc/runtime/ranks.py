"""What the plans of one model share on the processes of a run: groups, weights, placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from irc.dialects.placement import Mesh, Placement
from irc.plan.load import LoadedPlan
from irc.plan.schema import Plan, placement_of
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.join import join_processes, shared_plan
from irc.runtime.local_weights import WeightCopy
from irc.runtime.prepared import Store
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
    """

    mesh: Mesh
    rank: int
    communicator: TorchCommunicator
    placements: dict[str, Placement] = field(default_factory=dict[str, Placement])
    copies: dict[str, WeightCopy] = field(default_factory=dict[str, WeightCopy])
    store: Store = field(default_factory=Store)

    @staticmethod
    def of(mesh: Mesh) -> Ranks:
        """Join the processes of a mesh; every one of them calls it.

        Raises:
            IrcError: ``world-size``.
        """
        rank = join_processes(mesh)
        return Ranks(mesh, rank, TorchCommunicator.of(mesh, rank))

    def executor(
        self,
        make: Callable[[], LoadedPlan],
        tensors: Mapping[str, torch.Tensor],
        *,
        load: LoadSegments = load_segments,
    ) -> Executor:
        """Compile on rank 0, send the plan to all, and return what runs it on this rank.

        Args:
            make: compiles; runs on rank 0 only. Where it fails there, the other ranks fail too.
            tensors: whole weights by name, of which this rank takes its parts.
            load: compiles the kernels.
        """
        loaded = shared_plan(make, self.rank)
        plan = loaded.plan
        for index in plan.weights:
            buffer = plan.buffers[index]
            if buffer.role in WEIGHTS:
                self.placements[buffer.name] = argument_placement(plan, index)
        return executor_of(
            loaded,
            slice_weights(plan, tensors, self.rank),
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
