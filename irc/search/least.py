"""The least memory that any plan needs."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from irc.search.columns import SMALL, matrix_of, spaces_of, with_least_memory
from irc.search.memory_rows import MemoryRows
from irc.search.problem import Problem
from irc.search.program import MAX_ROUNDS, solve
from irc.search.relaxation import Infeasible, Relaxation, choice_of
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from irc.search.liveness import Moment

TOLERANCE = 1e-6

CLOSE = 1.01
"""A budget that is so near the smallest is good enough."""


def least_memory(
    problem: Problem, boxing: Boxing, *, stored: bool = False
) -> tuple[int, tuple[int, ...]]:
    """Return a budget that some choice holds, the smallest or close to it, and that choice.

    Args:
        problem: nodes and nets, and a budget that no choice holds.
        boxing: transitions and their prices.
        stored: of what is loaded alone.
    """
    matrix = matrix_of(problem, spaces_of(problem, boxing))
    if len(matrix.cost) <= SMALL:
        return _exact(problem, boxing, stored=stored)
    return _bisected(problem, boxing, stored=stored)


def is_feasible(problem: Problem, boxing: Boxing) -> bool:
    """Return whether some choice holds the budget."""
    try:
        solve(problem, boxing)
    except Infeasible:
        return False
    return True


def _bisected(problem: Problem, boxing: Boxing, *, stored: bool) -> tuple[int, tuple[int, ...]]:
    free = solve(replace(problem, memory_bytes=None, stored_bytes=None), boxing)
    trees = Trees(boxing)
    low = (problem.stored_bytes if stored else problem.memory_bytes) or 1
    high, best = _held(problem, free.choice, trees, stored=stored), free.choice
    # Memory is short at the same moments whatever the budget: each found costs a round.
    moments: dict[Moment, None] = {}
    while high > low * CLOSE:
        budget = int(sqrt(low * high))
        bounded = _bounded(problem, budget, stored=stored)
        try:
            solution = solve(bounded, boxing, moments=() if stored else moments)
        except Infeasible:
            low = budget
            continue
        best = solution.choice
        moments |= dict.fromkeys(solution.moments)
        high = min(budget, _held(problem, best, trees, stored=stored))
    return high, best


def _exact(problem: Problem, boxing: Boxing, *, stored: bool) -> tuple[int, tuple[int, ...]]:
    matrix = with_least_memory(matrix_of(problem, spaces_of(problem, boxing)))
    search = Relaxation(matrix, node_limit=1000, beat=float("inf"), is_free=True)
    trees = Trees(boxing)
    liveness = problem.liveness
    assert liveness is not None

    def needed(choice: tuple[int, ...]) -> tuple[int, Moment]:
        return (liveness.stored(choice), ()) if stored else liveness.worst(choice, trees)

    # Rows are in units of what the fastest choice holds, whatever budget was asked for: beside one
    # that is far off, sizes would drown in the solver's tolerance.
    unit = max(needed(choice_of(matrix, search.relax()))[0], 1)
    rows = MemoryRows(problem, search, trees, unit)
    best: tuple[int, tuple[int, ...]] | None = None
    is_whole = False
    for _ in range(MAX_ROUNDS):
        values = search.relax()
        values = search.whole(values) if is_whole else values
        choice = choice_of(matrix, values)
        held, moment = needed(choice)
        if best is None or held < best[0]:
            best = held, choice
        if moment not in rows:
            rows.bound(moment, unit)
        elif not is_whole:
            is_whole = True
        elif held > values[len(matrix.cost) - 1] * unit * (1 + TOLERANCE):
            rows.correct(choice, moment)
        else:
            break
    assert best is not None
    return _lowered(problem, boxing, best, stored=stored)


def _lowered(
    problem: Problem, boxing: Boxing, best: tuple[int, tuple[int, ...]], *, stored: bool
) -> tuple[int, tuple[int, ...]]:
    """Return a budget as close to the smallest: rows hold less than choices do, so one may be left.

    Args:
        problem: small enough for `solve` to be exact.
        boxing: transitions and their prices.
        best: a budget that works, and its choice.
        stored: of what is loaded alone.
    """
    high, choice = best
    low = (problem.stored_bytes if stored else problem.memory_bytes) or 1
    budget = int(high / CLOSE)
    while low < budget:
        try:
            solution = solve(_bounded(problem, budget, stored=stored), boxing)
        except Infeasible:
            break
        choice, held = (
            solution.choice,
            _held(problem, solution.choice, Trees(boxing), stored=stored),
        )
        high = min(budget, held)
        budget = int(high / CLOSE)
    return high, choice


def _bounded(problem: Problem, budget: int, *, stored: bool) -> Problem:
    return replace(
        problem,
        memory_bytes=None if stored else budget,
        stored_bytes=budget if stored else None,
    )


def _held(problem: Problem, choice: tuple[int, ...], trees: Trees, *, stored: bool) -> int:
    liveness = problem.liveness
    assert liveness is not None
    return liveness.stored(choice) if stored else liveness.worst(choice, trees)[0]
