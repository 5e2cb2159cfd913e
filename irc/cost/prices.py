"""Seconds of ops of level spmd before kernels are fused: those of one form are priced once.

Passes try many programs, of which each has the ops of the others but for a few: to look a price up
by the form of an op takes a tenth of what its rule does. A price depends on nothing but the form
and the cluster, so all passes of a process share them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from xdsl.dialects.builtin import StringAttr

from irc.cost.listed import BY_ELEMENT, around, unfused_seconds
from irc.cost.model import ClusterCost
from irc.dialects.flow import FlowOp, ShapeOp
from irc.dialects.whole_attention import AttentionOp
from irc.ops.attention_ops import ATTENTION, BACKWARD
from irc.ops.linear_loss import BACKWARD as LOSS_BACKWARD

MOST = 16
"""So many clusters and meshes are remembered; then all are forgotten."""
BY_PLACE = (AttentionOp, ShapeOp)
"""Ops whose price depends on what is around them; of library ops, these targets."""
TARGETS_BY_PLACE = frozenset({ATTENTION, BACKWARD, LOSS_BACKWARD})

_KNOWN: dict[Hashable, tuple[dict[Hashable, float], dict[Hashable, float]]] = {}


class Prices:
    """Prices ops of level spmd on a cluster.

    Args:
        cost: of its mesh.
    """

    def __init__(self, cost: ClusterCost) -> None:
        self._cost, self._device = cost, cost.cluster.device
        if cost.key not in _KNOWN and len(_KNOWN) >= MOST:
            _KNOWN.clear()
        self._alone, self._by_element = _KNOWN.setdefault(cost.key, ({}, {}))
        self._near: dict[Hashable, tuple[Sequence[object], float]] = {}

    def __call__(self, op: FlowOp) -> float:
        """Return the seconds that an op adds to the kernels that there will be."""
        if not isinstance(op, BY_ELEMENT):
            return unfused_seconds(op, self._device, self.alone, self._by_element)
        # Copies of an op have its attributes and types themselves, whose hashes take long.
        held = (*op.properties.values(), *op.operand_types, *op.result_types)
        key = (op.name, len(op.properties), *around(op), *map(id, held))
        if key not in self._near:
            seconds = unfused_seconds(op, self._device, self.alone, self._by_element)
            self._near[key] = held, seconds
        return self._near[key][1]

    def alone(self, op: FlowOp) -> float:
        """Return the seconds of an op that is a kernel or a collective by itself."""
        if isinstance(op, BY_PLACE) or _target(op) in TARGETS_BY_PLACE:
            return self._cost.local_seconds(op)
        kinds = tuple(value.type for value in (*op.operands, *op.results))
        form = (op.name, len(op.operands), tuple(op.properties.items()), kinds)
        if form not in self._alone:
            self._alone[form] = self._cost.local_seconds(op)
        return self._alone[form]


def _target(op: FlowOp) -> str:
    target = op.properties.get("target")
    return target.data if isinstance(target, StringAttr) else ""
