"""Pass ``pack-quantized``: products of quantised operands run on the integers themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, FlowOp, PointwiseOp, ShapeOp, carry, loc_of, tensor
from irc.dialects.windows import ConvolutionOp
from irc.kernels.holds import is_unread, require_static
from irc.kernels.quantized.contract import packed_product, weight_product
from irc.kernels.quantized.convolution import ChannelsLast, packed_convolution
from irc.kernels.quantized.dequantized import literal
from irc.kernels.schedule import require_target
from irc.kernels.weights.fixed import Fixed


@dataclass(frozen=True)
class PackQuantizedPass(ModulePass):
    """Rewrite contractions and convolutions of dequantised values.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[2, 8], f32> {role = "input", name = "x"},
        %q: !flow.tensor<[16, 8], i8> {role = "parameter", name = "q"},
        %s: !flow.tensor<[1, 1], f32> {role = "parameter", name = "s"})
        -> !flow.tensor<[2, 16], f32> {
      %0 = flow.pointwise(%q) {fn = "cast", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[16, 8], i8>) -> !flow.tensor<[16, 8], f32>
      %1 = flow.pointwise(%0, %s) {fn = "mul", loc = "m.py:3", id = "n1"}
          : (!flow.tensor<[16, 8], f32>, !flow.tensor<[1, 1], f32>) -> !flow.tensor<[16, 8], f32>
      %2 = flow.contract(%x, %1) {spec = "mk,nk->mn", loc = "m.py:4", id = "n2"}
          : (!flow.tensor<[2, 8], f32>, !flow.tensor<[16, 8], f32>) -> !flow.tensor<[2, 16], f32>
      func.return %2 : !flow.tensor<[2, 16], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[2, 8], f32> {role = "input", name = "x"},
        %q: !flow.tensor<[16, 8], i8> {role = "parameter", name = "q"},
        %s: !flow.tensor<[1, 1], f32> {role = "parameter", name = "s"})
        -> !flow.tensor<[2, 16], f32> {
      %0 = flow.reshape(%q) {loc = "m.py:4", id = "p0_2_0"}
          : (!flow.tensor<[16, 8], i8>) -> !flow.tensor<[1, 16, 8], i8>
      %1 = flow.transpose(%0) {perm = array<i64: 0, 2, 1>, loc = "m.py:4", id = "p0_2_1"}
          : (!flow.tensor<[1, 16, 8], i8>) -> !flow.tensor<[1, 8, 16], i8>
      %2 = flow.reshape(%s) {loc = "m.py:4", id = "p0_2_2"}
          : (!flow.tensor<[1, 1], f32>) -> !flow.tensor<[], f32>
      %3 = flow.broadcast(%2) {loc = "m.py:4", id = "p0_2_3"}
          : (!flow.tensor<[], f32>) -> !flow.tensor<[16, 1], f32>
      %4 = flow.reshape(%3) {loc = "m.py:4", id = "p0_2_4"}
          : (!flow.tensor<[16, 1], f32>) -> !flow.tensor<[1, 16, 1], f32>
      %5 = flow.transpose(%4) {perm = array<i64: 0, 2, 1>, loc = "m.py:4", id = "p0_2_5"}
          : (!flow.tensor<[1, 16, 1], f32>) -> !flow.tensor<[1, 1, 16], f32>
      %6 = flow.packed_contract(%x, %1, %5) {bits = 8 : i64, loc = "m.py:4", id = "n2"}
          : (!flow.tensor<[2, 8], f32>, !flow.tensor<[1, 8, 16], i8>,
             !flow.tensor<[1, 1, 16], f32>) -> !flow.tensor<[2, 16], f32>
      func.return %6 : !flow.tensor<[2, 16], f32>
    }
    ```

    A weight that is ``(q - zero) * scale`` is read as the integers that it is, from panels that are
    packed once, and scaled in registers. Where both sides are dequantised bytes, the sum runs in
    integers and the zero points are corrected by sums of the weight.

    It declines where scales change along what is summed (other than in groups of the weight),
    where the weight is not fixed, and on targets other than the CPU, unless ``weights_only`` asks
    for the first kind alone.
    """

    name = "pack-quantized"
    level: ClassVar[str] = "spmd"

    target: str = "cpu"
    weights_only: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target)
        if self.target != "cpu" and not self.weights_only:
            return
        fixed = Fixed(op)
        for number, func in enumerate(op.body.block.ops):
            if isinstance(func, FuncOp) and not func.is_declaration:
                require_static(func)
                _Rewrite(func, fixed, f"p{number}_", self.weights_only).run()


@dataclass
class _Rewrite:
    """The state of one function.

    Attributes:
        images: convolutions' results, and what follows them pointwise.
        integers: values that are made of integer sums pointwise.
    """

    func: FuncOp
    fixed: Fixed
    prefix: str
    weights_only: bool = False
    images: ChannelsLast = field(default_factory=ChannelsLast)
    integers: set[SSAValue] = field(default_factory=set[SSAValue])

    def run(self) -> None:
        """Rewrite the function in place."""
        block = self.func.body.block
        for number, op in enumerate(list(block.ops)):
            if not isinstance(op, FlowOp):
                continue
            b = FlowBuilder(block, f"{self.prefix}{number}_", before=op)
            b.loc = loc_of(op)
            replacement = self._found(b, op)
            if replacement is None:
                if isinstance(op, ShapeOp) and op.x in self.integers:
                    self.integers.add(op.outputs[0])
                continue
            carry(replacement.owner, op)  # type: ignore[arg-type]  # an op has just made it
            op.outputs[0].replace_all_uses_with(replacement)
            self.integers.add(replacement)
            op.detach()
            op.erase()
        for op in reversed(list(block.ops)):
            if is_unread(op):
                op.detach()
                op.erase()

    def _found(self, b: FlowBuilder, op: FlowOp) -> SSAValue | None:
        match op:
            case ContractOp() if self.weights_only:
                return weight_product(b, op, self.fixed)
            case _ if self.weights_only:
                return None
            case ContractOp():
                return packed_product(b, op, self.fixed)
            case ConvolutionOp():
                image = packed_convolution(b, op, self.images, self.fixed)
                return None if image is None else self.images.turn(b, image)
            case PointwiseOp() if any(value in self.integers for value in op.inputs):
                self._reciprocal(b, op)
                self._narrowing(b, op)
                replacement = self.images.pointwise(b, op)
                if replacement is None:
                    self.integers.add(op.outputs[0])
                return replacement
            case _:
                return None

    def _narrowing(self, b: FlowBuilder, op: PointwiseOp) -> None:
        """Clamped floats become bytes by way of i32, which vectors convert at once."""
        clamp = self.images.twins.get(op.a, op.a).owner
        if op.fn != "cast" or tensor(op.outputs[0]).dtype != "u8":
            return
        if isinstance(clamp, PointwiseOp) and clamp.fn in ("minimum", "maximum"):
            wide = b.cast(op.a, "i32")
            assert isinstance(wide.owner, PointwiseOp)
            wide = self.images.pointwise(b, wide.owner) or wide
            self.integers.add(wide)
            op.operands[0] = wide

    def _reciprocal(self, b: FlowBuilder, op: PointwiseOp) -> None:
        """Requantising divides by a literal: multiplied by its reciprocal, off by one at ties."""
        divisor = literal(op.b) if op.fn == "div" else None
        if divisor and tensor(op.outputs[0]).dtype == "f32" and op.a in self.integers:
            op.properties["fn"] = type(op.properties["fn"])("mul")  # type: ignore[call-arg]  # a string
            op.operands[1] = b.scalar(1.0 / divisor, "f32")
