"""PyTorch's operators: a tenth with a few samples each here, all of them with ``-m slow``.

The trials run in a process of their own, which forks: this one may have threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from tests.opinfo import report
from tests.opinfo.compare import difference, stray
from tests.opinfo.compilers import eager_backend, through_dynamo
from tests.opinfo.entries import Call, calls, entries, names_of, part
from tests.opinfo.expected import LEFT, NOT_ON_CPU, TIES, UNINITIALISED, UNTOLD
from tests.opinfo.modules import names_of as modules_of
from tests.opinfo.trial import Trial
from tests.opinfo.ways import DTYPES, Way, ways

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *options: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the tables of a run, which has to end well; the one of counts is printed."""
    out = tmp_path / "opinfo.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.opinfo", "--json", str(out), "--bad", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout[done.stdout.index("| way") :])
    return json.loads(out.read_text(encoding="utf-8"))


def test_the_register_is_as_large_as_ever() -> None:
    assert len(entries()) >= 670 and len(modules_of(Way())) >= 110
    counts = [len(names_of(Way(dtype))) for dtype in DTYPES]
    assert counts == [672, 389, 671, 546, 541, 463, 344]
    every = {name for dtype in DTYPES for name in (*names_of(Way(dtype)), *modules_of(Way(dtype)))}
    assert not {*LEFT, *UNINITIALISED, *UNTOLD, *TIES} - every and not NOT_ON_CPU & every
    assert sum(name not in modules_of(Way()) for name in LEFT) < 30


@pytest.mark.timeout(900)
def test_a_tenth_of_the_operators(tmp_path: Path) -> None:
    tables = run(tmp_path, "--part", "10", "--samples", "2")
    assert tables[str(Way())].keys() == set(part(names_of(Way()), 10))


OTHERS = ",".join(DTYPES[1:])


@pytest.mark.timeout(900)
def test_some_operators_in_each_other_dtype_in_four_ways(tmp_path: Path) -> None:
    options = ("--through", "all", "--forward", "--backward", "--samples", "1", "--part", "160")
    tables = run(tmp_path, "--dtype", OTHERS, *options)
    assert len(tables) == 24 and all(tables.values())


@pytest.mark.timeout(900)
def test_some_modules(tmp_path: Path) -> None:
    options = ("--modules", "--dtype", "all", "--forward", "--backward", "--samples", "1")
    tables = run(tmp_path, *options, "--part", "40")
    assert len(tables) == 6 and all(tables.values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_refusals(tmp_path: Path) -> None:
    tables = run(tmp_path, "--refusals", "--through", "all")
    assert all(len(table) > 100 for table in tables.values())


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--backward",),
        ("--dtype", OTHERS, "--through", "all", "--forward", "--backward", "--samples", "2"),
        ("--through", "irc.compile", "--forward", "--backward", "--samples", "2"),
        ("--modules", "--dtype", "all", "--through", "all", "--forward", "--backward"),
    ],
    ids=" ".join,
)
def test_all_operators(tmp_path: Path, options: tuple[str, ...]) -> None:
    tables = run(tmp_path, *options)
    count = sum(len(outcomes) for table in tables.values() for outcomes in table.values())
    assert count > (1000 if "--samples" in options or "--modules" in options else 10000)


def off_by(amount: float) -> Any:
    def backend(gm: Any, inputs: Any, **_: Any) -> Any:
        return lambda *args: [out + amount for out in gm.forward(*args)]

    return backend


def trial(name: str, backend: Any) -> Any:
    call = next(iter(calls(name, Way())))

    def compiler(own_call: Call) -> Any:
        return through_dynamo(backend, own_call)

    def control(own_call: Call) -> Any:
        return through_dynamo(eager_backend, own_call)

    return Trial(name, call, False, compiler, control).outcome()


def broken(gm: Any, inputs: Any, **_: Any) -> Any:
    raise RuntimeError("no such kernel")


def test_what_is_wrong_is_found() -> None:
    assert trial("sin", off_by(0.0)).verdict == "native"
    off = trial("sin", off_by(1e-3))
    assert (off.verdict, off.reason.split(" is")[0]) == ("failing", "result")
    assert "no such kernel" in trial("sin", broken).reason
    assert trial("nonzero", broken).verdict == "left"
    assert trial("bernoulli", off_by(0.0)).verdict == "native"
    assert "mean of arctan" in trial("bernoulli", off_by(0.5)).reason


def in_columns(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.mT.contiguous().mT for x in gradients]


def with_a_gap(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape) for x in gradients]


