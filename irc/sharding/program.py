"""The integer program of sharding, and its solution by HiGHS.

    x[n, o] in {0, 1}     node n chooses option o             sum over o of x[n, o] = 1
    f[k, t] >= 0          flow to reader k of a net over the placement transition t
    w[t]    >= f[k, t]    transition t is paid once for all readers k of the net

    min  sum of c[n, o] x[n, o]  +  sum over nets and t of c[t] w[t]

At each placement p of a net, for each reader k: what the producer chose enters, what k chose
leaves,

    [producer is at p] + sum of f[k, t] into p  =  sum of f[k, t] out of p + [k is at p]

so a reader's flow is its boxing path, and its columns are the transitions of single axes instead of
all pairs of placements. The relaxation is almost always integral. No number stands for infinity:
where no transition leads, there is no column. A node limit bounds the search, never a clock: plans
repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from irc.dialects.placement import Placement
from irc.errors import InternalError
from irc.sharding.boxing import Boxing, Priced
from irc.sharding.problem import Net, Port, Problem
from irc.sharding.trees import Trees

MICRO = 1e6
"""The objective is in microseconds: HiGHS's tolerances are absolute."""


@dataclass(frozen=True)
class Solution:
    """A choice and how good it is.

    Attributes:
        choice: the option of each node.
        seconds: the objective, by the exact trees.
        bound_s: no choice is cheaper than this.
        num_columns: columns of the integer program after pruning.
        num_nodes: branch-and-bound nodes that were searched.
    """

    choice: tuple[int, ...]
    seconds: float
    bound_s: float
    num_columns: int
    num_nodes: int

    @property
    def gap(self) -> float:
        """How far from optimal the choice may be, relative to its own cost."""
        return max(0.0, (self.seconds - self.bound_s) / self.seconds) if self.seconds > 0 else 0.0


class Infeasible(Exception):  # noqa: N818 - what the solver says, not a fault
    """No choice satisfies all constraints."""


def solve(problem: Problem, boxing: Boxing, *, node_limit: int = 10_000) -> Solution:
    """Find the cheapest choice.

    Args:
        problem: Nodes and nets; nodes have one option at least.
        boxing: Transitions and their prices.
        node_limit: Branch-and-bound nodes; the gap that is left is reported.

    Raises:
        Infeasible: where constraints contradict each other.
    """
    columns = _Columns(problem, boxing)
    values, bound, num_nodes = _run(columns, node_limit)
    choice = tuple(
        max(range(len(node.seconds)), key=lambda o: values[start + o])
        for node, start in zip(problem.nodes, columns.first, strict=True)
    )
    seconds = problem.seconds(choice, Trees(boxing))
    if seconds is None:
        raise InternalError("the solver's choice has no boxing")
    return Solution(choice, seconds, bound / MICRO, len(columns.cost), num_nodes)


@dataclass
class _Columns:
    """The matrix, row by row."""

    problem: Problem
    boxing: Boxing
    cost: list[float] = field(default_factory=list[float])
    upper: list[float] = field(default_factory=list[float])
    first: list[int] = field(default_factory=list[int])
    rows: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list[int])
    values: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        for node in self.problem.nodes:
            self.first.append(len(self.cost))
            chosen = [self._column(s * node.count * MICRO, upper=1.0) for s in node.seconds]
            self._row(((c, 1.0) for c in chosen), 1.0, 1.0)
        self.num_binaries = len(self.cost)
        for net in self.problem.nets:
            self._add_net(net)
        if self.problem.memory_bytes is not None:
            held = [
                (self.first[n] + o, float(size) / self.problem.memory_bytes)
                for n, node in enumerate(self.problem.nodes)
                for o, size in enumerate(node.num_bytes)
                if size
            ]
            self._row(held, -_infinity(), 1.0)

    def _column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def _row(self, entries: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        for index, value in entries:
            self.indices.append(index)
            self.values.append(value)
        self.rows.append((lower, upper))
        self.starts.append(len(self.indices))

    def _add_net(self, net: Net) -> None:
        transitions = _transitions(net, self.boxing)
        scale = net.count * MICRO
        shared = len(net.sinks) > 1
        paid = (
            [self._column(cost * scale, _infinity()) for _, _, cost in transitions]
            if shared
            else []
        )
        for sink in net.sinks:
            flow = [
                self._column(0.0 if shared else cost * scale, _infinity())
                for _, _, cost in transitions
            ]
            self._conserve(net.source, sink, transitions, flow)
            for one, all_readers in zip(flow, paid, strict=False):
                self._row([(one, 1.0), (all_readers, -1.0)], -_infinity(), 0.0)

    def _conserve(
        self,
        source: Port,
        sink: Port,
        transitions: list[tuple[Placement, Placement, float]],
        flow: list[int],
    ) -> None:
        """Write one row per placement: what comes in goes out."""
        balance: dict[Placement, dict[int, float]] = {}

        def add(placement: Placement, column: int, sign: float) -> None:
            # A node that reads its own result (a call after a call) meets itself here.
            row = balance.setdefault(placement, {})
            row[column] = row.get(column, 0.0) + sign

        for option, placement in enumerate(source.placements):
            add(placement, self.first[source.node] + option, 1.0)
        for option, placement in enumerate(sink.placements):
            add(placement, self.first[sink.node] + option, -1.0)
        for (before, after, _), column in zip(transitions, flow, strict=True):
            add(before, column, -1.0)
            add(after, column, 1.0)
        for row in balance.values():
            entries = [(column, sign) for column, sign in row.items() if sign]
            if entries:
                self._row(entries, 0.0, 0.0)


def _transitions(net: Net, boxing: Boxing) -> list[tuple[Placement, Placement, float]]:
    """Return the transitions that can lie on a way from a producer's placement to a reader's."""
    sources = dict.fromkeys(net.source.placements)
    targets = {p for sink in net.sinks for p in sink.placements}
    if targets == set(sources) and len(targets) == 1:
        return []
    found: dict[Placement, Sequence[Priced]] = {}
    stack = list(sources)
    while stack:
        here = stack.pop()
        if here not in found:
            found[here] = boxing.direct_steps(net.shape, net.dtype, here)
            stack += [step.result for step, _ in found[here]]
    return [(here, step.result, s) for here, steps in found.items() for step, s in steps]


def _run(columns: _Columns, node_limit: int) -> tuple[list[float], float, int]:
    import highspy
    import numpy as np

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns.cost), len(columns.rows)
    lp.col_cost_ = np.array(columns.cost)
    lp.col_lower_ = np.zeros(len(columns.cost))
    lp.col_upper_ = np.array(columns.upper)
    lp.row_lower_ = np.array([lower for lower, _ in columns.rows])
    lp.row_upper_ = np.array([upper for _, upper in columns.rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(columns.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(columns.indices, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(columns.values)
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [
        integer if c < columns.num_binaries else real for c in range(len(columns.cost))
    ]
    solver: Any = highspy.Highs()
    for option, value in {
        "output_flag": False,
        "threads": 1,
        "random_seed": 1,
        "mip_max_nodes": node_limit,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 1e-6,
    }.items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    ):
        raise Infeasible
    if info.primal_solution_status != 2:  # kSolutionStatusFeasible
        raise InternalError(f"HiGHS ends with {solver.modelStatusToString(status)} and no choice")
    return list(solver.getSolution().col_value), info.mip_dual_bound, info.mip_node_count


def _infinity() -> float:
    import highspy

    return highspy.kHighsInf
