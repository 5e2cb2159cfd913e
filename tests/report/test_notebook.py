"""What notebooks show: plans of every kind, what writes and runs them, and compiled modules."""

# pyright: basic
from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import irc
from irc.errors import IrcError
from irc.plan.any_plan import read_plan
from irc.plan.load import load_plan
from irc.report.html.notebook import plan_html
from irc.report.table import seconds
from tests.report.pages import Net, Page


@pytest.fixture
def plans(kinds: Path) -> Path:
    """Return a folder with a plan of each kind."""
    return kinds


@pytest.mark.parametrize("kind", ["one", "plan", "steps", "host"])
def test_every_kind_of_plan_is_a_piece_of_a_page(plans: Path, kind: str) -> None:
    shown = plan_html(read_plan(plans / kind))
    page = Page(shown)
    assert shown.startswith('<div class="irc-plan">') and "<table>" in shown
    assert not page.loads and not page.ids and "<b>" not in shown and "url(" not in shown
    assert len(shown) < 60_000
    assert read_plan(plans / kind)._repr_html_() == shown
    assert irc.explain(plans / kind)._repr_html_() == shown


def test_rules_of_the_piece_hold_inside_of_it_alone(plans: Path) -> None:
    sheet = plan_html(read_plan(plans / "one")).partition("<style>")[2].partition("</style>")[0]
    rules = [rule for rule in sheet.split("}") if rule.strip()]
    assert len(rules) > 20
    for rule in rules:
        assert all(s.strip().startswith(".irc-plan") for s in rule.partition("{")[0].split(","))


def test_what_a_plan_says(plans: Path) -> None:
    loaded = load_plan(plans / "plan")
    page = Page(plan_html(loaded))
    assert loaded.plan.predicted_s is not None
    assert seconds(loaded.plan.predicted_s) in page.text
    assert f"{len(loaded.plan.kernels)} for cpu" in page.text and loaded.hash[:16] in page.text
    assert "tensor 2 of demo-gpus" in page.text and "on a mesh of" in page.text
    assert "S(0)" in page.text and "<b>up & on</b>.weight" in page.text
    assert "f32[64, 16]" in page.text  # the whole weight, not a rank's part
    assert "1 input, 4 weights, 1 output" in page.text


def test_stages_have_their_schedule(plans: Path) -> None:
    shown = plan_html(read_plan(plans / "steps"))
    assert "<title>1B " in shown
    assert shown.count('class="inside"') == 8  # F and B of two micro-batches on two ranks
    assert ">rank 0</text>" in shown and ">rank 2</text>" in shown
    assert "1f1b, micro-batches: 2" in Page(shown).text


def test_what_runs_a_plan_shows_it(plans: Path) -> None:
    for kind in ("one", "host"):
        assert irc.load(plans / kind)._repr_html_() == plan_html(read_plan(plans / kind))


def test_open_sizes_are_named(tmp_path: Path) -> None:
    said = irc.export_plan(
        nn.Linear(4, 4), (torch.ones(3, 4),), out=tmp_path / "open", native="none",
        dynamic={"input": {0: torch.export.Dim("rows", min=2, max=64)}},
    )  # fmt: skip
    running = irc.load(tmp_path / "open")
    assert "rows 2.." in said._repr_html_()
    running(torch.ones(5, 4))
    assert running._repr_html_() == said._repr_html_()


def test_what_export_plan_returns_is_text_and_a_picture(tmp_path: Path) -> None:
    said = irc.export_plan(Net(), (torch.ones(8, 16),), out=tmp_path / "plan", native="none")
    assert isinstance(said, str) and said.startswith("program") and "\nhash" in said
    assert pickle.loads(pickle.dumps(said))._repr_html_() == said._repr_html_()
    assert said._repr_html_() == plan_html(read_plan(tmp_path / "plan"))


def test_what_cannot_be_drawn_says_why(plans: Path, tmp_path: Path) -> None:
    shutil.copytree(plans / "one", tmp_path / "plan")
    said = irc.explain(tmp_path / "plan")
    shutil.rmtree(tmp_path / "plan")
    shown = said._repr_html_()
    assert "Not drawn: IrcError: " in shown and "Where the time goes" in shown
    assert "<b>" not in shown and "&lt;b&gt;up" in shown


def test_a_folder_without_a_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IrcError) as caught:
        irc.explain(tmp_path / "none")
    assert caught.value.code == "plan-missing"


def test_a_plan_is_shown_without_torch(plans: Path) -> None:
    code = (
        "import sys\n"
        "from irc.report.any_plan import explain_folder\n"
        "for kind in ('one', 'plan', 'steps'):\n"
        f"    assert '<table' in explain_folder({str(plans)!r} + '/' + kind)._repr_html_()\n"
        "print({'torch', 'onnx'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_compiled_modules_show_what_was_compiled() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast = irc.compile(model)
    assert repr(fast) == repr(model)
    assert "not called yet" in fast._repr_html_()
    with torch.no_grad():
        fast(torch.ones(2, 4))
    shown = fast._repr_html_()
    assert irc.explain(fast)._repr_html_() in shown
    assert "(0): Linear(in_features=4, out_features=4, bias=True)" in shown
    assert repr(fast) == repr(model)
    assert not hasattr(model, "_repr_html_")


def test_compiled_functions_do_too() -> None:
    fast = irc.compile(lambda x: (x * 2).relu())
    fast(torch.ones(4))
    assert irc.explain(fast)._repr_html_() in fast._repr_html_()
    assert "&lt;lambda&gt;" in fast._repr_html_() and "<lambda>" not in fast._repr_html_()


def test_a_class_keeps_what_it_shows_itself() -> None:
    class Own(nn.Linear):
        def _repr_html_(self) -> str:
            return "mine"

    assert irc.compile(Own(2, 2))._repr_html_() == "mine"


def test_steps_of_training_show_their_plan() -> None:
    step = irc.compile_step(nn.Linear(4, 2), loss=F.mse_loss, optimizer="sgd")
    assert "not called yet" in step._repr_html_()
    step(torch.ones(3, 4), torch.ones(3, 2))
    assert step.plan is not None
    assert step._repr_html_() == plan_html(step.plan)
    assert "weight" in step._repr_html_()
