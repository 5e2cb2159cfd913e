"""Pass auto-shard: give every value a placement, at the least cost on the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.flow import loc_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.sharding.budget import check_budget
from irc.sharding.graph import Graph, Wishes
from irc.sharding.pins import module_pins, parse_pins, resolve_pins
from irc.sharding.plan_cost import plan_cost
from irc.sharding.program import solve
from irc.sharding.trees import Trees
from irc.sharding.write import write_placements


@dataclass(frozen=True)
class AutoShardPass(ModulePass):
    """Choose a placement for every value, and box where a producer and a reader differ.

    Each op has signatures: how its operands and results may lie so that every rank computes its part from
    what it holds. The cheapest combination, local work and boxing together, is the optimum of an integer
    program (`irc.sharding.program`). A block that is called many times is planned once and priced as often
    as it runs; two readers that want one placement share its boxing.

    Options: ``mesh`` names the axes; ``cluster`` is a preset or a TOML file; ``inputs`` is ``replicated``
    (each rank is given the whole inputs) or ``any``; ``pins`` fixes arguments, as in
    ``*.weight = [tensor = S(1)]; x = [tensor = B]``; ``memory_bytes`` bounds what a device holds of
    parameters, buffers and constants, which may then be stored in smaller parts than they are used.

    Results of the entry are whole on each rank, a state lies as its buffer. A pass before it has bound the
    named sizes. It writes ``irc.mesh``, and in ``irc.plan_cost`` the objective, the bound that proves it,
    and each op's runner-up.
    """

    name = "auto-shard"
    level: ClassVar[str] = "flow"

    mesh: str = ""
    cluster: str = "this-host"
    inputs: str = "replicated"
    pins: str = ""
    memory_bytes: int | None = None
    node_limit: int = 10_000

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plan the module."""
        mesh = self._mesh()
        _check_sizes(op)
        cost = ClusterCost(find_cluster(self.cluster), mesh)
        pins = resolve_pins(op, mesh, {**module_pins(op), **parse_pins(self.pins)})
        graph = Graph(op, cost, self._wishes(pins))
        check_budget(graph.problem)
        solution = solve(graph.problem, cost.boxing, node_limit=self.node_limit)
        trees = Trees(cost.boxing)
        report = plan_cost(graph, solution, self.cluster, cost.boxing, trees)
        write_placements(op, graph, solution.choice, trees)
        op.attributes["irc.mesh"] = StringAttr(str(mesh))
        op.attributes["irc.plan_cost"] = StringAttr(report)

    def _mesh(self) -> Mesh:
        try:
            mesh = Mesh.parse(self.mesh)
        except ValueError as error:
            raise IrcError(
                "mesh-syntax",
                f"cannot read the mesh '{self.mesh}'",
                because=str(error),
                help="write it as: data=2,tensor=2",
            ) from None
        if not mesh.axes:
            raise IrcError(
                "mesh-syntax", "auto-shard needs a mesh", help='auto-shard{mesh="data=2,tensor=2"}'
            )
        return mesh

    def _wishes(self, pins: dict[str, object]) -> Wishes:
        if self.inputs not in ("replicated", "any"):
            raise IrcError(
                "option-value",
                f"auto-shard takes no inputs='{self.inputs}'",
                help=did_you_mean(self.inputs, ["replicated", "any"]),
            )
        return Wishes(self.inputs, pins, self.memory_bytes)


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
                        help='run bind-sizes{sizes="NAME=NUMBER"} before it',
                    ) from None
