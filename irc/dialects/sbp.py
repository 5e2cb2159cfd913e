"""``sbp``: where a placement changes between a value's producer and a reader (OneFlow's boxing)."""

from __future__ import annotations

from xdsl.ir import Dialect
from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import operand
from irc.dialects.flow import FlowOp, flow_op, tensor
from irc.dialects.types import PlacementAttr


@flow_op
class BoxingOp(FlowOp):
    """The same logical values under another placement; lower-boxing turns it into collectives.

    ```mlir
    %r = sbp.boxing(%x) {loc = "m.py:3"} : (!flow.tensor<[8, 4], f32, [data = P(sum)]>)
        -> !flow.tensor<[8, 4], f32, [data = B]>
    ```
    """

    name = "sbp.boxing"
    x = operand(0)

    def verify_(self) -> None:
        source, result = tensor(self.x), tensor(self.outputs[0])
        if (source.shape, source.dtype) != (result.shape, result.dtype):
            raise VerifyException(
                f"boxing changes {source} to {result}; only the placement may change"
            )
        if source.placement is None or result.placement is None:
            raise VerifyException("boxing needs a placement on both sides")
        if source.placement.names != result.placement.names:
            raise VerifyException(
                f"boxing between meshes {source.placement} and {result.placement}"
            )


Sbp = Dialect("sbp", [BoxingOp], [PlacementAttr])
