"""The matrix of the planning problem: columns, rows and entries (`irc.sharding.program`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from irc.dialects.placement import Placement
from irc.sharding.boxing import Boxing, LocalShape
from irc.sharding.problem import Net, Problem
from irc.sharding.spaces import Arcs, Codes, Numbers, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

MICRO = 1e6
"""The objective is in microseconds: a solver's tolerances are absolute."""


@dataclass(frozen=True)
class Matrix:
    """An integer program by rows, in compressed form; the first columns are binary.

    Attributes:
        cost: of each column, microseconds.
        upper: the upper bound of each column; lower bounds are zero.
        num_binaries: how many columns choose an option.
        first: the first column of each node.
        rows: lower and upper bound of each row.
        starts: where each row starts in ``indices`` and ``values``.
        indices: the column of each entry.
        values: the coefficient of each entry.
    """

    cost: Numbers
    upper: Numbers
    num_binaries: int
    first: Codes
    rows: Numbers
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Numbers


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
    problem: Problem, boxing: Boxing, spaces: dict[tuple[LocalShape, str], Space]
) -> Matrix:
    """Write the integer program of a problem; see `irc.sharding.program` for what it says."""
    builder = _Builder()
    first: list[int] = []
    for node in problem.nodes:
        first.append(builder.num_columns)
        cost = np.array(node.seconds) * (node.count * MICRO)
        chosen = builder.columns(cost, 1.0)
        builder.add(np.repeat(builder.new_rows(1, 1.0, 1.0), len(chosen)), chosen, 1.0)
    num_binaries = builder.num_columns
    starts = np.array(first, dtype=np.int64)
    for net in problem.nets:
        _add_net(builder, net, spaces[net.shape, net.dtype], starts)
    _add_budget(builder, problem, starts)
    return _compressed(builder, num_binaries, starts)


def _add_net(builder: _Builder, net: Net, space: Space, first: Codes) -> None:
    source = space.codes(net.source.placements)
    sinks = [space.codes(sink.placements) for sink in net.sinks]
    arcs = space.useful(source, sinks)
    cost = arcs.seconds * (net.count * MICRO)
    shared = len(sinks) > 1
    paid = builder.columns(cost, np.inf) if shared else None
    for sink, codes in zip(net.sinks, sinks, strict=True):
        flow = builder.columns(np.zeros_like(cost) if shared else cost, np.inf)
        makes = first[net.source.node] + np.arange(len(source))
        wants = first[sink.node] + np.arange(len(codes))
        _conserve(builder, (source, makes), (codes, wants), arcs, flow)
        if paid is not None and len(paid):
            rows = builder.new_rows(len(flow), -np.inf, 0.0)
            builder.add(rows, flow, 1.0)
            builder.add(rows, paid, -1.0)


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
    signs = np.repeat(
        [1.0, -1.0, -1.0, 1.0], [len(source[0]), len(sink[0]), len(flow), len(flow)]
    )
    builder.add(rows, columns, signs)


def _add_budget(builder: _Builder, problem: Problem, first: Codes) -> None:
    if problem.memory_bytes is None:
        return
    columns = [
        first[n] + np.arange(len(node.num_bytes))
        for n, node in enumerate(problem.nodes)
        if node.num_bytes
    ]
    if columns:
        held = np.array([b for node in problem.nodes for b in node.num_bytes], dtype=np.float64)
        every = np.concatenate(columns)
        row = builder.new_rows(1, -np.inf, 1.0)
        builder.add(np.repeat(row, len(every)), every, held / problem.memory_bytes)


def _compressed(builder: _Builder, num_binaries: int, first: Codes) -> Matrix:
    """Sort the entries by row, and add up those of one place.

    A node that reads its own result (a call after a call) meets itself in a row.
    """
    rows = np.concatenate(builder.entry_rows)
    columns = np.concatenate(builder.entry_columns)
    values = np.concatenate(builder.entry_values)
    keys, place = np.unique(rows * builder.num_columns + columns, return_inverse=True)
    summed = np.bincount(place, weights=values, minlength=len(keys))
    keep = summed != 0.0
    keys, summed = keys[keep], summed[keep]
    starts = np.searchsorted(keys, np.arange(builder.num_rows + 1) * builder.num_columns)
    return Matrix(
        np.concatenate(builder.cost),
        np.concatenate(builder.bounded),
        num_binaries,
        first,
        np.concatenate(builder.rows),
        starts.astype(np.int32),
        (keys % builder.num_columns).astype(np.int32),
        summed,
    )
