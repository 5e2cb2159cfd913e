"""The cost model that search, simulator and report share: one cluster, one mesh, seconds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from math import prod

from xdsl.ir import Attribute, Block

from irc.cluster.interference import Kind
from irc.cluster.topology import COLLECTIVES, Cluster, Collective
from irc.cost.collectives import OWN_MESSAGE_BYTES, SHARED_BYTES, lines, seconds_of
from irc.cost.kernels import computed_in, local_work, op_work, product_work
from irc.cost.permute import permute_s
from irc.cost.rings import ring_seconds
from irc.cost.roofline import roofline_s
from irc.dialects.comm import (
    CollectiveOp,
    DispatchRowsOp,
    LocalChunkOp,
    MarkedRowsOp,
    PermuteOp,
)
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.ops.custom import Work
from irc.ops.shapes import Product
from irc.ops.strategies import RING
from irc.ops.work import (
    VIEWS,
    Traffic,
    bytes_moved,
    factors,
    kernels_of,
    local_bytes,
    local_factors,
)
from irc.sharding.boxing import Boxing, LocalShape, Step
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.signatures import RULE, NdSignature

VIEW_PART = 1e-3
"""A view moves nothing, but among free choices a solver takes any: this part of its bytes is
charged."""


class ClusterCost:
    """Costs on a cluster: roofline for local work, rings for collectives, copies for the rest.

    Args:
        cluster: The machines; what the mesh does not use of them is not priced.
        mesh: Named axes over their devices.
        within: The mesh of a whole run, of which this is one stage's: its ranks are neighbours on
            hosts and links, too. None: the mesh is the whole.
        alone: Price a rank of a host as if the others waited, for a simulator that shares the
            cores itself; otherwise as if all computed, for a search.
    """

    def __init__(
        self, cluster: Cluster, mesh: Mesh, *, within: Mesh | None = None, alone: bool = False
    ) -> None:
        self._whole = whole = within or mesh
        self.cluster = cluster.alone(whole) if alone else cluster.fit(whole)
        self.mesh = mesh
        # Ranks that share a host's processors talk by gloo.
        self.boxing = Boxing(mesh, self, aside=cluster.device.cores > 0)
        self._links = {axis: self.cluster.axis_link(whole, axis) for axis in mesh.names}
        others = (axis for axis in whole.names if axis not in mesh.names)
        self._between = [self.cluster.axis_link(whole, axis) for axis in others]
        self._lines = {
            (kind, axis): lines(kind, self._links[axis], self.cluster.device.bytes_per_s)
            for axis in mesh.names
            for kind in COLLECTIVES
        }

    @cached_property
    def key(self) -> Hashable:
        """What prices depend on: costs of equal keys say the same of everything."""
        return repr(self.cluster), self._whole, self.mesh

    def op_seconds(
        self, op: FlowOp, signature: NdSignature, traffic: Traffic | None = None
    ) -> float:
        """Return the time of one op's local program, its own collectives included.

        Args:
            op: a whole op.
            signature: how it is split.
            traffic: what its kernel moves of it where it is fused; None: it runs alone.
        """
        if op.name in VIEWS:
            placed = zip(op.outputs, signature.results, strict=True)
            held = sum(_num_bytes(local_type(v.type, p, self.mesh)) for v, p in placed)
            return VIEW_PART * held / self.cluster.device.bytes_per_s
        if set(signature.strategy) <= {RULE}:
            if several := kernels_of(op, lambda: local_factors(op, signature, self.mesh)[1]):
                return self._several_seconds(op, several)
            num_bytes = local_bytes(op, signature, self.mesh, traffic)
            work = local_work(self.cluster.device, op, signature, self.mesh)
            seconds = self._seconds(op, work, num_bytes)
            is_inner = traffic is not None and not traffic.launches
            return seconds - self.cluster.device.launch_s if is_inner else seconds
        if RING not in signature.strategy:
            return self._program_seconds(op, signature)
        return ring_seconds(self, op, signature)

    def parts(
        self, op: FlowOp, signature: NdSignature, traffic: Traffic | None = None
    ) -> tuple[float, float] | None:
        """Return the seconds of an op's arithmetic and of its bytes, of which one hides the other.

        None where it is a view, or a program of several kernels.
        """
        if op.name in VIEWS or not set(signature.strategy) <= {RULE}:
            return None
        device = self.cluster.device
        num_bytes = local_bytes(op, signature, self.mesh, traffic)
        work = local_work(device, op, signature, self.mesh)
        return work / device.flops(computed_in(op)), num_bytes / device.bytes_per_s

    def _program_seconds(self, op: FlowOp, signature: NdSignature) -> float:
        program: list[FlowOp] = []
        inputs = Block(
            arg_types=[
                local_type(value.type, placement, self.mesh)
                for value, placement in zip(op.inputs, signature.operands, strict=True)
            ]
        )
        build_local(op, signature, self.mesh, inputs.args, program.append)
        return sum(map(self.local_seconds, program))

    def link_kind(self, axis: str) -> Kind:
        """Return what the collectives of a mesh axis use: links of a node, or its network."""
        return "nic" if self.cluster.crosses_nodes(self._whole, axis) else "link"

    def local_seconds(self, op: FlowOp) -> float:
        """Return the time of one op of level spmd, whose tensors are what one rank holds."""
        if isinstance(op, PermuteOp):
            return self.permute_seconds(op)
        if isinstance(op, MarkedRowsOp):
            return self.exchange_seconds(op)
        if isinstance(op, CollectiveOp):
            return self.start_seconds(op)
        if isinstance(op, LocalChunkOp):
            return self._copy_s(_num_bytes(op.outputs[0].type))
        if op.name in VIEWS:
            held = sum(_num_bytes(value.type) for value in op.outputs)
            return VIEW_PART * held / self.cluster.device.bytes_per_s
        if op.name.startswith("comm."):
            return 0.0
        if several := kernels_of(op, lambda: factors(op)[1]):
            return self._several_seconds(op, several)
        return self._seconds(op, op_work(self.cluster.device, op), bytes_moved(op))

    def _several_seconds(self, op: FlowOp, several: Sequence[Work]) -> float:
        """Return the time of kernels one behind the other that compute one op."""
        device, dtype = self.cluster.device, computed_in(op)
        total = 0.0
        for work, num_bytes in several:
            if isinstance(work, Product):
                work = product_work(device, work, dtype)
            total += self._seconds(op, work, num_bytes)
        return total

    def _seconds(self, op: FlowOp, work: float, num_bytes: float) -> float:
        device, dtype = self.cluster.device, computed_in(op)
        return roofline_s(device, flops=work, num_bytes=num_bytes, dtype=dtype)

    def collective_seconds(self, kind: Collective, num_bytes: float, axis: str) -> float:
        """Return the time of one collective; see `irc.cost.collectives` for what the bytes are."""
        return seconds_of(self._lines[kind, axis], num_bytes)

    def received_seconds(self, kind: Attribute, placement: Placement) -> float:
        """Return what a rank takes to receive its part of a value from another stage.

        Args:
            kind: of the whole value.
            placement: how it is to lie on the mesh; on all ranks alike.
        """
        own = _num_bytes(local_type(kind, placement, self.mesh))
        return max((own / link.bytes_per_s for link in self._between), default=0.0)

    def start_seconds(self, op: CollectiveOp, *, within_bytes: int | None = None) -> float:
        """Return the time of a collective as it runs: with what it copies before and after.

        Args:
            op: level spmd.
            within_bytes: of the bucket that it would be in (:meth:`joined_bytes`); None: it is in
                the one that it says.
        """
        kind = collective_kind(op)
        held, result_bytes = _num_bytes(op.x.type), _num_bytes(op.result_tensor)
        before, after = tensor(op.x).static_shape(), op.result_tensor.static_shape()
        attrs, dim = op.plain, op.plain.get("dim")
        own = max(held, result_bytes)
        whole = attrs.get("bucket_bytes", own) if within_bytes is None else within_bytes
        seconds = self.joined_seconds(kind, own, whole, op.axis)
        split = attrs.get("split_dim", dim if kind == "reduce_scatter" else None)
        joined = attrs.get("concat_dim", dim if kind == "all_gather" else None)
        if split is not None and prod(before[:split]) > 1:
            seconds += self._copy_s(held)
        if joined is not None and prod(after[:joined]) > 1:
            seconds += self._copy_s(result_bytes)
        return seconds

    def joined_bytes(self, kind: Collective, sizes: Iterable[int], axis: str) -> int:
        """Return the bytes by which those of a bucket are priced that go as one message.

        On GPUs those of all, and so where processes of one host copy what is gathered from memory
        that they share; of others among them, of those that are small.
        """
        sizes = list(sizes)
        if not self.cluster.device.cores or self._is_shared(kind, sum(sizes), axis):
            return sum(sizes)
        return sum(size for size in sizes if size <= OWN_MESSAGE_BYTES)

    def _is_shared(self, kind: Collective, bucket_bytes: float, axis: str) -> bool:
        # Of links on several levels some are between hosts, which share no memory.
        on_one_host = self._links[axis].direct and len(self.cluster.links) == 1
        return on_one_host and kind == "all_gather" and bucket_bytes >= SHARED_BYTES

    def joined_seconds(
        self, kind: Collective, num_bytes: float, bucket_bytes: float, axis: str
    ) -> float:
        """Return the part that a collective has of the time of its bucket.

        On GPUs a library begins all of a bucket as one (`ncclGroupStart`). Processes of one host
        gather it from memory that they share if it is large. Else they join small messages by
        copies; many of them do not join sums that are scattered.
        """
        on_host = self.cluster.device.cores > 0
        by_itself = num_bytes > OWN_MESSAGE_BYTES
        by_itself |= kind == "reduce_scatter" and not self._links[axis].direct
        copies = on_host and not self._is_shared(kind, bucket_bytes, axis)
        if not num_bytes or num_bytes == bucket_bytes or (copies and by_itself):
            return self.collective_seconds(kind, num_bytes, axis)
        part = num_bytes / bucket_bytes
        seconds = part * self.collective_seconds(kind, bucket_bytes, axis)
        return seconds + (2 * self._copy_s(num_bytes) if copies else 0.0)

    def permute_seconds(self, op: PermuteOp, *, num_bytes: int | None = None) -> float:
        """Return the time of one permute, beside nothing else: see `irc.cost.permute`.

        Args:
            op: level spmd.
            num_bytes: of each message; None: what the op sends.
        """
        num_bytes = _num_bytes(op.result_tensor) if num_bytes is None else num_bytes
        copy = self.cluster.device.bytes_per_s
        return permute_s(op.targets, self._links[op.axis], num_bytes, copy)

    def exchange_seconds(self, op: MarkedRowsOp) -> float:
        """Return the time of an exchange of rows: of as many as are expected to be marked.

        Every rank knows what comes. Rows are packed and unpacked or added up; a dispatch also
        writes zeros for those that do not come.
        """
        axis, fill = op.axis, op.fill
        rows = _num_bytes(op.chunks)
        moved = self.collective_seconds("all_to_all", fill * rows, axis)
        zeros = rows if isinstance(op, DispatchRowsOp) else fill * rows
        copied = (4 * fill * rows + zeros) / 2
        return moved + self._copy_s(copied)

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
        held, result_bytes = (prod(shape) * ITEM_BYTES[dtype] for shape in (before, after))
        if step.kind == "local_chunk":
            return self._copy_s(result_bytes)
        seconds = self.collective_seconds(step.kind, max(held, result_bytes), step.axis)
        if step.split_dim is not None and prod(before[: step.split_dim]) > 1:
            seconds += self._copy_s(held)
        if step.concat_dim is not None and prod(after[: step.concat_dim]) > 1:
            seconds += self._copy_s(result_bytes)
        return seconds

    def _copy_s(self, num_bytes: float) -> float:
        return roofline_s(self.cluster.device, flops=0.0, num_bytes=2 * num_bytes, dtype="f32")


def collective_kind(op: CollectiveOp) -> Collective:
    """Return the kind by which a collective is priced."""
    return next(kind for kind in COLLECTIVES if op.name == f"comm.{kind}")


def _num_bytes(kind: Attribute) -> int:
    """Return the bytes of a tensor type; an opaque value has none that count."""
    if not isinstance(kind, TensorType):
        return 0
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]
