"""The matrix of the planning problem: columns, rows and entries (`irc.search.program`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from irc.dialects.placement import Placement
from irc.search.problem import Net, Problem
from irc.sharding.boxing import Boxing, LocalShape
from irc.sharding.spaces import Arcs, Codes, Numbers, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = 5000
"""Problems of so many columns are solved exactly."""

WHOLE = 1e6
"""What the objective of a cheapest plan is about: a solver's tolerances are absolute."""


@dataclass(frozen=True)
class NetColumns:
    """The columns of a net's boxings.

    Attributes:
        arcs: its transitions.
        flows: for each reader, the column of each transition.
        paid: the columns of transitions that any reader takes; those of the only reader.
    """

    arcs: Arcs
    flows: tuple[Codes, ...]
    paid: Codes


@dataclass(frozen=True)
class Matrix:
    """An integer program by rows, in compressed form; the first columns are binary.

    Attributes:
        cost: of each column, in parts of a second.
        scale: parts of a second.
        upper: the upper bound of each column; lower bounds are zero.
        num_binaries: how many columns choose an option.
        first: the first column of each node.
        rows: lower and upper bound of each row.
        starts: where each row starts in ``indices`` and ``values``.
        indices: the column of each entry.
        values: the coefficient of each entry.
        nets: where the boxings of each net are.
    """

    cost: Numbers
    scale: float
    upper: Numbers
    num_binaries: int
    first: Codes
    rows: Numbers
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Numbers
    nets: tuple[NetColumns, ...]


def spaces_of(problem: Problem, boxing: Boxing) -> dict[tuple[LocalShape, str], Space]:
    """Return the placements of each kind of value that a problem moves."""
    seeds: dict[tuple[LocalShape, str], dict[Placement, None]] = {}
    for net in problem.nets:
        asked = seeds.setdefault((net.shape, net.dtype), {})
        for port in (net.source, *net.sinks):
            asked.update(dict.fromkeys(port.placements))
    return {key: Space(boxing, *key, list(asked)) for key, asked in seeds.items()}


@dataclass
class _Builder:
    scale: float
    cost: list[Numbers] = field(default_factory=list["Numbers"])
    bounded: list[Numbers] = field(default_factory=list["Numbers"])
    rows: list[Numbers] = field(default_factory=list["Numbers"])
    entry_rows: list[Codes] = field(default_factory=list["Codes"])
    entry_columns: list[Codes] = field(default_factory=list["Codes"])
    entry_values: list[Numbers] = field(default_factory=list["Numbers"])
    num_columns: int = 0
    num_rows: int = 0

    def columns(self, cost: Numbers, upper: float) -> Codes:
        self.cost.append(cost)
        self.bounded.append(np.full(len(cost), upper))
        self.num_columns += len(cost)
        return np.arange(self.num_columns - len(cost), self.num_columns)

    def new_rows(self, count: int, lower: float, upper: float) -> Codes:
        self.rows.append(np.tile([lower, upper], (count, 1)))
        self.num_rows += count
        return np.arange(self.num_rows - count, self.num_rows)

    def add(self, rows: Codes, columns: Codes, values: float | Numbers) -> None:
        self.entry_rows.append(rows)
        self.entry_columns.append(columns)
        self.entry_values.append(np.broadcast_to(values, columns.shape))


def matrix_of(
    problem: Problem,
    spaces: dict[tuple[LocalShape, str], Space],
    *,
    branching: bool = True,
) -> Matrix:
    """Write the integer program of a problem; see `irc.search.program` for what it says."""
    least = sum(min(node.seconds) * node.count for node in problem.nodes)
    builder = _Builder(WHOLE / least if least > 0 else WHOLE)
    first: list[int] = []
    for node in problem.nodes:
        first.append(builder.num_columns)
        cost = np.array(node.seconds) * (node.count * builder.scale)
        chosen = builder.columns(cost, 1.0)
        builder.add(np.repeat(builder.new_rows(1, 1.0, 1.0), len(chosen)), chosen, 1.0)
    num_binaries = builder.num_columns
    starts = np.array(first, dtype=np.int64)
    nets = [
        _add_net(builder, net, spaces[net.shape, net.dtype], starts, branching)
        for net in problem.nets
    ]
    return _compressed(builder, num_binaries, starts, tuple(nets))


def _add_net(
    builder: _Builder, net: Net, space: Space, first: Codes, branching: bool
) -> NetColumns:
    source = space.codes(net.source.placements)
    sinks = [space.codes(sink.placements) for sink in net.sinks]
    arcs = space.useful(source, sinks, branching=branching)
    cost = arcs.seconds * (net.count * builder.scale)
    shared = len(sinks) > 1
    paid = builder.columns(cost, np.inf) if shared else None
    flows: list[Codes] = []
    for sink, codes in zip(net.sinks, sinks, strict=True):
        flow = builder.columns(np.zeros_like(cost) if shared else cost, np.inf)
        makes = first[net.source.node] + np.arange(len(source))
        wants = first[sink.node] + np.arange(len(codes))
        _conserve(builder, (source, makes), (codes, wants), arcs, flow)
        flows.append(flow)
        if paid is not None and len(paid):
            rows = builder.new_rows(len(flow), -np.inf, 0.0)
            builder.add(rows, flow, 1.0)
            builder.add(rows, paid, -1.0)
    return NetColumns(arcs, tuple(flows), flows[0] if paid is None else paid)


def _conserve(
    builder: _Builder,
    source: tuple[Codes, Codes],
    sink: tuple[Codes, Codes],
    arcs: Arcs,
    flow: Codes,
) -> None:
    """Write one row per placement: what comes in goes out."""
    places = np.concatenate([source[0], sink[0], arcs.tails, arcs.heads])
    _, row_of = np.unique(places, return_inverse=True)
    rows = builder.new_rows(int(row_of.max()) + 1, 0.0, 0.0)[row_of]
    columns = np.concatenate([source[1], sink[1], flow, flow])
    signs = np.repeat([1.0, -1.0, -1.0, 1.0], [len(source[0]), len(sink[0]), len(flow), len(flow)])
    builder.add(rows, columns, signs)


def with_least_memory(matrix: Matrix) -> Matrix:
    """Return the same choices, to be taken for the least memory: its column is the last.

    Time decides between equals.
    """
    faint = 1e-6 / WHOLE
    return replace(
        matrix,
        cost=np.append(matrix.cost * faint, WHOLE),
        upper=np.append(matrix.upper, np.inf),
    )


def _compressed(
    builder: _Builder, num_binaries: int, first: Codes, nets: tuple[NetColumns, ...]
) -> Matrix:
    """Sort the entries by row, and add up those of one place.

    A node that reads its own result (a call after a call) meets itself in a row.
    """
    rows = np.concatenate(builder.entry_rows)
    columns = np.concatenate(builder.entry_columns)
    values = np.concatenate(builder.entry_values)
    keys, place = np.unique(rows * builder.num_columns + columns, return_inverse=True)
    summed = np.bincount(place, weights=values, minlength=len(keys)).astype(np.float64)
    keep = summed != 0.0
    keys, summed = keys[keep], summed[keep]
    starts = np.searchsorted(keys, np.arange(builder.num_rows + 1) * builder.num_columns)
    return Matrix(
        np.concatenate(builder.cost),
        builder.scale,
        np.concatenate(builder.bounded),
        num_binaries,
        first,
        np.concatenate(builder.rows),
        starts.astype(np.int32),
        (keys % builder.num_columns).astype(np.int32),
        summed,
        nets,
    )
