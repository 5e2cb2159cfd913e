"""The ONNX backend suite, case by case, through `irc.onnx.Backend`."""

from __future__ import annotations

import time
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx.backend.test

from irc.errors import IrcError
from irc.onnx import Backend
from tests.conformance.expected import COLLECTED, MISSES

SETS: Mapping[str, str] = {
    "OnnxBackendNodeModelTest": "node",
    "OnnxBackendSimpleModelTest": "simple",
    "OnnxBackendPyTorchConvertedModelTest": "pytorch-converted",
    "OnnxBackendPyTorchOperatorModelTest": "pytorch-operator",
}
"""Sets of the suite by the name of onnx's own test class; its fifth is downloaded, whole models."""

TOLERANCES: Mapping[str, Mapping[str, float]] = {"test_dft": {"atol": 1e-6}}
"""Where the suite's own tolerance is below what float32 gives; onnx's own run has the same."""


@dataclass(frozen=True)
class Case:
    """One case: its set, its name, and what runs it and raises where the numbers differ."""

    group: str
    name: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        reason: empty where it passes, else why not, in one line.
        seconds: of process time.
    """

    group: str
    name: str
    reason: str
    seconds: float


@cache
def cases() -> tuple[Case, ...]:
    """Return all cases for the CPU, in the order of their names."""
    with warnings.catch_warnings():
        # The references of a few cases divide by zero on purpose.
        warnings.simplefilter("ignore")
        suite = onnx.backend.test.BackendTest(Backend, __name__, test_kwargs=dict(TOLERANCES))
        chosen: list[Case] = []
        for class_name, tests in suite.test_cases.items():
            names = sorted(name for name in dir(tests) if name.endswith("_cpu"))
            if class_name in SETS:
                chosen += [Case(SETS[class_name], name, _runner(tests, name)) for name in names]
    return tuple(chosen)


def _runner(tests: type[unittest.TestCase], name: str) -> Callable[[], None]:
    def run() -> None:
        getattr(tests(name), name)()

    return run


def outcome(case: Case) -> Outcome:
    """Run a case and say what became of it."""
    began = time.process_time()
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run()
    except Exception as error:
        reason = reason_of(error)
    return Outcome(case.group, case.name, reason, time.process_time() - began)


def reason_of(error: Exception) -> str:
    """Return an error as one short line."""
    if isinstance(error, IrcError):
        return error.render().splitlines()[0][:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown: list[Any] = lines[:2] or [type(error).__name__]
    return f"{type(error).__name__}: {' '.join(shown)}"[:200]


def differences(outcomes: Sequence[Outcome], *, whole: bool = True) -> list[str]:
    """Return what is otherwise than `expected` says, one line each.

    Args:
        outcomes: of the cases that ran.
        whole: whether those are all cases; then none may be gone.
    """
    lines = [f"{o.name} fails: {o.reason}" for o in outcomes if o.reason and o.name not in MISSES]
    lines += [
        f"{o.name} passes: take it out of MISSES in tests/conformance/expected.py"
        for o in outcomes
        if not o.reason and o.name in MISSES
    ]
    return lines + (too_few(outcomes) if whole else [])


def too_few(collected: Iterable[Case | Outcome]) -> list[str]:
    """Return a line for each set of which fewer cases are there than there were."""
    names = list(collected)
    counts = Counter(each.group for each in names)
    lines = [
        f"{counts[group]} cases of set {group} are collected, {least} are expected"
        for group, least in COLLECTED.items()
        if counts[group] < least
    ]
    gone = sorted(MISSES.keys() - {each.name for each in names})
    return lines + [f"{name} is in MISSES, but not in the suite" for name in gone]
