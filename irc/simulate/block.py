"""When a block of level spmd ends: its ops listed on streams, which slow each other down."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation

from irc.cost.model import ClusterCost
from irc.cost.prices import Prices
from irc.dialects.flow import FlowOp
from irc.dialects.placement import Mesh
from irc.schedule.blocks import tasks_of
from irc.schedule.overlap import list_schedule
from irc.simulate.actions import SimAction
from irc.simulate.engine import simulate
from irc.simulate.plan import SHARED, Contention


class BlockTimes:
    """Prices blocks of a module of level spmd.

    Args:
        cost: of its mesh.
        known: the functions of the module, which blocks may call.
        within: the mesh of the whole run, where that of ``cost`` is one stage's.
    """

    def __init__(
        self, cost: ClusterCost, known: Mapping[str, FuncOp], within: Mesh | None = None
    ) -> None:
        self._prices, self._known, self._mesh = Prices(cost), known, cost.mesh
        self._called: dict[str, float] = {}
        self._contention = Contention.of(cost.cluster, within or cost.mesh)

    def end(self, block: Block) -> float:
        """Return the seconds after which compute and all links are done with a block."""
        tasks = tasks_of(block, self.seconds)
        ranks, kinds = self._mesh.num_ranks, self._contention.kinds
        actions: list[SimAction] = []
        on_link: dict[int, int] = {}
        for position in list_schedule(tasks):
            task = tasks[position]
            if task.axis is not None:
                issued = SimAction("", "compute", 0.0)
                weight = self._contention.weight_of_messages(ranks)
                kind = kinds.get(task.axis, "link")
                stream, after = f"link {task.axis}", (len(actions),)
                on_link[position] = len(actions) + 1
                sent = SimAction("", stream, task.seconds, after, SHARED, weight=weight, kind=kind)
                actions += [issued, sent]
            elif task.waits_for is not None:
                waited = on_link.get(task.waits_for)
                after = () if waited is None else (waited,)
                actions.append(SimAction("", "compute", 0.0, after))
            elif task.seconds:
                weight = self._contention.weight(ranks)
                actions.append(SimAction("", "compute", task.seconds, (), SHARED, weight=weight))
        shared = self._contention.resource
        return simulate(actions, {} if shared is None else {SHARED: shared}).seconds

    def compute_s(self, block: Block) -> float:
        """Return the seconds of all that a block computes: it does not end before."""
        tasks = tasks_of(block, self.seconds)
        return sum(t.seconds for t in tasks if t.axis is None and t.waits_for is None)

    def seconds(self, op: Operation) -> float:
        """Return the seconds of an op: of its kernel, its collective, or all of a call."""
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            if name not in self._called:
                self._called[name] = sum(map(self.seconds, self._known[name].body.block.ops))
            return self._called[name]
        if not isinstance(op, FlowOp):
            return 0.0
        return self._prices(op)
