"""Pass ``verify-pins``: on one rank constraints are checked, though nothing is placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.constraints.pins import constraint_text, parse_constraints
from irc.constraints.resolve import resolve
from irc.constraints.uses import applied, parse_uses
from irc.sharding.mesh import parse_mesh


@dataclass(frozen=True)
class VerifyPinsPass(ModulePass):
    """Refuse constraints that name nothing of the program, or an axis that the mesh lacks.

    A mesh whose axes have a size of 1 each has one rank, so no search places anything. A script
    that is written for several ranks then finds its mistakes here, and not where it runs on many.
    The program stays as it is.

    Options: ``mesh`` names the axes; ``pins`` are constraints, as text or the name of a file, as
    pass ``auto-shard`` takes them.

    Run: verify-pins{mesh="data=1" pins="x = [data = S(0)]"}

    Before:
    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"})
        -> !flow.tensor<[4], f32> {
      %y = flow.pointwise(%x) {fn = "neg", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %y : !flow.tensor<[4], f32>
    }
    ```

    After:
    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"})
        -> !flow.tensor<[4], f32> {
      %y = flow.pointwise(%x) {fn = "neg", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %y : !flow.tensor<[4], f32>
    }
    ```
    """

    name = "verify-pins"
    level: ClassVar[str] = "flow"

    mesh: str = ""
    pins: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Check the constraints; :func:`irc.constraints.resolve.resolve` says what it raises."""
        text, source = constraint_text(self.pins)
        mesh = parse_mesh(self.mesh)
        uses = applied(op, mesh, parse_uses(text, source))
        resolve(op, mesh, (*parse_constraints(text, source), *uses))
