"""Modules compiled once for all sizes by the CUDA backend, on the stand-in for a driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import irc
from irc.backends.cuda import machine
from tests.backends.cuda.host_machine import HostMachine
from tests.backends.open_modules import modules
from tests.calls.test_dynamic import statistics

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("name", ["scores", pytest.param("block", marks=pytest.mark.slow)])
def test_one_compilation_serves_every_size(tmp_path: Path, name: str) -> None:
    module, calls = modules()[name]
    with machine.use(HostMachine(tmp_path)) as gpu, torch.no_grad():
        fast, compiled = irc.compile(module, backend="cuda", dynamic=True), list[int]()
        for call in calls:
            torch.testing.assert_close(fast(*call), module(*call), rtol=2e-5, atol=2e-5)
            compiled.append(gpu.compiled)
        # Each kernel once, whatever the sizes of the calls that follow.
        assert compiled[0] > 0 and set(compiled) == {compiled[0]}
        (work,) = statistics(fast).open_sizes
        assert (work.emitted, work.reasons) == (0, [])
        launched = {note.split()[2] for note in gpu.notes if note.startswith("launch ")}
        assert len(launched) > 1, "grids follow the sizes"
