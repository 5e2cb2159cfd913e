"""The page of a plan: of every kind, well formed, escaped, and with the plan's own numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import irc
from irc.cli import main
from irc.plan.parts import PartsPlan
from irc.report.table import seconds
from irc.simulate.parts import predict_step
from irc.simulate.schedule import Simulation
from tests.report.pages import Page

SECTIONS = {
    "plan": ["plan", "placements", "timeline", "memory", "kernels", "collectives"],
    "steps": [
        "plan",
        "stages",
        "timeline",
        "placements",
        "memory",
        "over-time",
        "channels",
        "kernels",
        "collectives",
    ],
    "host": ["plan", "regions", "host", "kernels"],
}


@pytest.fixture
def plans(kinds: Path) -> Path:
    """Return a folder with a plan of each kind."""
    return kinds


def written(plans: Path, kind: str, *words: str) -> str:
    page = plans / f"{kind}.html"
    assert main(["report", str(plans / kind), "-o", str(page), *words]) == 0
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [*SECTIONS])
def test_every_kind_of_plan_has_a_page(plans: Path, kind: str) -> None:
    text = written(plans, kind)
    page = Page(text)
    assert page.ids == SECTIONS[kind]
    assert not page.loads
    assert set(page.links) == {f"#{name}" for name in page.ids}
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text
    assert len(text) < 300_000
    assert "<b>" not in text and "nan" not in page.text


def test_functions_of_a_large_step_are_drawn_whole(
    plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = written(plans, "steps")
    monkeypatch.setattr("irc.report.html.parts_plan.MOST_OPENED", 10)
    monkeypatch.delattr("irc.report.html.parts_plan.step_trace")
    whole = written(plans, "steps")
    said = "drawn whole, without the kernels in them"
    assert said in whole and said not in opened
    for rank in ("rank 0", "rank 2"):
        assert f">{rank}</text>" in whole and f">{rank}</text>" in opened
    assert "<title>0F " in whole and "<title>1B " in whole
    assert Page(whole).ids == SECTIONS["steps"]


def test_names_of_the_model_stay_names(plans: Path) -> None:
    assert "<b>up & on</b>" in Page(written(plans, "plan")).text


def test_numbers_are_those_of_explain(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("plan", "steps"):
        page = Page(written(plans, kind))
        capsys.readouterr()
        assert main(["explain", "plan", str(plans / kind), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        total = facts["time"]["total_s"] if kind == "plan" else facts["predicted_s"]
        assert seconds(total) in page.text
        assert facts["hash"][:16] in page.text


def test_another_plan_and_a_measured_run_stand_beside(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(plans / "predicted.json")
    assert main(["simulate", str(plans / "steps"), "--trace", trace]) == 0
    page = Page(written(plans, "steps", "--beside", str(plans / "plan"), "--run", trace))
    assert page.ids[:3] == ["plan", "measured", "beside"]
    assert "the prediction is 100.0 % of what was measured" in page.text
    assert main(["report", str(plans / "plan"), "--run", trace, "--force"]) == 2
    assert "trace-mismatch" in capsys.readouterr().err


def test_wrong_places(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = plans / "other.html"
    other.write_text("mine")
    for words, code in (
        ([str(plans / "none")], "plan-missing"),
        ([str(plans / "plan"), "-o", str(plans)], "output-write"),
        ([str(plans / "plan"), "-o", str(plans / "none" / "x.html")], "file-missing"),
        ([str(plans / "plan"), "-o", str(other)], "output-exists"),
        ([str(plans / "plan"), "--beside", str(plans / "none")], "plan-missing"),
        ([str(plans / "plan"), "--run", str(plans / "none")], ""),
        ([str(plans / "host"), "--run", str(plans / "none")], "option-value"),
    ):
        assert main(["report", *words]) == 2
        assert f"error[{code}" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert main(["report", str(plans / "plan"), "-o", str(other), "--force"]) == 0


def test_python_has_it(plans: Path) -> None:
    path = irc.write_report(plans / "plan", plans / "by_python.html")
    assert path.read_text(encoding="utf-8") == written(plans, "plan")


def test_a_step_is_simulated_once(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan of many stages it takes seconds."""
    calls: list[object] = []

    def counted_step(plan: PartsPlan, *more: Any) -> Simulation:
        calls.append(plan)
        return predict_step(plan, *more)

    monkeypatch.setattr("irc.report.parts_facts.predict_step", counted_step)
    monkeypatch.setattr("irc.simulate.verdicts.predict_step", counted_step)
    written(plans, "steps")
    assert len(calls) == 1


def test_weights_that_lie_otherwise_stand_along_the_modules(plans: Path) -> None:
    beside = written(plans, "plan", "--beside", str(plans / "one")).partition('id="beside"')[2]
    text = Page(f"<section>{beside.partition('</section>')[0].partition('>')[2]}</section>").text
    assert "4 of 4 weights of both lie otherwise" in text
    assert "whole, on one device" in text and "tensor  S(0)" in text
    assert "<b>up & on</b>.weight" in text and "4.0 KiB" in text and "2.0 KiB" in text
    same = written(plans, "plan", "--beside", str(plans / "plan"))
    assert "Nothing: 4 weights of both lie alike." in same
