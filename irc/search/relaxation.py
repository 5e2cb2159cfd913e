"""HiGHS on the matrix of a planning problem: the relaxation, then branch and bound.

The relaxation is almost always integral, and is solved alone first: it costs a tenth of what the
integer solver takes to say the same. Where it is not, its reduced costs say which options no better
choice can have, and branch and bound sees the few that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import InternalError
from irc.search.columns import Matrix
from irc.search.highs import GAP, LARGE, add_rows, integer_program, linear_program
from irc.sharding.spaces import Codes, Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRACTION = 1e-6
"""A column this far from whole is fractional."""

NEAR = 1e-6
"""Options whose reduced costs are below this part of the bound are tried first."""

PATIENCE = 0.3
"""Where memory is bounded, the simplex method has so many iterations for each column, then an
interior point takes over: of budgets that nothing fits the simplex method may need minutes to say
so."""

WARM = 0.05
"""From the last basis it has so many for each column, before it starts from nothing."""

NO_LIMIT = 2**31 - 1
"""HiGHS has no iterations above it."""

FAR = 1e-1
FEW = 50
"""Where a choice of a large program is so far from the bound, this many options more are looked
at."""

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
        self._relaxed: Any = linear_program(self.matrix)
        self._passed = 0  # rows that HiGHS has
        self._is_bounded = False  # HiGHS has solved it with rows of memory
        self._is_beaten = False  # what no better plan has is forbidden
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
        add_rows(self._relaxed, self.rows[self._passed :])
        self._passed = len(self.rows)
        try:
            self._solve()
        except Infeasible:
            raise self._nothing() from None
        import highspy

        if self._relaxed.getModelStatus() == highspy.HighsModelStatus.kObjectiveBound:
            if self._most < self.beat:
                raise Infeasible
            raise Worse(self.beat / self.matrix.scale)
        self.bound = self._relaxed.getInfo().objective_function_value
        if self.bound >= self.beat:
            raise Worse(self.bound / self.matrix.scale)
        solution = self._relaxed.getSolution()
        # Short of an optimum, reduced costs bound nothing.
        if self._relaxed.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            self._drop_beaten(np.array(solution.col_dual))
        return np.array(solution.col_value)

    def _solve(self) -> None:
        """Solve the relaxation: from the last basis, from nothing, or by an interior point.

        Raises:
            Infeasible: where there is no solution.
        """
        count = max(len(self.matrix.cost), LARGE)
        if self._is_bounded:
            # More rows of memory are mostly some hundred iterations for the dual simplex method;
            # the first ones move everything, and a start from nothing goes by presolve.
            self._relaxed.setOptionValue("simplex_iteration_limit", int(count * WARM))
            if self._run(self._relaxed):
                return
        self._relaxed.clearSolver()
        self._is_bounded = bool(self.rows)
        if self.rows:
            self._relaxed.setOptionValue("simplex_iteration_limit", int(count * PATIENCE))
        if not self._run(self._relaxed):
            self._relaxed.setOptionValue("solver", "ipm")
            self._relaxed.setOptionValue("simplex_iteration_limit", NO_LIMIT)
            self._relaxed.clearSolver()
            self._run(self._relaxed)
            self._relaxed.setOptionValue("solver", "choose")

    def _drop_beaten(self, reduced: Numbers) -> None:
        """Forbid the columns that no plan cheaper than the best one known has.

        A plan with a column costs the column's reduced cost more than the relaxation, at least;
        what is solved after this one, with more rows of memory and with whole choices, has but the
        columns that are left (reduced cost fixing: Wolsey, Integer Programming, section 7.6).
        """
        if not isfinite(self.beat):
            return
        reduced = reduced[: len(self.matrix.cost)]
        beaten = np.flatnonzero(reduced > self.beat - self.bound + GAP)
        self._forbid_columns(beaten)
        self._is_beaten |= len(beaten) > 0

    def _nothing(self) -> Infeasible | Worse:
        """Return what it means that no choice is left."""
        return Worse(self.beat / self.matrix.scale) if self._is_beaten else Infeasible()

    def _forbid_columns(self, columns: Codes) -> None:
        self.matrix.upper[columns] = 0.0
        zero = np.zeros(len(columns))
        self._relaxed.changeColsBounds(len(columns), columns.astype(np.int32), zero, zero)

    def drop_hopeless(self) -> None:
        """Forbid options that alone cost many times the optimum: their prices blur the others'.

        No plan that is found has one, or it were many times as dear as the bound.
        """
        costs = self.matrix.cost[: self.matrix.num_binaries]
        self._forbid_columns(np.flatnonzero(costs > HOPELESS * max(self.bound, 1.0)))
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
        allowed = (values[:count] > FRACTION) | (self.matrix.upper[:count] == 0.0)
        near = NEAR * max(least, 1.0)
        solution = self._branch(allowed)
        while solution is None and not allowed.all():
            allowed |= reduced <= near
            near *= 8
            solution = self._branch(allowed)
        if solution is None:
            # Of some programs presolve of HiGHS 1.15 says that they have no solution where they do.
            solution = self._branch(allowed, presolve=False)
        if solution is None:
            raise self._nothing()
        columns, cost, self.bound = solution
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

    def _branch(
        self, allowed: NDArray[np.bool_], *, presolve: bool = True
    ) -> tuple[Numbers, float, float] | None:
        """Return the columns, the objective and the bound of the best choice of options allowed."""
        import highspy

        count = len(self.matrix.cost)
        is_left = self.matrix.upper > 0.0
        is_left[: self.matrix.num_binaries] &= allowed
        solver = integer_program(self.matrix, is_left, self.node_limit)
        for upper in self.upper:
            solver.addCol(0.0, 0.0, upper, 0, np.zeros(0, np.int32), np.zeros(0))
        left = np.flatnonzero(np.append(is_left, np.ones(len(self.upper), bool)))
        place = {int(column): number for number, column in enumerate(left)}
        add_rows(
            solver,
            [
                (most, {place[c]: value for c, value in entries.items() if c in place})
                for most, entries in self.rows
            ],
        )
        if not presolve:
            solver.setOptionValue("presolve", "off")
        try:
            self._run(solver)
        except Infeasible:
            return None
        info = solver.getInfo()
        self.num_nodes += max(0, info.mip_node_count)
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        columns = np.zeros(count + len(self.upper))
        columns[left] = solver.getSolution().col_value
        return columns, info.objective_function_value, info.mip_dual_bound

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


def _is_fractional(values: Numbers) -> bool:
    return bool((np.abs(values - np.round(values)) > FRACTION).any())


def choice_of(matrix: Matrix, values: Numbers) -> tuple[int, ...]:
    """Return the option of each node that has the largest column."""
    options, first = values[: matrix.num_binaries], matrix.first
    # All nodes at once: a call for each would hand Python's lock to another thread each time.
    counts = np.diff(first, append=matrix.num_binaries)
    largest = np.flatnonzero(options == np.repeat(np.maximum.reduceat(options, first), counts))
    chosen: list[int] = (largest[np.searchsorted(largest, first)] - first).tolist()
    return tuple(chosen)
