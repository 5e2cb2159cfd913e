"""What stands around kernels on level task: launches, views of memory, copies."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    FlatSymbolRefAttr,
)
from xdsl.irdl import (
    prop_def,
)
from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import (
    operand,
    size_field,
    sizes_field,
)
from irc.dialects.flow import FlowOp, flow_op, tensor


@flow_op
class LaunchOp(FlowOp):
    """Run a kernel on contiguous tensors; results are new tensors."""

    name = "task.launch"
    kernel = prop_def(FlatSymbolRefAttr)

    @property
    def kernel_name(self) -> str:
        """The symbol of the kernel."""
        return self.kernel.root_reference.data

    def verify_(self) -> None:
        for value in (*self.inputs, *self.outputs):
            tensor(value)


@flow_op
class ViewOp(FlowOp):
    """The memory of a contiguous tensor seen with other sizes, strides and offset (in elements)."""

    name = "task.view"
    x = operand(0)
    offset = size_field()
    strides = sizes_field()

    def verify_(self) -> None:
        source, result = tensor(self.x), tensor(self.outputs[0])
        if len(self.strides) != result.ndim:
            raise VerifyException(f"view has other strides than dims: {result}")
        if source.dtype != result.dtype:
            raise VerifyException("a view keeps the dtype")


@flow_op
class CopyOp(FlowOp):
    """The elements of a tensor in other memory: the caller's, or dense memory of their own.

    ```mlir
    %y = task.copy(%x) {loc = "unknown"} : (!flow.tensor<[4, 6], f32>) -> !flow.tensor<[4, 6], f32>
    ```
    """

    name = "task.copy"
    x = operand(0)

    def verify_(self) -> None:
        if tensor(self.x) != tensor(self.outputs[0]):
            raise VerifyException(f"a copy of {self.x.type} is no {self.outputs[0].type}")
