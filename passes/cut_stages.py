"""Pass ``cut-stages``: which stage of a pipeline computes each op of the entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from irc.constraints.pins import constraint_text
from irc.constraints.stages import fixed_ops, parse_stages
from irc.dialects.builder import entry
from irc.errors import IrcError
from irc.training.stage_choice import Costs, balanced, pinned


@dataclass(frozen=True)
class CutStagesPass(ModulePass):
    """Give every op of the entry the number of the pipeline stage that computes it.

    A stage is a run of ops in program order, so that values go forward only. What is computed of
    inputs and constants alone (a mask, positions) belongs to no stage: each that reads it computes
    it for itself, which is cheaper than to send it. Calls of repeated blocks are not cut.

    The cut makes the slowest stage as fast as it can be, counting forward and backward by the cost
    model and the bytes that cross, and of equal ones takes that with the fewest bytes crossing.
    This is the linear partition problem, solved exactly by dynamic programming over the positions
    between ops (as PipeDream's partitioner does, arXiv:1806.03377, section 3.1).

    Options: ``count`` of stages; ``cluster`` prices ops; ``stages`` fixes where they begin, by
    names of parameters: ``"tok, layers.0-layers.3; layers.4-layers.7, head"`` has two stages, and
    an op without parameters is where what it reads is; ``pins`` are constraints, of which
    ``stage l.0-l.3 = 0`` fixes those layers, and the rest of the cut is the best one;
    ``clusters`` are those that stages see, with ``;`` between, where their devices are unequal.

    Run: cut-stages{count=2}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"},
        %v: !flow.tensor<[5, 5], f32> {role = "parameter", name = "v"},
        %w: !flow.tensor<[5, 5], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[3, 5], f32> {
      %h = flow.contract(%x, %v) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>) -> !flow.tensor<[3, 5], f32>
      %y = flow.contract(%h, %w) {spec = "bk,kn->bn", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>) -> !flow.tensor<[3, 5], f32>
      func.return %y : !flow.tensor<[3, 5], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"},
        %v: !flow.tensor<[5, 5], f32> {role = "parameter", name = "v"},
        %w: !flow.tensor<[5, 5], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[3, 5], f32> {
      %h = flow.contract(%x, %v) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0", stage = 0 : i64}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>) -> !flow.tensor<[3, 5], f32>
      %y = flow.contract(%h, %w) {spec = "bk,kn->bn", loc = "m.py:2", id = "n1", stage = 1 : i64}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>) -> !flow.tensor<[3, 5], f32>
      func.return %y : !flow.tensor<[3, 5], f32>
    }
    ```

    The stages become programs of their own (:mod:`irc.training.stages`).
    """

    name = "cut-stages"
    level: ClassVar[str] = "flow"

    count: int = 2
    cluster: str = "this-host"
    stages: str = ""
    pins: str = ""
    clusters: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Write ``stage`` on the ops of the entry."""
        if self.count < 1:
            raise IrcError("option-value", f"cut-stages{{count={self.count}}}: 1 or more")
        func = entry(op)
        costs = Costs(op, self.cluster)
        pins = parse_stages(*constraint_text(self.pins))
        if self.stages and pins:
            raise IrcError(
                "pipeline-stages",
                f"'{pins[0]}', and all stages are fixed already",
                where=pins[0].where,
                because=f"stages is '{self.stages}'",
                help="leave out one of the two",
            )
        if self.stages:
            chosen = pinned(func, costs, self.stages, self.count)
        else:
            own = [Costs(op, name) for name in self.clusters.split(";") if name]
            fixed = fixed_ops(func, self.count, pins)
            chosen = balanced(func, costs, self.count, fixed, own)
        for each, stage in chosen.items():
            each.attributes["stage"] = IntegerAttr(stage, i64)
