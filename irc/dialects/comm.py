"""``comm``: collectives of level spmd, each over one mesh axis, as start and wait.

A rank's group along an axis is the ranks that differ from it on that axis only. ``start`` gives a
``!comm.pending<T>``; the value exists after ``wait``. So overlap is visible in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import (
    integer_field,
    integers_field,
    number_field,
    operand,
    opt_integer_field,
    opt_text_field,
    text_field,
)
from irc.dialects.flow import FlowOp, flow_op, tensor
from irc.dialects.types import TensorType, tensor_type


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """A tensor that a collective in flight will give: ``!comm.pending<!flow.tensor<[4], f32>>``."""

    name = "comm.pending"
    tensor: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return (tensor_type(parser.parse_type()),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.tensor)


CHUNK = "chunk"
"""Of a collective of a piece, which it is: ``0 of 4``. It is not cut again, and not joined."""


class CollectiveOp(FlowOp):
    """Base of the collectives; ``axis`` names the mesh axis whose group takes part.

    Those of one ``bucket`` are one call of the library, which begins when the last of its
    ``bucket_size`` has started and is waited for by the first wait of one of them; nothing is
    copied. ``bucket_bytes`` are those by which they are priced: of all that go as one message.
    """

    x = operand(0)
    axis = text_field()
    bucket = opt_text_field()
    bucket_size = opt_integer_field()
    bucket_bytes = opt_integer_field()

    @property
    def result_tensor(self) -> TensorType:
        """The type that waiting gives."""
        kind = self.outputs[0].type
        assert isinstance(kind, PendingType)
        return tensor_type(kind.tensor)

    def verify_(self) -> None:
        if not isinstance(self.outputs[0].type, PendingType):
            raise VerifyException(f"{self.name} gives !comm.pending")
        if tensor(self.x).dtype != self.result_tensor.dtype:
            raise VerifyException(f"{self.name} changes the dtype")
        of_bucket = [self.bucket, self.bucket_size, self.bucket_bytes]
        if None in of_bucket and any(each is not None for each in of_bucket):
            raise VerifyException(f"{self.name} lacks the bucket, its size or its bytes")


@flow_op
class AllReduceOp(CollectiveOp):
    """Every rank of the group gets the reduction (``fn``: sum, max, min) of all inputs.

    ```mlir
    %p = comm.all_reduce(%x) {axis = "tensor", fn = "sum", loc = "m.py:3"}
        : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
    %r = comm.wait(%p) {loc = "m.py:3"}
        : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
    ```
    """

    name = "comm.all_reduce"
    fn = text_field()


@flow_op
class AllGatherOp(CollectiveOp):
    """Every rank gets the inputs of the group, joined along ``dim`` in group order."""

    name = "comm.all_gather"
    dim = integer_field()


@flow_op
class ReduceScatterOp(CollectiveOp):
    """Rank r of the group gets chunk r along ``dim`` of the reduction (``fn``) of all inputs."""

    name = "comm.reduce_scatter"
    fn = text_field()
    dim = integer_field()


@flow_op
class AllToAllOp(CollectiveOp):
    """Rank r sends chunk s along ``split_dim`` to rank s, joins what comes along ``concat_dim``."""

    name = "comm.all_to_all"
    split_dim = integer_field()
    concat_dim = integer_field()


class MarkedRowsOp(CollectiveOp):
    """Base of the collectives that move only the rows that bools ``[ranks, rows]`` mark.

    The second operand marks the rows that go to each rank, the third those that come from each:
    line s of what comes to rank r is line r of what goes from rank s. Both are known before, so
    that nothing is asked of other ranks and the rows begin to travel at once.

    Shapes are static and every marking is right, while only marked rows travel. ``fill`` is the
    share of rows that are expected to: the price reads it, the meaning does not.
    """

    going = operand(1)
    coming = operand(2)
    fill = number_field()

    @property
    def chunks(self) -> TensorType:
        """The side that has a chunk of rows for each rank, [ranks, rows, ..]."""
        return max(tensor(self.x), self.result_tensor, key=lambda kind: kind.ndim)

    @property
    def own(self) -> TensorType:
        """The other side, [rows, ..]."""
        return min(tensor(self.x), self.result_tensor, key=lambda kind: kind.ndim)

    def verify_(self) -> None:
        CollectiveOp.verify_(self)
        if len(self.inputs) != 3:
            raise VerifyException(f"{self.name} takes rows, and marks of what goes and what comes")
        if self.own.shape != self.chunks.shape[1:] or self.own.ndim < 1:
            raise VerifyException(f"{self.name} gives {self.result_tensor}")
        for marks in map(tensor, self.inputs[1:]):
            if marks.dtype != "i1" or marks.shape != self.chunks.shape[:2]:
                raise VerifyException(f"{self.name} marks rows by bools, [ranks, rows]")


@flow_op
class DispatchRowsOp(MarkedRowsOp):
    """Rank r sends to rank s those of its rows that line s of the marks names.

    Chunk s of the result is what rank s sent, each row in its place; others are zeros.

    ```mlir
    %p = comm.dispatch_rows(%x, %going, %coming) {axis = "expert", fill = 0.25 : f64,
        loc = "m.py:3"}
        : (!flow.tensor<[8, 16], f32>, !flow.tensor<[4, 8], i1>, !flow.tensor<[4, 8], i1>)
        -> !comm.pending<!flow.tensor<[4, 8, 16], f32>>
    ```
    """

    name = "comm.dispatch_rows"


@flow_op
class CombineRowsOp(MarkedRowsOp):
    """Rank r sends the marked rows of chunk s to rank s, which adds up what comes for each place.

    Ranks are added in their order, so the result is the same in every run.
    """

    name = "comm.combine_rows"


@flow_op
class PermuteOp(CollectiveOp):
    """Rank r of the group sends its whole input to rank ``targets[r]``, to nobody where that is -1.

    A rank that nobody sends to gets zeros. Each rank receives at most once.

    ```mlir
    %p = comm.permute(%x) {axis = "seq", targets = array<i64: 1, 2, 0>, loc = "m.py:3"}
        : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
    ```
    """

    name = "comm.permute"
    targets = integers_field()

    def verify_(self) -> None:
        CollectiveOp.verify_(self)
        if tensor(self.x).shape != self.result_tensor.shape:
            raise VerifyException("comm.permute changes the shape")
        targets = self.targets
        reached = [target for target in targets if target != -1]
        if wrong := [target for target in reached if not 0 <= target < len(targets)]:
            raise VerifyException(f"comm.permute of {len(targets)} ranks sends to rank {wrong[0]}")
        if twice := [target for target in reached if reached.count(target) > 1]:
            raise VerifyException(f"comm.permute sends twice to rank {twice[0]}")


@flow_op
class WaitOp(FlowOp):
    """Wait for a collective and give its value."""

    name = "comm.wait"
    pending = operand(0)

    def verify_(self) -> None:
        kind = self.pending.type
        if not isinstance(kind, PendingType) or kind.tensor != self.outputs[0].type:
            raise VerifyException(f"wait of {kind} gives {self.outputs[0].type}")


@flow_op
class LocalChunkOp(FlowOp):
    """Chunk r along ``dim``, r the rank's position on ``axis``: B to S, without communication."""

    name = "comm.local_chunk"
    x = operand(0)
    axis = text_field()
    dim = integer_field()

    def verify_(self) -> None:
        tensor(self.x)


@flow_op
class RankIndexOp(FlowOp):
    """The rank's position on a mesh axis, as an i64 scalar tensor."""

    name = "comm.rank_index"
    axis = text_field()

    def verify_(self) -> None:
        if self.outputs[0].type != TensorType.of((), "i64"):
            raise VerifyException("comm.rank_index gives !flow.tensor<[], i64>")


Comm = Dialect(
    "comm",
    [
        AllReduceOp,
        AllGatherOp,
        ReduceScatterOp,
        AllToAllOp,
        DispatchRowsOp,
        CombineRowsOp,
        PermuteOp,
        WaitOp,
        LocalChunkOp,
        RankIndexOp,
    ],
    [PendingType],
)
