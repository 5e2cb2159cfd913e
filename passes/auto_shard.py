"""Pass auto-shard: give every value a placement, at the least cost on the cluster."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from irc.constraints.layouts import parse_layout
from irc.constraints.padding import pad_pinned
from irc.constraints.pins import Statement, constraint_text
from irc.constraints.resolve import Constraints, resolve
from irc.constraints.uses import placed_statements
from irc.cost.model import ClusterCost
from irc.dialects.flow import loc_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.search.budget import infeasible
from irc.search.graph import Graph, Wishes
from irc.search.on_mesh import search
from irc.search.plan_cost import plan_cost
from irc.search.samples import check_samples
from irc.search.shared import cost_on
from irc.search.solved import Plan, TooSmall
from irc.search.whole_work import WholeWorkWarning, whole_work
from irc.search.write import write_placements
from irc.sharding.mesh import parse_mesh
from irc.simulate.choice import step_seconds
from irc.training.entry import globs


@dataclass(frozen=True)
class AutoShardPass(ModulePass):
    """Choose a placement for every value, and box where a producer and a reader differ.

    Each op has signatures: how its operands and results may lie so that every rank computes its
    part from what it holds. The cheapest combination, local work and boxing together, is the
    optimum of an integer program (`irc.search.program`). A block that is called many times is
    planned once and priced as often as it runs; two readers that want one placement share its
    boxing.

    Options: ``mesh`` names the axes; ``within`` is the mesh of the whole run where ``mesh`` is that
    of one stage, which shares hosts and links with the others; ``cluster`` is a preset or a TOML
    file; ``inputs`` is ``replicated`` (each rank is given the whole inputs) or ``any``; ``pins``
    pins and forbids placements of arguments and ops, as in ``*.w = [tensor = S(1)]; forbid op n3 =
    [data = P(*)]``, or names a file of such lines (grammar/sharding.lark); ``memory_bytes`` bounds
    what a device holds at any moment (by default, what the cluster's devices have, less a margin),
    and ``stored_bytes`` what it holds all the time: parameters, states, buffers and constants. They
    may then be stored in smaller parts than they are used, as they may with ``stored_price``, the
    seconds that one of these bytes counts as. ``regather`` keeps nothing that was gathered from
    forward to backward: it is gathered again, as Megatron-LM's sequence parallelism does
    (arXiv:2205.05198, section 4.2.2). ``layout`` is ``ddp``, ``fsdp``, ``tp``, or several with
    ``+`` between: what the axes are for (`irc.constraints.layouts`). ``samples`` names axes that
    are to divide the samples of a batch; it is refused where they do not and nothing else is
    divided over them (`irc.search.samples`). ``brief`` says of a budget that nothing fits into that
    alone: the groups in conflict and the smallest budget that works take many searches. Its report
    has no runners-up.

    Results of the entry are whole on each rank, a state lies as its buffer. A pass before it has
    bound the named sizes. It writes ``irc.mesh``, and unless ``report=false``, in ``irc.plan_cost``
    the objective (``added_up_s``, and ``objective_s`` with collectives under compute, as the plan
    will run them: `irc.simulate.choice`), the bound that proves the former, and each op's
    runner-up.

    Here the columns of the first weight and the rows of the second are split, and nothing moves
    between (Megatron's pairing, arXiv:1909.08053); the sum that is left takes one all-reduce.

    Run: auto-shard{mesh="tensor=2" cluster=demo-gpus report=false}

    Before:
    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 96], f32> {role = "input", name = "x"},
        %up: !flow.tensor<[96, 384], f32> {role = "parameter", name = "up"},
        %down: !flow.tensor<[384, 96], f32> {role = "parameter", name = "down"})
        -> !flow.tensor<[3, 96], f32> {
      %h = flow.contract(%x, %up) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[3, 96], f32>, !flow.tensor<[96, 384], f32>)
          -> !flow.tensor<[3, 384], f32>
      %a = flow.pointwise(%h) {fn = "relu", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[3, 384], f32>) -> !flow.tensor<[3, 384], f32>
      %y = flow.contract(%a, %down) {spec = "bn,nk->bk", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[3, 384], f32>, !flow.tensor<[384, 96], f32>)
          -> !flow.tensor<[3, 96], f32>
      func.return %y : !flow.tensor<[3, 96], f32>
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2"} {
    func.func @forward(%x: !flow.tensor<[3, 96], f32, [tensor = B]> {role = "input", name = "x"},
        %up: !flow.tensor<[96, 384], f32, [tensor = S(1)]> {role = "parameter", name = "up"},
        %down: !flow.tensor<[384, 96], f32, [tensor = S(0)]> {role = "parameter", name = "down"})
        -> !flow.tensor<[3, 96], f32, [tensor = B]> {
      %h = flow.contract(%x, %up) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[3, 96], f32, [tensor = B]>,
             !flow.tensor<[96, 384], f32, [tensor = S(1)]>)
          -> !flow.tensor<[3, 384], f32, [tensor = S(1)]>
      %a = flow.pointwise(%h) {fn = "relu", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[3, 384], f32, [tensor = S(1)]>)
          -> !flow.tensor<[3, 384], f32, [tensor = S(1)]>
      %y = flow.contract(%a, %down) {spec = "bn,nk->bk", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[3, 384], f32, [tensor = S(1)]>,
             !flow.tensor<[384, 96], f32, [tensor = S(0)]>)
          -> !flow.tensor<[3, 96], f32, [tensor = P(sum)]>
      %r = sbp.boxing(%y) {loc = "m.py:3", id = "n2.box0"}
          : (!flow.tensor<[3, 96], f32, [tensor = P(sum)]>)
          -> !flow.tensor<[3, 96], f32, [tensor = B]>
      func.return %r : !flow.tensor<[3, 96], f32, [tensor = B]>
    }
    }
    ```
    """

    name = "auto-shard"
    level: ClassVar[str] = "flow"

    mesh: str = ""
    within: str = ""
    cluster: str = "this-host"
    inputs: str = "replicated"
    pins: str = ""
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    stored_price: float = 0.0
    node_limit: int = 10_000
    regather: bool = False
    layout: str = ""
    samples: str = ""
    report: bool = True
    brief: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plan the module."""
        mesh = self._mesh()
        _check_sizes(op)
        within = parse_mesh(self.within) if self.within else None
        cost = cost_on(self.cluster, mesh, within)
        text, source = constraint_text(self.pins)
        statements = placed_statements(op, mesh, text, source)
        pad_pinned(op, mesh, statements)
        constraints = resolve(op, mesh, statements)
        plan = self._search(op, cost, statements, constraints)
        graph, solution, trees = plan.graph, plan.solution, plan.trees
        # Before the types change: it says what the search saw.
        report = None
        if self.report:
            overlapped = step_seconds(plan, within)
            report = plan_cost(
                graph,
                solution,
                self.cluster,
                cost.boxing,
                trees,
                overlapped_s=overlapped,
                runners_up=not self.brief,
                limit_costs=plan.limit_costs,
            )
        write_placements(op, graph, solution.choice, trees, cost.boxing)
        check_samples(op, mesh, globs(self.samples), set(constraints.arguments))
        if (matrices := parse_layout(self.layout, mesh).matrices) and (
            text := whole_work(op, mesh, matrices, self.layout)
        ):
            warnings.warn(text, WholeWorkWarning, stacklevel=2)
        op.attributes["irc.mesh"] = StringAttr(str(mesh))
        if report is not None:
            op.attributes["irc.plan_cost"] = StringAttr(report)
            # For `irc explain plan --why-not`, which plans again from the folder alone.
            op.attributes["irc.auto_shard"] = StringAttr(json.dumps({**asdict(self), "pins": text}))

    def _search(
        self,
        op: ModuleOp,
        cost: ClusterCost,
        statements: Sequence[Statement],
        constraints: Constraints,
    ) -> Plan:
        wishes = self._wishes(constraints)
        try:
            return search(op, cost, wishes, node_limit=self.node_limit)
        except TooSmall as error:
            graph = error.graph
        if self.brief:
            budget = graph.problem.memory_bytes
            raise IrcError(
                "sharding-infeasible",
                f"no sharding holds {budget} bytes on a device of {cost.mesh}",
            )
        named = {f"{statement}": statement for statement in statements}
        whole = "inputs: each rank is given the whole inputs"

        def build(groups: Sequence[str]) -> Graph:
            kept = [statement for name, statement in named.items() if name in groups]
            inputs = "replicated" if whole in groups else "any"
            fewer = replace(
                wishes,
                inputs=inputs,
                constraints=resolve(op, cost.mesh, kept),
                memory_bytes=graph.problem.memory_bytes,
                stored_bytes=graph.problem.stored_bytes,
            )
            return Graph(op, cost, fewer)

        groups = [*named, *([whole] if self.inputs == "replicated" else [])]
        raise infeasible(graph, cost.boxing, groups, build)

    def _mesh(self) -> Mesh:
        mesh = parse_mesh(self.mesh)
        if not mesh.axes:
            raise IrcError(
                "mesh-syntax", "auto-shard needs a mesh", help='auto-shard{mesh="data=2,tensor=2"}'
            )
        return mesh

    def _wishes(self, constraints: Constraints) -> Wishes:
        match self.inputs:
            case "replicated" | "any":
                return Wishes(
                    self.inputs,
                    constraints,
                    self.memory_bytes,
                    self.stored_bytes,
                    self.regather,
                    parse_layout(self.layout, constraints.mesh),
                    self.stored_price,
                )
            case other:
                raise IrcError(
                    "option-value",
                    f"auto-shard takes no inputs='{other}'",
                    help=did_you_mean(other, ["replicated", "any"]),
                )


def _check_sizes(module: ModuleOp) -> None:
    """Refuse named sizes: costs need numbers.

    Raises:
        IrcError: ``option-value`` naming the size.
    """
    for op in module.walk():
        for value in op.results:
            if isinstance(value.type, TensorType):
                try:
                    tensor(value).static_shape()
                except ValueError as error:
                    raise IrcError(
                        "option-value",
                        f"auto-shard needs numbers for all sizes: {error}",
                        where=loc_of(op),
                        help="give each size a number: irc compile ... --size NAME=NUMBER, or the "
                        'pass bind-sizes{sizes="NAME=NUMBER"} before it',
                    ) from None
