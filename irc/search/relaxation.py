"""HiGHS on the matrix of a planning problem: the relaxation, then branch and bound.

The relaxation is almost always integral, and is solved alone first: it costs a tenth of what the
integer solver takes to say the same. Where it is not, its reduced costs say which options no better
choice can have, and branch and bound sees the few that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import InternalError
from irc.search.columns import Matrix
from irc.sharding.spaces import Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRACTION = 1e-6
"""A column this far from whole is fractional."""

GAP = 1e-6
"""Choices whose objectives differ by less are equally good."""

NEAR = 1e-6
"""Options whose reduced costs are below this part of the bound are tried first."""

PATIENCE = 0.3
"""Where memory is bounded, the simplex method has so many iterations for each column, then an
interior point takes over: of budgets that nothing fits the simplex method may need minutes to say
so."""

LARGE = 20_000
GOOD = 5e-3
"""With more columns than this, branch and bound over the options that the relaxation has a part of
may end so near the optimum; the gap tells."""

FAR = 1e-1
FEW = 50
FEW_NODES = 100
"""Where it is so far from it, this many options more are looked at, in so many nodes."""

HOPELESS = 100
"""An option that costs so many times the optimum without a budget is out of the question."""

ABSURD = 1e4
"""Of a large program, plans that take so many times the optimum without a budget count as none: the
simplex method may need minutes between there and the proof that nothing fits."""


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


@dataclass
class Relaxation:
    """HiGHS on one matrix, which memory rows are added to."""

    matrix: Matrix
    node_limit: int
    beat: float
    bound: float = 0.0
    num_nodes: int = 0
    is_free: bool = False
    upper: list[float] = field(default_factory=list[float])
    rows: list[tuple[float, dict[int, float]]] = field(
        default_factory=list["tuple[float, dict[int, float]]"]
    )

    def __post_init__(self) -> None:
        self._relaxed: Any = _solver(self.matrix)
        self._passed = 0  # rows that HiGHS has
        self._most = self.beat
        # The dual simplex method may stop there: what it has then is a bound.
        self._relaxed.setOptionValue("objective_bound", self._most)

    def new_column(self, upper: float = float("inf")) -> int:
        """Add a column that costs nothing, and return its index."""
        self._relaxed.addCol(0.0, 0.0, upper, 0, np.zeros(0, np.int32), np.zeros(0))
        self.upper.append(upper)
        return len(self.matrix.cost) + len(self.upper) - 1

    def limit(self, row: Mapping[int, float], most: float, *, least: float | None = None) -> int:
        """Add a row, and return its number among those that were added.

        Args:
            row: the coefficients of columns.
            most: what their sum is at most.
            least: of a row of memory, what is held beside them; where the least memory is searched,
                that is the bound.
        """
        entries = dict(row)
        if least is not None and self.is_free:
            entries[len(self.matrix.cost) - 1], most = -1.0, 0.0
        most -= least or 0.0
        self.rows.append((most, entries))
        return len(self.rows) - 1

    def forbid_option(self, column: int) -> None:
        """Cut off an option that does not fit whatever else is chosen."""
        self.matrix.upper[column] = 0.0
        self._relaxed.changeColBounds(column, 0.0, 0.0)

    def extend(self, row: int, column: int, value: float) -> None:
        """Give a column a coefficient in a row that was added."""
        self.rows[row][1][column] = value
        if row < self._passed:
            self._relaxed.changeCoeff(len(self.matrix.rows) + row, column, value)

    def forbid(self, choice: Sequence[int], nodes: Iterable[int]) -> None:
        """Cut off the options that a choice has at some nodes: they do not fit together."""
        first = self.matrix.first
        chosen = [int(first[node]) + choice[node] for node in sorted(nodes)]
        # At most all but one of them: scaled, as the rows of memory are, to 1.
        self.limit(dict.fromkeys(chosen, 1.0 / (len(chosen) - 0.999)), 1.0)

    def relax(self) -> Numbers:
        """Return the columns of the relaxation's optimum.

        Raises:
            Infeasible: where there is none.
            Worse: where it is no cheaper than what is known.
        """
        # All at once: with each row HiGHS goes through its whole matrix.
        _add_rows(self._relaxed, self.rows[self._passed :])
        self._passed = len(self.rows)
        if self.rows:
            # From its last basis it would take longer than from nothing: that goes by presolve.
            self._relaxed.clearSolver()
            limit = int(max(len(self.matrix.cost), LARGE) * PATIENCE)
            self._relaxed.setOptionValue("simplex_iteration_limit", limit)
        if not self._run(self._relaxed):
            self._relaxed.setOptionValue("solver", "ipm")
            self._relaxed.clearSolver()
            self._run(self._relaxed)
            self._relaxed.setOptionValue("solver", "choose")
        import highspy

        if self._relaxed.getModelStatus() == highspy.HighsModelStatus.kObjectiveBound:
            if self._most < self.beat:
                raise Infeasible
            raise Worse(self.beat / self.matrix.scale)
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
        if len(self.matrix.cost) > LARGE:
            self._most = min(self.beat, ABSURD * max(self.bound, 1.0))
            self._relaxed.setOptionValue("objective_bound", self._most)

    def whole(self, values: Numbers) -> Numbers:
        """Return the columns of the best whole choice, given those of the relaxation."""
        count = self.matrix.num_binaries
        if not _is_fractional(values[:count]):
            return values
        least = self.bound
        reduced = np.array(self._relaxed.getSolution().col_dual)[:count]
        allowed = values[:count] > FRACTION
        near = NEAR * max(least, 1.0)
        found = self._branch(allowed)
        while found is None and not allowed.all():
            allowed |= reduced <= near
            near *= 8
            found = self._branch(allowed)
        if found is None:
            raise Infeasible
        columns, cost, self.bound = found
        is_large = len(self.matrix.cost) > LARGE
        if is_large and (cost - least <= FAR * cost or allowed.all()):
            self.bound = least
            return columns
        # A choice with another option costs its reduced cost more than the relaxation, at least.
        room = cost - least
        if is_large:
            room = min(room, float(np.sort(reduced[~allowed])[:FEW][-1]))
        possible = reduced <= room + GAP
        if (possible & ~allowed).any():
            again = self._branch(possible | (values[:count] > FRACTION))
            if again is not None and again[1] <= cost:
                columns, cost, self.bound = again
        self.bound = max(least, min(self.bound, cost, least + room))
        if self.bound >= self.beat:
            raise Worse(self.bound / self.matrix.scale)
        return columns

    def _branch(self, allowed: NDArray[np.bool_]) -> tuple[Numbers, float, float] | None:
        import highspy

        solver = _solver(self.matrix, allowed, self.node_limit)
        for upper in self.upper:
            solver.addCol(0.0, 0.0, upper, 0, np.zeros(0, np.int32), np.zeros(0))
        _add_rows(solver, self.rows)
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

    def _run(self, solver: Any) -> bool:
        """Run HiGHS; return whether it came to an end before a limit on iterations.

        Raises:
            Infeasible: where there is no solution.
        """
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
            highspy.HighsModelStatus.kObjectiveBound,
            highspy.HighsModelStatus.kSolutionLimit,
            highspy.HighsModelStatus.kIterationLimit,
        ):
            raise InternalError(f"HiGHS ends with {solver.modelStatusToString(status)}")
        return status != highspy.HighsModelStatus.kIterationLimit


def _add_rows(solver: Any, rows: Sequence[tuple[float, Mapping[int, float]]]) -> None:
    """Add rows, each what its sum is at most and its coefficients."""
    if not rows:
        return
    counts = [len(entries) for _, entries in rows]
    starts = np.array([0, *accumulate(counts[:-1])], np.int32)
    columns = np.fromiter((c for _, entries in rows for c in entries), np.int32, sum(counts))
    values = np.fromiter(
        (v for _, entries in rows for v in entries.values()), np.float64, sum(counts)
    )
    most = np.array([bound for bound, _ in rows])
    least = np.full(len(rows), -np.inf)
    solver.addRows(len(rows), least, most, sum(counts), starts, columns, values)


def _is_fractional(values: Numbers) -> bool:
    return bool((np.abs(values - np.round(values)) > FRACTION).any())


def _silent_solver() -> Any:
    """Return HiGHS, which prints its version from 1.16 on where its callbacks are set up."""
    import highspy

    class SilentHighs(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return SilentHighs()


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
    is_large = len(matrix.cost) > LARGE
    options: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 1}
    if allowed is not None:
        upper[: matrix.num_binaries][~allowed] = 0.0
        integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [integer] * matrix.num_binaries + [real] * (
            len(matrix.cost) - matrix.num_binaries
        )
        options |= {
            "mip_max_nodes": min(node_limit, FEW_NODES) if is_large else node_limit,
            "mip_rel_gap": GOOD if is_large else 0.0,
            "mip_abs_gap": GAP,
        }  # fmt: skip
    lp.col_upper_ = upper
    solver = _silent_solver()
    for option, value in options.items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    return solver


def choice_of(matrix: Matrix, values: Numbers) -> tuple[int, ...]:
    """Return the option of each node that has the largest column."""
    ends = np.append(matrix.first[1:], matrix.num_binaries)
    return tuple(
        int(np.argmax(values[start:end])) for start, end in zip(matrix.first, ends, strict=True)
    )
