"""The backend suite of onnx: a tenth of it here, all of it with ``-m slow``."""

from __future__ import annotations

import random

import pytest
import torch

from tests.conformance.expected import COLLECTED, MISSES
from tests.conformance.suite import Case, Outcome, cases, differences, outcome, too_few

SEED = 0


def tenth() -> list[Case]:
    """Return one case of ten, the same ones in every run."""
    every = sorted(cases(), key=lambda case: (case.group, case.name))
    return random.Random(SEED).sample(every, len(every) // 10)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_no_case_is_lost() -> None:
    assert not too_few(cases())
    assert sum(COLLECTED.values()) == 2024


def test_a_tenth_of_the_suite() -> None:
    outcomes = [outcome(case) for case in tenth()]
    assert len(outcomes) == len(cases()) // 10
    assert not differences(outcomes, whole=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_suite() -> None:
    outcomes = [outcome(case) for case in cases()]
    assert not differences(outcomes)
    node = [o for o in outcomes if o.group == "node"]
    assert sum(1 for o in node if not o.reason) >= 1860


def test_differences_are_told() -> None:
    miss = next(iter(MISSES))
    passing = [Outcome("node", miss, "", 0.0)]
    assert "take it out" in differences(passing, whole=False)[0]
    failing = [Outcome("node", "test_new_cpu", "wrong", 0.0)]
    assert differences(failing, whole=False) == ["test_new_cpu fails: wrong"]
    assert differences([Outcome("node", miss, "as ever", 0.0)], whole=False) == []
    assert "1884 are expected" in too_few(passing)[0]