def in_one_memory(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [gradients[0].view_as(x) for x in gradients]


def gradients_changed(change: Any) -> Any:
    """Return a backend that does something to gradients behind the backward pass."""

    def backward(graph: Any, _: Any) -> Any:
        return make_boxed_func(lambda *args: change(graph(*args)))

    def forward(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=forward, bw_compiler=backward)


def sum_of_exp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.exp() + y.exp()


@pytest.mark.parametrize(
    ("op", "change", "reason"),
    [
        (sum_of_exp, list, ""),
        (sum_of_exp, in_columns, "lies otherwise: ((1, 3), 0), eager's ((4, 1), 0)"),
        (sum_of_exp, with_a_gap, "lies otherwise: ((4, 1), 3), eager's ((4, 1), 0)"),
        (sum_of_exp, in_one_memory, "memory of its own is lacking: [('gradient 0', 'gradient 1')]"),
        # Eager hands out one tensor for both; it does not keep one in two places.
        (torch.add, in_one_memory, "memory of its own is lacking: [('.grad 0', '.grad 1')]"),
    ],
)
def test_where_gradients_lie_is_compared(op: Any, change: Any, reason: str) -> None:
    x = torch.randn(3, 4)
    inputs = (x.requires_grad_(), x.detach().clone().requires_grad_())
    outcome = Trial(
        "sum", Call(op, inputs, {}, lambda result: result), True,
        partial(through_dynamo, gradients_changed(change)),
        partial(through_dynamo, eager_backend),
    ).outcome()  # fmt: skip
    assert outcome.verdict == ("failing" if reason else "native"), outcome
    assert reason in outcome.reason


def test_rounding_is_judged_by_the_error_against_float64() -> None:
    want = torch.full((4,), 1e6)
    exact = torch.full((4,), 1e6 + 0.5, dtype=torch.float64)
    assert not difference(want + 1, want, lambda: exact)
    assert difference(want + 40, want, lambda: exact)
    assert "dtype" in difference(want.double(), want, lambda: exact)
    assert difference(torch.tensor([1.0]), torch.tensor([torch.nan]), lambda: torch.ones(1))


def test_random_results_are_compared_by_their_means() -> None:
    draws = [torch.rand(100) for _ in range(32)]
    assert not stray(draws[:16], draws[16:])
    assert stray([x + 0.2 for x in draws[:16]], draws[16:])
    assert "same in every call" in stray([draws[0]] * 16, [*draws[16:31], draws[0]])


CHILDREN = """
import json, os, time
from tests.opinfo.ways import Way
from tests.opinfo.workers import Task, results

def work(task):
    name = task.name
    if name == "quick":
        return
    if name == "crash":
        os.abort()
    for step in range(4):
        time.sleep(1)  # more than the limit in all, but not at a time
        yield [name, step]
        if name == "hang":
            time.sleep(60)
        if name == "raise":
            raise ValueError("no")

names = ["fine", "crash", "hang", "raise"]
batches = [[Task(n, Way()), Task("quick", Way())] for n in names]
every = results(batches, work, seconds=2.5, workers=4)
print(json.dumps([(task.name, values, error) for task, values, error in every]))
"""


def test_a_child_that_crashes_or_hangs_ends_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN], cwd=ROOT, capture_output=True, text=True, check=True
    )
    every = json.loads(done.stdout)
    assert [each for each in every if each[0] == "quick"] == [["quick", [], ""]] * 4
    reports = {name: said for name, *said in every}
    assert reports["fine"] == [[["fine", step] for step in range(4)], ""]
    assert reports["crash"][0] == [] and "SIGABRT" in reports["crash"][1]
    assert reports["hang"] == [[["hang", 0]], "not done after 2 s"]
    assert reports["raise"] == [[["raise", 0]], "ValueError: no"]


def test_the_summary_counts() -> None:
    good = {"verdict": "native", "reason": "", "compile_ms": 4.0}
    bad = {"verdict": "failing", "reason": "wrong", "compile_ms": 0.0}
    left = {"verdict": "left", "reason": "no graph", "compile_ms": 0.0}
    table = {"add": [good], "sub": [good, bad], "sin": [left], "nonzero": [left, good]}
    line = report.summary(table, Way())
    assert "4 entries: 1 native, 0 fall-back, 2 left" in line and "1 failing; 6 samples" in line
    wrong = report.unexpected(table, Way())
    assert [each.split()[3] for each in wrong] == ["sub", "sin"]
    assert "|       4 |      1 |         0 |    2 |       1 |" in report.counts({Way(): table})


def test_ways_are_all_that_is_spanned() -> None:
    four = ways(["bool"], ["torch.compile", "irc.compile"], [False, True])
    assert [str(way) for way in four] == [
        "torch.compile forward bool", "torch.compile backward bool",
        "irc.compile forward bool", "irc.compile backward bool",
    ]  # fmt: skip
    assert Way("float16", backward=True).differentiates and not four[1].differentiates


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_tolerances_are_those_of_the_dtype(dtype: torch.dtype) -> None:
    want = torch.full((4,), 3.0, dtype=dtype)
    step = torch.finfo(dtype).eps
    exact = want.to(torch.complex128 if dtype.is_complex else torch.float64)
    assert not difference(want * (1 + 2 * step), want, lambda: exact)
    wrong = 1e-8 if dtype is torch.float64 else 40 * step
    assert difference(want * (1 + wrong), want, lambda: exact)
    if dtype.is_complex:
        assert difference(want.real.to(dtype), want + 1j, lambda: exact + 1j)


def test_any_of_equal_elements_may_be_chosen() -> None:
    x = torch.tensor([3, 1, 3, 2])
    topk = Call(torch.topk, (x, 1), {}, lambda result: result)
    for index, verdict in ((0, "native"), (2, "native"), (1, "failing")):

        def backend(gm: Any, inputs: Any, index: int = index, **_: Any) -> Any:
            return lambda *args: (gm.forward(*args)[0], torch.tensor([index]))

        outcome = Trial(
            "topk", topk, False, partial(through_dynamo, backend),
            partial(through_dynamo, eager_backend),
        ).outcome()  # fmt: skip
        assert outcome.verdict == verdict, outcome
