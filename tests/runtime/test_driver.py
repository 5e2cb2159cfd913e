"""Three drivers bind the plan of one model: the numbers are one, and so is what a user calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.interpret.segments import interpreted_segments
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.runtime import load as load_native
from irc.runtime.driver import BoundPlan, BySizes, Driver
from irc.runtime.executor import Executor
from irc.runtime.gpu_driver import GpuDriver
from irc.runtime.torch_driver import TorchDriver


def model() -> nn.Module:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 5)).eval()


def bound_on(kind: str, folder: Path, x: torch.Tensor) -> BoundPlan[Any]:
    if kind == "native":
        irc.export_plan(model(), (x,), out=folder / "plan")
        return load_native(folder / "plan")
    program = capture(model(), (x,)).program
    driver: Driver[LoadedPlan, Executor] = TorchDriver(program.tensors)
    if kind == "torch":
        return driver.bind(make_plan(program, Options(), keep_ir=False))
    # Triton's interpreter has to be chosen before a process starts: kernels are run as their text.
    driver = GpuDriver("triton", program.tensors, load=interpreted_segments)
    return driver.bind(make_plan(program, Options(backend="triton")))


@pytest.mark.parametrize("kind", ["torch", "gpu", "native"])
def test_each_driver_gives_the_numbers_of_the_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.randn(3, 12)
    run = bound_on(kind, tmp_path, x)
    own: Sequence[Any] = run(x.numpy() if kind == "native" else x)
    np.testing.assert_allclose(np.asarray(own[0]), model()(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(IrcError) as error:
        run(np.zeros((4, 12), np.float32) if kind == "native" else torch.zeros(4, 12))
    assert "input-mismatch" in error.value.codes


def test_sizes_are_bound_once_and_the_oldest_are_dropped() -> None:
    bound: list[int] = []

    def bind(size: int) -> int | None:
        bound.append(size)
        return None if size == 3 else size * size

    kept = BySizes(bind, 2)
    assert [kept.at(size) for size in (2, 3, 3, 2, 4)] == [4, None, None, 4, 16]
    assert bound == [2, 3, 4]
    assert 3 not in kept and kept.values() == [4, 16] and kept.peek(2) == 4


def test_two_threads_that_ask_for_one_size_wait_for_one_that_is_bound() -> None:
    started, go = threading.Event(), threading.Event()
    bound: list[int] = []

    def bind(size: int) -> int:
        bound.append(size)
        if size == 1:
            started.set()
            assert go.wait(10)
        return size

    kept = BySizes(bind)
    kept.at(0)
    callers = [threading.Thread(target=kept.at, args=(1,)) for _ in range(3)]
    for caller in callers:
        caller.start()
    assert started.wait(10)
    assert kept.at(0) == 0  # nobody waits for sizes that are there
    go.set()
    for caller in callers:
        caller.join()
    assert bound == [0, 1]


def test_what_cannot_be_bound_is_asked_for_again() -> None:
    answers = iter([IrcError("size-outside", "too large"), 7])

    def bind(_size: int) -> int:
        answer = next(answers)
        if isinstance(answer, IrcError):
            raise answer
        return answer

    kept = BySizes(bind)
    with pytest.raises(IrcError):
        kept.at(1)
    assert kept.at(1) == 7
