"""The cost model that search, simulator and report share: one cluster, one mesh, seconds."""

from __future__ import annotations

from math import prod
from typing import Protocol

from xdsl.ir import Operation

from irc.cluster.topology import Cluster, Collective
from irc.cost.collectives import collective_s
from irc.cost.roofline import roofline_s
from irc.cost.work import local_work
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import ITEM_BYTES
from irc.sharding.boxing import Boxing, LocalShape, Step
from irc.sharding.signatures import NdSignature


class CostModel(Protocol):
    """What a cost model answers; all times are seconds that one rank takes."""

    def op_seconds(self, op: Operation, signature: NdSignature) -> float: ...

    def boxing_seconds(
        self, shape: LocalShape, dtype: str, source: Placement, target: Placement
    ) -> float: ...

    def collective_seconds(self, kind: Collective, num_bytes: float, axis: str) -> float: ...


class ClusterCost:
    """Costs on a cluster: roofline for local work, rings for collectives, copies for the rest.

    Args:
        cluster: The machines; what the mesh does not use of them is not priced.
        mesh: Named axes over their devices.
    """

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster = cluster.fit(mesh)
        self.mesh = mesh
        self.boxing = Boxing(mesh, self)
        self._links = {axis: self.cluster.axis_link(mesh, axis) for axis in mesh.names}

    def op_seconds(self, op: Operation, signature: NdSignature) -> float:
        """Return the time of one op's local program, its own collectives included."""
        total = 0.0
        for work in local_work(op, signature, self.mesh):
            total += roofline_s(
                self.cluster.device, flops=work.flops, num_bytes=work.num_bytes, dtype=work.dtype
            )
            if work.collective is not None and work.axis is not None:
                total += self.collective_seconds(work.collective, work.payload_bytes, work.axis)
        return total

    def collective_seconds(self, kind: Collective, num_bytes: float, axis: str) -> float:
        """Return the time of one collective; see `irc.cost.collectives` for what the bytes are."""
        return collective_s(kind, self._links[axis], num_bytes, self.cluster.device.bytes_per_s)

    def boxing_seconds(
        self, shape: LocalShape, dtype: str, source: Placement, target: Placement
    ) -> float:
        """Return the time of the cheapest path between two placements of a logical shape."""
        return self.boxing.seconds(shape, dtype, source, target)

    def step_seconds(self, step: Step, before: LocalShape, after: LocalShape, dtype: str) -> float:
        """Return the time of one boxing step, from the shapes that a rank holds before and after.

        Ring collectives join and split the outermost dim; elsewhere a copy before (pack) or after
        (unpack) is paid as well.
        """
        held, given = (prod(shape) * ITEM_BYTES[dtype] for shape in (before, after))
        if step.kind == "local_chunk":
            return self._copy_s(given)
        seconds = self.collective_seconds(step.kind, max(held, given), step.axis)
        if step.split_dim is not None and prod(before[: step.split_dim]) > 1:
            seconds += self._copy_s(held)
        if step.concat_dim is not None and prod(after[: step.concat_dim]) > 1:
            seconds += self._copy_s(given)
        return seconds

    def _copy_s(self, num_bytes: float) -> float:
        return roofline_s(self.cluster.device, flops=0.0, num_bytes=2 * num_bytes, dtype="f32")
