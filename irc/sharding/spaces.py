"""The placements of one kind of value as numbers, and the transitions that a plan can use.

Most transitions lie on no cheapest way between anything that a producer and a reader may choose;
columns for them would only slow the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import ITEM_BYTES
from irc.sharding.boxing import Boxing, LocalShape, even_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

Codes: TypeAlias = "NDArray[np.int64]"
Numbers: TypeAlias = "NDArray[np.float64]"

SLACK = 1e-9
SLACK_S = 1e-15
"""Sums of seconds round; ways that differ by less are equally cheap."""


@dataclass(frozen=True)
class Arcs:
    """Transitions between placement numbers.

    Attributes:
        tails: where each starts.
        heads: where it leads.
        seconds: what it takes.
        num_bytes: what a device holds after it.
    """

    tails: Codes
    heads: Codes
    seconds: Numbers
    num_bytes: Numbers


def num_bytes(shape: LocalShape, dtype: str, placement: Placement, mesh: Mesh) -> int:
    """Return the bytes that every rank holds of a value."""
    local = even_shape(shape, placement, mesh)
    assert local is not None
    return prod(local) * ITEM_BYTES[dtype]


class Space:
    """All placements of one shape and dtype that can arise from given ones.

    Args:
        boxing: transitions and their prices.
        shape: the logical shape.
        dtype: the element type.
        seeds: what ports ask for; what they lead to is added.
    """

    def __init__(
        self, boxing: Boxing, shape: LocalShape, dtype: str, seeds: Sequence[Placement]
    ) -> None:
        self.code: dict[Placement, int] = {}
        stack = list(dict.fromkeys(seeds))
        while stack:
            here = stack.pop()
            if here not in self.code:
                self.code[here] = len(self.code)
                stack += [step.result for step, _ in boxing.steps(shape, dtype, here)]
        known = list(self.code)
        arcs = [
            (self.code[here], self.code[step.result], seconds)
            for here in known
            for step, seconds in boxing.direct_steps(shape, dtype, here)
        ]
        table = np.array(arcs, dtype=np.float64).reshape(-1, 3)
        self.num_bytes = np.array(
            [num_bytes(shape, dtype, placement, boxing.mesh) for placement in known], dtype=float
        )
        heads = table[:, 1].astype(np.int64)
        self.arcs = Arcs(table[:, 0].astype(np.int64), heads, table[:, 2], self.num_bytes[heads])
        self.distances: Numbers = boxing.matrix(shape, dtype, known, known)
        self._useful: dict[object, Arcs] = {}
        self._codes: dict[tuple[Placement, ...], Codes] = {}

    def codes(self, placements: tuple[Placement, ...]) -> Codes:
        """Return the numbers of the options of a port."""
        if placements not in self._codes:
            self._codes[placements] = np.array([self.code[p] for p in placements], dtype=np.int64)
        return self._codes[placements]

    def useful(self, source: Codes, sinks: Sequence[Codes], *, branching: bool = True) -> Arcs:
        """Return the transitions that a cheapest tree from a source to all sinks can have.

        To one sink, those of one cheapest way from each option to each other. A tree to several
        branches wherever it pays: all.

        Args:
            source: the producer's options.
            sinks: the options of each reader.
            branching: let trees branch anywhere, not only at what a reader may want.
        """
        if len(sinks) > 1 and branching:
            return self.arcs
        starts, ends = np.unique(source), np.unique(np.concatenate(sinks))
        if len(sinks) > 1:
            starts = np.union1d(starts, ends)
        key = (starts.tobytes(), ends.tobytes())
        if key not in self._useful:
            keep = self._ways(starts, ends)
            arcs = self.arcs
            self._useful[key] = Arcs(
                arcs.tails[keep], arcs.heads[keep], arcs.seconds[keep], arcs.num_bytes[keep]
            )
        return self._useful[key]

    def _ways(self, starts: Codes, ends: Codes) -> NDArray[np.bool_]:
        """Mark the transitions of one cheapest way from each start to each end."""
        d, arcs = self.distances, self.arcs
        keep = np.zeros(len(arcs.tails), dtype=bool)
        way = d[np.ix_(starts, arcs.tails)] + arcs.seconds
        least = d[np.ix_(starts, arcs.heads)]
        rows, steps = np.nonzero(np.isfinite(least) & (way <= least * (1 + SLACK) + SLACK_S))
        last = np.full((len(starts), len(d)), -1)
        # Of several, the first: the others are overwritten.
        last[rows[::-1], arcs.heads[steps[::-1]]] = steps[::-1]
        row, here = (part.ravel() for part in np.meshgrid(range(len(starts)), ends, indexing="ij"))
        for _ in range(len(d)):
            step = last[row, here]
            on = (step >= 0) & (here != starts[row])
            if not on.any():
                break
            keep[step[on]] = True
            row, here = row[on], arcs.tails[step[on]]
        return keep
