"""Tables of addresses: made once for each set, kept by the graph that reads them."""

import ctypes
import gc
import weakref

import pytest
import torch

from irc.errors import IrcError
from irc.runtime import address_table, graph
from irc.runtime.address_table import MAX_TABLES, AddressTables


def words(address: int, count: int) -> list[int]:
    """Read a table of the host."""
    return list((ctypes.c_int64 * count).from_address(address))


def test_a_table_is_made_once() -> None:
    tables = AddressTables((7, 8), "cpu")
    one = tables.at([100, 2**40])
    assert words(one, 4) == [7, 8, 100, 2**40]
    assert tables.at([100, 2**40]) == one
    assert tables.at([100, 3]) != one
    assert tables.at((100, 2**40)) == one


def test_those_used_last_are_kept() -> None:
    tables = AddressTables((), "cpu")
    first = tables.at([0])
    for address in range(1, MAX_TABLES):
        tables.at([address])
    assert tables.at([0]) == first
    tables.at([MAX_TABLES])
    assert (0,) in tables._known and (1,) not in tables._known
    assert len(tables._known) == MAX_TABLES


def test_a_recording_keeps_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when other calls have pushed the table out."""
    tables = AddressTables((), "cpu")
    held: list[object] = []
    monkeypatch.setattr(graph._recording, "held", held, raising=False)
    tables.at([1])
    monkeypatch.setattr(graph._recording, "held", None)
    table = weakref.ref(tables._known[1,])
    for address in range(2, MAX_TABLES + 2):
        tables.at([address])
    gc.collect()
    assert (1,) not in tables._known and table() is held[0]


def test_a_callers_recording_wants_a_call_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = AddressTables((), "cpu")
    monkeypatch.setattr(tables, "device", torch.device("cuda"))
    monkeypatch.setattr(address_table.torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(IrcError, match="whose addresses are new") as caught:
        tables.at([1])
    assert caught.value.code == "device-failed"
