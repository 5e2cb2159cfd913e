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

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import InternalError
from irc.sharding.boxing import Boxing
from irc.sharding.columns import (
    Matrix,
    matrix_of,
    peak_row,
    spaces_of,
    with_least_memory,
)
from irc.sharding.problem import Peak, Problem
from irc.sharding.spaces import Numbers
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRACTION = 1e-6
"""A column this far from whole is fractional."""

GAP = 1e-6
"""Choices whose objectives differ by less are equally good."""

HOPELESS = 100
"""An option that costs so many times the optimum without a budget is out of the question."""

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
    branching: bool = True,
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

    Raises:
        Infeasible: where constraints contradict each other.
        Worse: where no choice is cheaper than ``beat_s``.
    """
    matrix = matrix_of(problem, spaces_of(problem, boxing), branching=branching)
    search = _Search(matrix, node_limit, beat_s * matrix.scale)
    trees = trees or Trees(boxing)
    excess: dict[str, int] = {}
    values, is_whole = search.relax(), False
    search.drop_hopeless()
    bound = search.bound
    for _ in range(MAX_ROUNDS):
        choice = _choice(matrix, values)
        peak = problem.worst_peak(choice, trees)
        if peak is not None and (is_whole or peak.name not in excess):
            # Flow that parts over several ways holds less than a choice does: ask for more room.
            more = peak.excess_bytes if peak.name in excess else 0
            excess[peak.name] = excess.get(peak.name, 0) + more
            search.bound_memory(replace(peak, limit_bytes=peak.limit_bytes - excess[peak.name]))
            values, is_whole = search.relax(), False
        elif is_whole:
            break
        else:
            values, is_whole = search.whole(values), True
        # A row that asks for more room than there is proves nothing.
        bound = bound if any(excess.values()) else search.bound
    seconds = problem.seconds(choice, trees)
    if seconds is None:
        raise Infeasible
    return Solution(
        choice,
        seconds,
        bound / matrix.scale,
        len(matrix.cost),
        search.num_nodes,
        problem.num_bytes(choice, trees),
    )


def least_memory(
    problem: Problem, boxing: Boxing, *, stored: bool = False
) -> tuple[int, tuple[int, ...]]:
    """Return the smallest budget that some choice holds, and such a choice.

    Args:
        problem: Nodes and nets.
        boxing: Transitions and their prices.
        stored: Of what is loaded alone.
    """
    unit = problem.memory_bytes or problem.stored_bytes or 1
    matrix = with_least_memory(matrix_of(problem, spaces_of(problem, boxing)))
    search = _Search(matrix, node_limit=1000, beat=float("inf"), is_free=True)
    trees = Trees(boxing)
    best: tuple[int, tuple[int, ...]] | None = None
    liveness = problem.liveness
    assert liveness is not None
    seen: set[str] = set()
    while len(seen) < MAX_ROUNDS:
        values = search.relax()
        values = search.whole(values) if len(seen) > 1 else values
        choice = _choice(matrix, values)
        held, moment = liveness.worst(choice, trees)
        if stored:
            held, moment = liveness.stored(choice), ()
        if best is None or held < best[0]:
            best = held, choice
        peak = liveness.peak(moment, unit)
        if peak.name in seen:
            break
        seen.add(peak.name)
        search.bound_memory(peak)
    assert best is not None
    return best


def _choice(matrix: Matrix, values: Numbers) -> tuple[int, ...]:
    ends = np.append(matrix.first[1:], matrix.num_binaries)
    return tuple(
        int(np.argmax(values[start:end])) for start, end in zip(matrix.first, ends, strict=True)
    )


@dataclass
class _Search:
    """HiGHS on one matrix, which memory rows are added to."""

    matrix: Matrix
    node_limit: int
    beat: float
    bound: float = 0.0
    num_nodes: int = 0
    is_free: bool = False
    rows: list[tuple[NDArray[np.int32], Numbers]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self._relaxed: Any = _solver(self.matrix)

    def bound_memory(self, peak: Peak) -> None:
        """Add the row that says that a moment fits into the memory."""
        columns, values = peak_row(self.matrix, peak)
        if self.is_free:
            columns = np.append(columns, np.int32(len(self.matrix.cost) - 1))
            values = np.append(values, -1.0)
        self.rows.append((columns, values))
        self._limit(self._relaxed, columns, values)

    def _limit(self, solver: Any, columns: NDArray[np.int32], values: Numbers) -> None:
        solver.addRow(-np.inf, 0.0 if self.is_free else 1.0, len(columns), columns, values)

    def relax(self) -> Numbers:
        """Return the columns of the relaxation's optimum.

        Raises:
            Infeasible: where there is none.
            Worse: where it is no cheaper than what is known.
        """
        try:
            self._run(self._relaxed)
        except InternalError:
            # The basis of the rounds before can be bad for this one.
            self._relaxed.clearSolver()
            self._run(self._relaxed)
        self.bound = self._relaxed.getInfo().objective_function_value
        if self.bound >= self.beat:
            raise Worse(self.bound / self.matrix.scale)
        return np.array(self._relaxed.getSolution().col_value)

    def drop_hopeless(self) -> None:
        """Forbid options that alone cost many times the optimum: their prices blur the others'.

        No plan that is found has one, or it were many times as dear as the bound.
        """
        hopeless = np.flatnonzero(
            self.matrix.cost[: self.matrix.num_binaries] > HOPELESS * max(self.bound, 1.0)
        ).astype(np.int32)
        self.matrix.upper[hopeless] = 0.0
        zero = np.zeros(len(hopeless))
        self._relaxed.changeColsBounds(len(hopeless), hopeless, zero, zero)

    def whole(self, values: Numbers) -> Numbers:
        """Return the columns of the best whole choice, given those of the relaxation."""
        count = self.matrix.num_binaries
        if not _is_fractional(values[:count]):
            return values
        least = self.bound
        reduced = np.array(self._relaxed.getSolution().col_dual)[:count]
        near = 0.002 * max(least, 1.0)
        allowed = (reduced <= near) | (values[:count] > FRACTION)
        found = self._branch(allowed)
        while found is None and not allowed.all():
            near *= 8
            allowed |= reduced <= near
            found = self._branch(allowed)
        if found is None:
            raise Infeasible
        columns, cost, self.bound = found
        # A choice with another option costs its reduced cost more than the relaxation, at least.
        possible = reduced <= cost - least + GAP
        if (possible & ~allowed).any():
            again = self._branch(possible | (values[:count] > FRACTION))
            if again is not None and again[1] <= cost:
                columns, cost, self.bound = again
        self.bound = max(least, min(self.bound, cost))
        if self.bound >= self.beat:
            raise Worse(self.bound / self.matrix.scale)
        return columns

    def _branch(self, allowed: NDArray[np.bool_]) -> tuple[Numbers, float, float] | None:
        import highspy

        solver = _solver(self.matrix, allowed, self.node_limit)
        for columns, values in self.rows:
            self._limit(solver, columns, values)
        try:
            self._run(solver)
        except Infeasible:
            return None
        info = solver.getInfo()
        self.num_nodes += max(0, info.mip_node_count)
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        found = np.array(solver.getSolution().col_value)
        return found, info.objective_function_value, info.mip_dual_bound

    def _run(self, solver: Any) -> None:
        import highspy

        solver.run()
        status = solver.getModelStatus()
        if status in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        ):
            raise Infeasible
        if status not in (
            highspy.HighsModelStatus.kOptimal,
            highspy.HighsModelStatus.kSolutionLimit,
            highspy.HighsModelStatus.kIterationLimit,
        ):
            raise InternalError(f"HiGHS ends with {solver.modelStatusToString(status)}")


def _is_fractional(values: Numbers) -> bool:
    return bool((np.abs(values - np.round(values)) > FRACTION).any())


def _solver(matrix: Matrix, allowed: NDArray[np.bool_] | None = None, node_limit: int = 0) -> Any:
    """Return HiGHS with the relaxation, or with the integer program over the options allowed."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(matrix.cost), len(matrix.rows)
    lp.col_cost_, lp.col_lower_ = matrix.cost, np.zeros(len(matrix.cost))
    lp.row_lower_, lp.row_upper_ = matrix.rows[:, 0].copy(), matrix.rows[:, 1].copy()
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.starts, matrix.indices
    lp.a_matrix_.value_ = matrix.values
    upper = matrix.upper.copy()
    options: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 1}
    if allowed is not None:
        upper[: matrix.num_binaries][~allowed] = 0.0
        integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [integer] * matrix.num_binaries + [real] * (
            len(matrix.cost) - matrix.num_binaries
        )
        options |= {
            "mip_max_nodes": node_limit, "mip_rel_gap": 0.0, "mip_abs_gap": GAP
        }  # fmt: skip
    lp.col_upper_ = upper
    solver: Any = highspy.Highs()
    for option, value in options.items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    return solver
