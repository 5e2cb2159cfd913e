"""The programs of HiGHS on the matrix of a planning problem, linear and integer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.search.columns import Matrix
from irc.sharding.spaces import Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAP = 1e-6
"""Choices whose objectives differ by less are equally good."""

LARGE = 20_000
GOOD = 5e-3
"""With more columns than this, branch and bound over the options that the relaxation has a part of
may end so near the optimum; the gap tells."""

FEW_NODES = 100
"""It looks at so many nodes then."""


def _silent_solver() -> Any:
    """Return HiGHS, which prints its version from 1.16 on where its callbacks are set up."""
    import highspy

    class SilentHighs(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return SilentHighs()


def linear_program(matrix: Matrix) -> Any:
    """Return HiGHS with the relaxation."""
    lp = _program(matrix, matrix.cost, matrix.upper)
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.starts, matrix.indices
    lp.a_matrix_.value_ = matrix.values
    return _with_options(lp, {})


def integer_program(matrix: Matrix, is_left: NDArray[np.bool_], node_limit: int) -> Any:
    """Return HiGHS with the integer program over the columns that are left.

    The others are not in it: of columns that are fixed at zero presolve is slow, and may go wrong.
    """
    import highspy

    lp = _program(matrix, matrix.cost[is_left], matrix.upper[is_left])
    place = np.cumsum(is_left) - 1
    is_entry = is_left[matrix.indices]
    before = np.append(0, np.cumsum(is_entry))
    lp.a_matrix_.start_ = before[matrix.starts].astype(np.int32)
    lp.a_matrix_.index_ = place[matrix.indices[is_entry]].astype(np.int32)
    lp.a_matrix_.value_ = matrix.values[is_entry]
    count = int(is_left[: matrix.num_binaries].sum())
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [integer] * count + [real] * (lp.num_col_ - count)
    is_large = len(matrix.cost) > LARGE
    options: dict[str, Any] = {
        "mip_max_nodes": min(node_limit, FEW_NODES) if is_large else node_limit,
        "mip_rel_gap": GOOD if is_large else 0.0,
        "mip_abs_gap": GAP,
    }
    return _with_options(lp, options)


def _program(matrix: Matrix, cost: Numbers, upper: Numbers) -> Any:
    """Return a linear program with the rows of a matrix, and as yet no entries."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(matrix.rows)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(len(cost)), upper
    lp.row_lower_, lp.row_upper_ = matrix.rows[:, 0].copy(), matrix.rows[:, 1].copy()
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    return lp


def _with_options(lp: Any, options: Mapping[str, Any]) -> Any:
    solver = _silent_solver()
    repeatable = {"output_flag": False, "threads": 1, "random_seed": 1}
    for option, value in (repeatable | dict(options)).items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    return solver


def add_rows(solver: Any, rows: Sequence[tuple[float, Mapping[int, float]]]) -> None:
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
