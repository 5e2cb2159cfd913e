"""Published training runs: what their rows say."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmarks.published_runs import IncompleteError, Run, rows, run_of, step_s
from tests.benchmarks.published_times import given_times

ROWS = {row["id"]: row for row in rows()}


def runs() -> tuple[list[Run], Counter[str]]:
    """Return the runs that are complete, and the reasons of the others."""
    complete: list[Run] = []
    out: Counter[str] = Counter()
    for row in ROWS.values():
        try:
            complete.append(run_of(row))
        except IncompleteError as error:
            out[str(error)] += 1
    return complete, out


def test_every_row_is_a_run_or_has_a_reason() -> None:
    complete, out = runs()
    assert len(complete) + out.total() == len(ROWS)
    assert len(complete) > 350
    assert all(reason for reason in out)


def test_runs_multiply_out() -> None:
    for run in runs()[0]:
        assert run.pipe * run.data * run.tensor == run.devices, run.id
        assert run.micro_samples * run.micro_batches * run.data == ROWS[run.id]["global_batch"]
        assert not run.layers_of or sum(run.layers_of) == run.layers, run.id


@pytest.mark.parametrize("name", ["sc21-001", "sc21-008", "zerobubble24-001"])
def test_step_times_are_those_that_their_sources_derive(name: str) -> None:
    derived = ROWS[name]["metrics"]["step_time_s_derived"]
    assert step_s(ROWS[name]) == pytest.approx(derived, rel=2e-3)


@pytest.mark.parametrize("name", ["bloom-036", "bloom-080"])  # before and after the formula changed
def test_blooms_arithmetic_gives_its_step_times(name: str) -> None:
    row = ROWS[name]
    other = {**row, "metric": "hw_tflops_per_gpu", "value": row["metrics"]["hw_tflops_per_gpu"]}
    assert step_s(other) == pytest.approx(step_s(row), rel=1e-3)


def test_a_row_without_its_micro_batch_says_so() -> None:
    row = dict(ROWS["sc21-001"])
    del row["microbatch"]
    with pytest.raises(IncompleteError, match="micro-batch not stated"):
        run_of(row)


@pytest.mark.parametrize("name", ["vocabpar24-187", "vocabpar24-188"])
def test_given_the_times_of_its_stages_a_pipeline_is_simulated_as_it_ran(name: str) -> None:
    pair = given_times(ROWS[name])
    assert pair is not None
    assert pair[0] == pytest.approx(pair[1], rel=0.03)
