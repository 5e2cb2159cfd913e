"""Kernels on several threads while other programs have the cores."""

# pyright: basic
from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import irc
from irc.runtime.native.pool import BESIDE, PERIOD, UNTIL

FOREVER = 1 << 62


@pytest.fixture
def until() -> Iterator[ctypes.c_int64]:
    """The cycle until which the machine is taken for busy; as it was afterwards."""
    words = [ctypes.c_int64.from_address(BESIDE.address + place) for place in (UNTIL, PERIOD)]
    before = [word.value for word in words]
    yield words[0]
    for word, value in zip(words, before, strict=True):
        word.value = value


def test_a_busy_machine_changes_no_number(until: ctypes.c_int64) -> None:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        module = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.Softmax(-1))
        x = torch.randn(64, 256)
        with torch.no_grad():
            run = irc.compile(module.eval())
            until.value = 0
            quiet = run(x)
            until.value = FOREVER
            busy = [run(x) for _ in range(50)]
    finally:
        torch.set_num_threads(threads)
    assert BESIDE.num_threads >= 2
    assert all(torch.equal(each, quiet) for each in busy)
    assert until.value == FOREVER  # threads of its own are not waited for, nor timed
    torch.testing.assert_close(quiet, module(x))
