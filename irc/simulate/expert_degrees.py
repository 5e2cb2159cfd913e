"""Into how many pieces the tokens of a layer of experts are cut, so that a block ends first.

The price of a degree is that of the program that it gives: the ops around the layer, cut, are
list-scheduled on compute and on the links of each axis, with the latencies, launches and copies
that pieces add. Layers, and their gradients, have degrees of their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from xdsl.ir import Operation

from irc.cost.model import ClusterCost
from irc.sharding.expert_chunks import cut_experts
from irc.sharding.expert_layers import ExpertLayer
from irc.simulate.around import AROUND, copied
from irc.simulate.block import BlockTimes

DEGREES = (2, 3, 4, 6, 8, 12, 16)
LEAST = 1e-3
"""A cut is worth it where it saves this part of what the layer's exchanges take."""


class Choice(NamedTuple):
    """Into how many pieces a layer is cut, and what that saves.

    Attributes:
        degree: at least 2.
        saved_s: seconds by which the ops around it end sooner; None where the degree was asked for.
    """

    degree: int
    saved_s: float | None = None


class ExpertChooser:
    """Chooses degrees for the layers of experts of a module; those that look alike get one.

    Args:
        cost: of its mesh.
        times: of its blocks.
        degree: that is asked for; 0 for the best, or none.
    """

    def __init__(self, cost: ClusterCost, times: BlockTimes, degree: int = 0) -> None:
        self._cost, self._times, self._degree = cost, times, degree
        self._known: dict[Hashable, Choice | None] = {}

    def choice(self, layer: ExpertLayer) -> Choice | None:
        """Return how a layer is cut, None where it is left whole."""
        if self._degree:
            return Choice(self._degree) if layer.fits(self._degree) else None
        key = _key(layer)
        if key not in self._known:
            self._known[key] = self._best(layer)
        return self._known[key]

    def ends(self, layer: ExpertLayer) -> dict[int, float]:
        """Return when the ops around a layer end in seconds, by degree; 1: whole."""
        degrees = (1, *filter(layer.fits, DEGREES))
        return {degree: self._end(layer, degree) for degree in degrees}

    def _best(self, layer: ExpertLayer) -> Choice | None:
        ends = self.ends(layer)
        best = min(ends, key=ends.__getitem__)
        sent_s = sum(self._cost.local_seconds(each.start) for each in layer.exchanges)
        saved_s = ends[1] - ends[best]
        return Choice(best, saved_s) if saved_s > LEAST * sent_s else None

    def _end(self, layer: ExpertLayer, degree: int) -> float:
        block = layer.op.parent
        assert block is not None
        every = [op for op in block.ops if op is not block.last_op]
        places: dict[Operation, int] = {op: place for place, op in enumerate(every)}
        ops = [op for each in layer.exchanges for op in (each.start, each.wait)]
        own = [places[op] for op in (layer.op, *ops)]
        copy, known = copied(every[max(0, min(own) - AROUND) : max(own) + 1 + AROUND])
        if degree > 1:
            cut_experts(layer.among(known), degree)
        return self._times.end(copy)


def _key(layer: ExpertLayer) -> Hashable:
    """Return what tells layers apart."""
    kinds = tuple(value.type for value in (*layer.op.operands, *layer.op.results))
    sent = tuple((each.start.name, each.start.axis) for each in layer.exchanges)
    return layer.op.arguments, kinds, sent
