"""The integer program of sharding, and its solution by HiGHS.

    x[n, o] in {0, 1}     node n chooses option o             sum over o of x[n, o] = 1
    f[k, t] >= 0          flow to reader k of a net over the placement transition t
    w[t]    >= f[k, t]    transition t is paid once for all readers k of the net

    min  sum of c[n, o] x[n, o]  +  sum over nets and t of c[t] w[t]

At each placement p of a net, for each reader k: what the producer chose enters, what k chose
leaves,

    [producer is at p] + sum of f[k, t] into p  =  sum of f[k, t] out of p + [k is at p]

so a reader's flow is its boxing path, and its columns are the transitions of single axes instead of
all pairs of placements. No number stands for infinity: where no transition leads, there is no
column.

The relaxation is almost always integral, and is solved alone first: it costs a tenth of what the
integer solver takes to say the same. Where it is not, its reduced costs say which options no
better choice can have, and branch and bound sees the few that are left. Memory is bounded at the
moments when a choice needs too much (`irc.sharding.liveness`): one row for each, added when it is
first seen, and the solver goes on from where it was. A node limit bounds the search, never a
clock: plans repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import InternalError
from irc.sharding.boxing import Boxing
from irc.sharding.columns import MICRO, Matrix, matrix_of, peak_row, spaces_of
from irc.sharding.problem import Peak, Problem
from irc.sharding.spaces import Numbers
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FRACTION = 1e-6
"""A column this far from whole is fractional."""

GAP_MICRO = 1e-6
"""Choices that differ by less, in microseconds, are equally good."""

MAX_ROUNDS = 60
"""So many moments that need too much memory are looked at, then the last choice must do."""


@dataclass(frozen=True)
class Solution:
    """A choice and how good it is.

    Attributes:
        choice: the option of each node.
        seconds: the objective, by the exact trees.
        bound_s: no choice is cheaper than this.
        num_columns: columns of the integer program after pruning.
        num_nodes: branch-and-bound nodes that were searched.
        num_bytes: what a device holds when it holds most.
    """

    choice: tuple[int, ...]
    seconds: float
    bound_s: float
    num_columns: int
    num_nodes: int
    num_bytes: int = 0

    @property
    def gap(self) -> float:
        """How far from optimal the choice may be, relative to its own cost."""
        return max(0.0, (self.seconds - self.bound_s) / self.seconds) if self.seconds > 0 else 0.0


class Infeasible(Exception):  # noqa: N818 - what the solver says, not a fault
    """No choice satisfies all constraints."""


class Worse(Exception):  # noqa: N818 - what the solver says, not a fault
    """No choice is cheaper than what is known already.

    Attributes:
        bound_s: no choice is cheaper than this.
    """

    def __init__(self, bound_s: float) -> None:
        super().__init__(f"at least {bound_s:.4g} s")
        self.bound_s = bound_s


def solve(
    problem: Problem,
    boxing: Boxing,
    *,
    node_limit: int = 10_000,
    beat_s: float = float("inf"),
    trees: Trees | None = None,
) -> Solution:
    """Find the cheapest choice.

    Args:
        problem: Nodes and nets; nodes have one option at least.
        boxing: Transitions and their prices.
        node_limit: Branch-and-bound nodes; the gap that is left is reported.
        beat_s: What is known already: stop where nothing cheaper is to be found.
        trees: The boxings of a value for all its readers, if they are wanted again.

    Raises:
        Infeasible: where constraints contradict each other.
        Worse: where no choice is cheaper than ``beat_s``.
    """
    matrix = matrix_of(problem, boxing, spaces_of(problem, boxing))
    search = _Search(matrix, node_limit, beat_s * MICRO)
    trees = trees or Trees(boxing)
    seen: set[str] = set()
    for _ in range(MAX_ROUNDS):
        values = search.best()
        choice = _choice(matrix, values)
        peak = problem.worst_peak(choice, trees)
        if peak is None or peak.name in seen:
            break
        seen.add(peak.name)
        search.bound_memory(peak, problem)
    seconds = problem.seconds(choice, trees)
    if seconds is None:
        raise Infeasible
    return Solution(
        choice,
        seconds,
        search.bound / MICRO,
        len(matrix.cost),
        search.num_nodes,
        problem.num_bytes(choice, trees),
    )


def _choice(matrix: Matrix, values: Numbers) -> tuple[int, ...]:
    ends = np.append(matrix.first[1:], matrix.num_binaries)
    return tuple(
        int(np.argmax(values[start:end])) for start, end in zip(matrix.first, ends, strict=True)
    )
