"""Segments as CUDA graphs, on a stand-in for CUDA that records what is launched."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from irc.runtime.graph import MAX_GRAPHS, GraphedSegment


class Device:
    """Counts launches; what is launched while a graph records runs when it is replayed."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.recording: list[int] | None = None

    def run(self, table: int) -> None:
        (value,) = (ctypes.c_int64 * 1).from_address(table)
        (self.ran if self.recording is None else self.recording).append(value)

    def graph(self) -> "Graph":
        return Graph(self)


class Graph:
    """What was launched while it recorded."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches: list[int] = []

    def replay(self) -> None:
        self.device.ran += self.launches


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    fake_device = Device()

    @contextmanager
    def record(graph: Graph, **_: object) -> Iterator[None]:
        fake_device.recording = graph.launches
        yield
        fake_device.recording = None

    capturing = "is_current_stream_capturing"
    monkeypatch.setattr(torch.cuda, capturing, lambda: fake_device.recording is not None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fake_device.graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return fake_device


def table(value: int) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * 1)(value)


def test_every_call_runs_once_launched_or_replayed(device: Device) -> None:
    segment = GraphedSegment(device, 1)
    tables = [table(7), table(8)]
    order = [0, 0, 0, 1, 0, 1, 1]
    for which in order:
        segment.run(ctypes.addressof(tables[which]))
    assert device.ran == [7 + which for which in order]
    assert len(segment._graphs) == 2


def test_a_graph_is_of_the_addresses_and_not_of_the_table(device: Device) -> None:
    """One frame's table is written anew at each call."""
    segment, one = GraphedSegment(device, 1), table(7)
    for value in (7, 7, 9, 7, 9, 9):
        one[0] = value
        segment.run(ctypes.addressof(one))
    assert device.ran == [7, 7, 9, 7, 9, 9]


def test_graphs_that_are_not_used_go(device: Device) -> None:
    segment = GraphedSegment(device, 1)
    for value in [v for v in range(3 * MAX_GRAPHS) for _ in range(2)]:
        call_table = table(value)
        segment.run(ctypes.addressof(call_table))
    assert len(segment._graphs) == MAX_GRAPHS
    assert device.ran == [v for v in range(3 * MAX_GRAPHS) for _ in range(2)]


def test_inside_a_graph_of_the_caller_nothing_is_recorded(device: Device) -> None:
    segment, graph, call_table = GraphedSegment(device, 1), device.graph(), table(5)
    with torch.cuda.graph(graph):
        for _ in range(3):
            segment.run(ctypes.addressof(call_table))
    assert graph.launches == [5, 5, 5]
    assert not segment._graphs
