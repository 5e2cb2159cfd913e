"""A pass for irc in a package of its own: exact GELU becomes the tanh form."""

import sys
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.flow import PointwiseOp, carry


@dataclass(frozen=True)
class ApproximateGeluPass(ModulePass):
    """Replace ``gelu`` by ``gelu_tanh``, which needs no erf (Hendrycks & Gimpel, arXiv:1606.08415).

    The error is below 5e-4 everywhere, so it is a choice of the user, not of irc.

    Before:
    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      %y = flow.pointwise(%x) {fn = "gelu"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %y : !flow.tensor<[4], f32>
    }
    ```
    After:
    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      %y = flow.pointwise(%x) {fn = "gelu_tanh"}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %y : !flow.tensor<[4], f32>
    }
    ```
    """

    name = "approximate-gelu"
    level: ClassVar[str] = "flow"
    after: ClassVar[str] = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every exact GELU of the module."""
        exact = [o for o in op.walk() if isinstance(o, PointwiseOp) and o.fn == "gelu"]
        for old in exact:
            new = PointwiseOp.make(old.inputs, [old.outputs[0].type], fn="gelu_tanh")
            carry(new, old)
            assert old.parent is not None
            old.parent.insert_op_before(new, old)
            old.outputs[0].replace_all_uses_with(new.outputs[0])
            old.detach()
            old.erase()
        # The program goes to standard output; what a pass says goes beside it.
        print(f"approximate-gelu: replaced {len(exact)} gelu", file=sys.stderr)
