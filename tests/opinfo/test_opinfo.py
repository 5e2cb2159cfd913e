"""PyTorch's operators: a tenth with a few samples each here, all of them with ``-m slow``.

The trials run in a process of their own, which forks: this one may have threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.opinfo import report
from tests.opinfo.compare import difference, stray
from tests.opinfo.compilers import eager_backend, through_dynamo
from tests.opinfo.entries import Call, calls, entries, tenth
from tests.opinfo.expected import LEFT, NOT_ON_CPU, UNINITIALISED
from tests.opinfo.trial import Trial

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *options: str) -> dict[str, list[dict[str, Any]]]:
    """Return the table of a run, which has to end well; its last line is printed."""
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
    print(done.stdout.splitlines()[-1])
    return json.loads(out.read_text(encoding="utf-8"))


def test_the_register_is_as_large_as_ever() -> None:
    assert len(entries()) >= 670 and len(tenth()) == len(entries()) // 10
    known = {*LEFT, *UNINITIALISED}
    assert not known - entries().keys() and not NOT_ON_CPU & entries().keys()


@pytest.mark.timeout(900)
def test_a_tenth_of_the_operators(tmp_path: Path) -> None:
    table = run(tmp_path, "--tenth", "--samples", "2")
    assert table.keys() == set(tenth())


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    "options", [(), ("--backward",), ("--through", "irc.compile", "--tenth")], ids=" ".join
)
def test_all_operators(tmp_path: Path, options: tuple[str, ...]) -> None:
    table = run(tmp_path, *options)
    assert sum(map(len, table.values())) > (1000 if "--tenth" in options else 10000)


def off_by(amount: float) -> Any:
    def backend(gm: Any, inputs: Any, **_: Any) -> Any:
        return lambda *args: [out + amount for out in gm.forward(*args)]

    return backend


def trial(name: str, backend: Any) -> Any:
    call = next(iter(calls(name, backward=False)))

    def compiler(given: Call) -> Any:
        return through_dynamo(backend, given)

    def control(given: Call) -> Any:
        return through_dynamo(eager_backend, given)

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
from tests.opinfo.workers import results

def work(name):
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
print(json.dumps({n: (v, e) for n, v, e in results(names, work, seconds=2.5, workers=4)}))
"""


def test_a_child_that_crashes_or_hangs_ends_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["fine"] == [[["fine", step] for step in range(4)], ""]
    assert found["crash"][0] == [] and "SIGABRT" in found["crash"][1]
    assert found["hang"] == [[["hang", 0]], "not done after 2 s"]
    assert found["raise"] == [[["raise", 0]], "ValueError: no"]


def test_the_summary_counts() -> None:
    good = {"verdict": "native", "reason": "", "compile_ms": 4.0}
    bad = {"verdict": "failing", "reason": "wrong", "compile_ms": 0.0}
    left = {"verdict": "left", "reason": "no graph", "compile_ms": 0.0}
    table = {"add": [good], "sub": [good, bad], "sin": [left], "nonzero": [left, good]}
    line = report.summary(table, "torch.compile forward")
    assert "4 entries: 1 native, 0 fall-back, 2 left" in line and "1 failing; 6 samples" in line
    assert [each.split()[0] for each in report.unexpected(table, "torch.compile")] == ["sub", "sin"]
