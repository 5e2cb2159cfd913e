"""The benchmark of the search's quality: its cases, what it calls wrong, and what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from irc.dialects.placement import Mesh
from irc.search.configurations import Configuration
from tests.benchmarks.published_models import Sizes
from tests.benchmarks.published_runs import IncompleteError, rows
from tests.benchmarks.search_cases import Case, Stated, cases, stated_of
from tests.benchmarks.search_judged import judge_of, of_stages, wrong
from tests.benchmarks.search_quality import (
    chosen_cases,
    explained,
    gain,
    geometric_mean,
    last_line,
    missed_by,
    row,
)

CASES = {case.name: case for case in cases()}
ROWS = {own["id"]: own for own in rows()}


def figures(**changed: Any) -> dict[str, Any]:
    """Return the figures of a case that met its targets."""
    return {
        "stated": "data=8", "chosen": "tensor=8", "stated_s": 2.0, "chosen_s": 1.0,
        "stated_gb": 1.0, "chosen_gb": 2.0, "fits": True, "by_pieces": False, "wrong": "",
        "search_s": 3.0, "lines": [], "error": "", **changed,
    }  # fmt: skip


def configuration(mesh: str, micro_batches: int = 1) -> Configuration:
    return Configuration(Mesh.parse(mesh), micro_batches)


def test_each_case_is_one_model_cluster_and_batch() -> None:
    assert len(CASES) > 250
    for case in CASES.values():
        assert len({(own.samples, own.run.devices, own.run.sizes) for own in case.stated}) == 1
        assert case.stated[0].configuration.mesh.num_ranks == case.run.devices
        assert case.best[0] is case.stated[0]


def test_what_was_stated_is_nothing_that_an_expert_would_call_wrong() -> None:
    for case in CASES.values():
        for own in case.stated:
            assert not wrong(own.configuration, case), own.run.id


@pytest.mark.parametrize("name", ["sc21-007", "korthikanti22-009", "mist25-009", "llama3-16384"])
def test_configurations_that_are_named_among_the_targets_are_cases(name: str) -> None:
    assert name in CASES


def test_what_stands_in_for_what_is_said() -> None:
    own = stated_of(ROWS["torchtitan-014"])
    assert own.notes == ("bf16 for fp8", "an H100 with 96 GB", "micro-batches of 1")
    assert own.memory_bytes == 96 * 10**9
    assert sum(own.run.layers_of) == own.run.layers
    with pytest.raises(IncompleteError, match="context parallelism"):
        stated_of(ROWS["torchtitan-008"])


def test_layers_stand_for_the_operations_that_a_row_counts() -> None:
    run = stated_of(ROWS["aceso_mist-028"]).run
    assert sum(run.layers_of) == run.layers
    assert all(again <= own for again, own in zip(run.again_of, run.layers_of, strict=True))


@pytest.mark.parametrize(
    ("mesh", "micro_batches", "says"),
    [
        ("pipe=8,data=24,tensor=8", 48, ""),
        ("data=96,tensor=16", 1, "tensor=16 divides matrices across nodes"),
        ("data=192,context=8", 1, ""),
        ("context=64,data=24", 1, "context=64 divides sequences across nodes"),
        ("pipe=8,data=24,tensor=8", 7, "2304 samples for 24 times 7 micro-batches"),
        ("pipe=96,data=16", 1, "pipe=96 for 80 layers"),
        ("data=8", 1, "8 ranks on 1536 devices"),
    ],
)
def test_what_an_expert_would_call_wrong(mesh: str, micro_batches: int, says: str) -> None:
    assert wrong(configuration(mesh, micro_batches), CASES["sc21-007"]) == says


def test_heads_that_do_not_divide_are_wrong() -> None:
    case = CASES["sc21-001"]  # 24 heads
    assert wrong(configuration("data=2,tensor=16"), case)
    odd = replace(case.stated[0], run=replace(case.run, sizes=replace(case.run.sizes, heads=6)))
    assert wrong(configuration("data=8,tensor=4"), Case((odd,))) == "tensor=4 for 6 heads"


def test_a_slower_plan_a_wrong_one_and_an_error_are_missed() -> None:
    case = CASES["sc21-001"]
    assert not missed_by(case, figures())
    assert missed_by(case, figures(chosen_s=2.5)) == ["sc21-001: 25.0% slower"]
    assert missed_by(case, figures(wrong="tensor=16")) == ["sc21-001: tensor=16"]
    assert missed_by(case, {"error": "it ended"}) == ["sc21-001: it ended"]
    assert gain(figures()) == 2.0
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_the_last_line_tells_hands_from_planners() -> None:
    said = [(CASES["sc21-001"], figures()), (CASES["mist25-002"], figures(chosen_s=2.0))]
    assert last_line(said, []) == (
        "search quality: 1 tuned by hand: gain 2.000 in the geometric mean, 2.000 at least; "
        "1 of planners: gain 1.000 in the geometric mean, 1.000 at least: all met"
    )
    assert last_line([], ["x"]).endswith("no case: MISSED x")


def test_lines_name_decisions() -> None:
    line = {
        "what": "mesh", "before": "data=8", "after": "tensor=8", "step_s": -1.0,
        "compute_s": -1.0, "bubble_s": 0.0, "exposed_s": 0.0, "num_gb": 2.0,
    }  # fmt: skip
    shown = list(explained(CASES["sc21-001"], figures(lines=[line])))
    assert shown[-1].endswith("mesh: data=8 -> tensor=8")
    assert "2.000" in row(CASES["sc21-001"], figures())


def test_cases_are_chosen_by_a_text_and_by_table() -> None:
    assert {case.run.source for case in chosen_cases(only="mist25", most=None, quick=False)} == {
        "mist25"
    }
    few = chosen_cases(only="mpt", most=2, quick=False)
    tables = [case.run.table for case in few]
    assert all(tables.count(table) <= 2 for table in tables)
    assert len(chosen_cases(only="", most=None, quick=True)) == 1


def test_stages_of_their_own_layers_are_put_together() -> None:
    run = CASES["mist25-002"].run
    run = replace(run, sizes=Sizes(256, 4, 4, 1024, 2048, 128), layers=6, micro_samples=1,
                  micro_batches=4, layers_of=(3, 3), again_of=(0, 0))  # fmt: skip
    own = Stated(run)
    judge = judge_of(Case((own,)))
    even = of_stages(judge, own.configuration, run)
    again = of_stages(judge, own.configuration, replace(run, again_of=(3, 0)))
    uneven = of_stages(judge, own.configuration, replace(run, layers_of=(5, 1)))
    assert 0 < even.step_s < again.step_s
    assert even.step_s < uneven.step_s
