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
moments when a choice needs too much (`irc.search.liveness`): one row for each, added when it is
first seen, which holds for every choice; what it leaves out is cut off where a whole choice does
not fit (`irc.search.memory_rows`). A node limit bounds the search, never a clock: plans repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from irc.search.columns import SMALL, matrix_of, spaces_of
from irc.search.memory_rows import MemoryRows
from irc.search.problem import Problem
from irc.search.relaxation import Infeasible, Relaxation, choice_of
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from irc.search.liveness import Moment

MAX_ROUNDS = 60
MAX_CUTS = 300
"""So many moments that need too much memory are looked at, then the last choice must do; in small
programs so many choices."""


ROUNDING = 1e-9


class TooLarge(Exception):  # noqa: N818 - an answer, not a fault
    """The program has more columns than are solved at once.

    Attributes:
        num_columns: of the program.
    """

    def __init__(self, num_columns: int) -> None:
        super().__init__(f"{num_columns} columns")
        self.num_columns = num_columns


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
        moments: when memory was short on the way.
    """

    choice: tuple[int, ...]
    seconds: float
    bound_s: float
    num_columns: int
    num_nodes: int
    num_bytes: int = 0
    moments: tuple[Moment, ...] = ()

    @property
    def gap(self) -> float:
        """How far from optimal the choice may be, relative to its own cost."""
        apart = self.seconds - self.bound_s
        # Sums of seconds round.
        return apart / self.seconds if apart > ROUNDING * self.seconds else 0.0


def solve(
    problem: Problem,
    boxing: Boxing,
    *,
    node_limit: int = 10_000,
    beat_s: float = float("inf"),
    trees: Trees | None = None,
    branching: bool = True,
    moments: Iterable[Moment] = (),
    most_columns: float = float("inf"),
) -> Solution:
    """Find the cheapest choice.

    Args:
        problem: Nodes and nets; nodes have one option at least.
        boxing: Transitions and their prices.
        node_limit: Branch-and-bound nodes; the gap that is left is reported.
        beat_s: What is known already: stop where nothing cheaper is to be found.
        trees: The boxings of a value for all its readers, if they are wanted again.
        branching: Look at all trees; otherwise only at those that branch where readers are, which
            is faster, and the bound is one on such choices.
        moments: When memory was short in a problem like this one: bounded from the start.
        most_columns: A larger program is not solved.

    Raises:
        TooLarge: where the program has more columns.
        Infeasible: where constraints contradict each other.
        Worse: where no choice is cheaper than ``beat_s``.
    """
    matrix = matrix_of(problem, spaces_of(problem, boxing), branching=branching)
    if len(matrix.cost) > most_columns:
        raise TooLarge(len(matrix.cost))
    search = Relaxation(matrix, node_limit, beat_s * matrix.scale)
    trees = trees or Trees(boxing)
    moments = list(moments)
    if moments and isfinite(beat_s):
        # Without rows of memory it takes a tenth of the time, and says what no better plan has.
        search.relax()
    rows = _memory_rows(problem, search, trees, moments)
    seen: list[Moment] = []
    values, is_whole = search.relax(), False
    search.drop_hopeless()
    choice = choice_of(matrix, values)
    for _ in range(MAX_CUTS if len(matrix.cost) <= SMALL else MAX_ROUNDS):
        choice = choice_of(matrix, values)
        moment = problem.short_at(choice, trees)
        if moment is None and is_whole:
            break
        if moment is not None and rows is not None and moment not in rows:
            seen += [moment] if moment else []
            rows.bound(moment, _limit(problem, moment))
        elif moment is None or rows is None or not is_whole:
            values, is_whole = search.whole(values), True
            continue
        else:
            rows.correct(choice, moment)
        values, is_whole = search.relax(), False
    seconds = problem.seconds(choice, trees)
    if seconds is None:
        raise Infeasible
    return Solution(
        choice,
        seconds,
        search.bound / matrix.scale,
        len(matrix.cost),
        search.num_nodes,
        problem.num_bytes(choice, trees),
        tuple(seen),
    )


def _memory_rows(
    problem: Problem, search: Relaxation, trees: Trees, moments: Iterable[Moment]
) -> MemoryRows | None:
    if problem.liveness is None:
        return None
    rows = MemoryRows(problem, search, trees, problem.memory_bytes or problem.stored_bytes or 1)
    if problem.memory_bytes is not None:
        for moment in moments:
            rows.bound(moment, problem.memory_bytes)
    return rows


def _limit(problem: Problem, moment: Moment) -> int:
    """Return the bytes that there is room for; always, where the moment is the empty one."""
    limit = problem.memory_bytes if moment else problem.stored_bytes
    assert limit is not None
    return limit
