"""Plug-ins that clash, or break on import, are disabled for all and explained to who names them."""

# pyright: basic

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.installed import PluginWarning, warn_of_disabled

TAKEN = {
    "irc.passes": {"fuse": "mine:Fuse"},
    "irc.backends": {"cpu": "mine:Cpu", "both": "mine:Both"},
    "irc.schedules": {"1f1b": "mine:one", "both": "mine:two"},
    "irc.policies": {"full": "mine:full", "both": "mine:both"},
    "irc.ops": {"aten": "mine"},
}
BOTH = {
    group: {"both": "theirs:both"} for group in ("irc.backends", "irc.schedules", "irc.policies")
}
RAISES = {group: {"raises": "irc_raises_on_import:any"} for group in TAKEN}
WRONG = {
    "irc.backends": {"half": "irc_wrong_plugin:Half", "other": "irc_wrong_plugin:Other"},
    "irc.schedules": {"none": "irc_wrong_plugin:nothing", "fails": "irc_wrong_plugin:fails"},
    "irc.policies": {"none-of-it": "irc_wrong_plugin:nothing", "text": "irc_wrong_plugin:TEXT"},
}
MODULE = """
class Half:
    name, targets, extension = "half", ("cpu",), ".ll"
    def emit(self, kernel): return ""

class Other(Half):
    name, extension = "other", "../x"
    def emit_plan_sources(self, kernels): return {}

def nothing(*arguments): return None
def fails(*arguments): raise KeyError("stages")
TEXT = "text"
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages; warned of anew in each test."""
    for package, groups in {"one": TAKEN, "two": BOTH, "bad": RAISES, "wrong": WRONG}.items():
        info = tmp_path / f"irc_{package}-1.5.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: irc-{package}\nVersion: 1.5\n"
        )
        lines = (
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
            for group, names in groups.items()
        )
        info.joinpath("entry_points.txt").write_text("".join(lines))
    (tmp_path / "irc_raises_on_import.py").write_text("print('hello')\nraise OSError('no licence')")
    (tmp_path / "irc_wrong_plugin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    warn_of_disabled.cache_clear()
    yield tmp_path
    warn_of_disabled.cache_clear()


def step(**options: object) -> object:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    compiled = irc.compile_step(model, loss=nn.MSELoss(), optimizer={"kind": "sgd"}, **options)
    return compiled(*torch.randn(2, 4, 4), lr=0.1)


def test_who_names_none_is_warned_once_and_served() -> None:
    """The backend, schedule and policy of irc are used, whatever packages call theirs."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", PluginWarning)
        step(schedule="1f1b", micro_batches=2, recompute="full")
        irc.compile(lambda x: x.exp())(torch.ones(3))
    (text,) = [str(each.message) for each in seen if each.category is PluginWarning]
    assert "pass 'fuse' of package 'irc-one' (irc has a pass of this name)" in text
    assert "ops 'aten' of package 'irc-one' (irc has a namespace of ops of this name)" in text
    assert "backend 'both' of package 'irc-two' (irc-one has a backend of this name, too)" in text
    assert "raises" not in text


def _look_up_op() -> None:
    from irc.ops.custom import declaration

    assert declaration("aten::no_such_op") is None


def _look_up_policy() -> None:
    from irc.training.policies import find_policy

    assert find_policy("full") is None


def _look_up_schedule() -> None:
    assert main(["schedule", "show", "1f1b", "--ranks", "2", "--micro-batches", "2"]) == 0


def _look_up_pass() -> None:
    assert main(["explain", "pass", "canonicalize"]) == 0


def _look_up_backend() -> None:
    from irc.plugin import find_backend

    find_backend("cpu")


@pytest.mark.parametrize(
    "look_up",
    [_look_up_op, _look_up_policy, _look_up_schedule, _look_up_pass, _look_up_backend],
)
def test_every_look_up_says_what_is_disabled(look_up: Callable[[], None]) -> None:
    """Once in a process, by whichever of them comes first."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", PluginWarning)
        look_up()
        look_up()
    (text,) = [str(each.message) for each in seen if each.category is PluginWarning]
    assert "ops 'aten' of package 'irc-one'" in text


@pytest.mark.filterwarnings("ignore::irc.installed.PluginWarning")
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"backend": "both"}, "plugin-clash", "irc-one and irc-two"),
        ({"schedule": "both", "micro_batches": 2}, "plugin-clash", "irc-one and irc-two"),
        ({"recompute": "both"}, "plugin-clash", "irc-one and irc-two"),
        ({"backend": "raises"}, "plugin-broken", "OSError: no licence"),
        ({"schedule": "raises", "micro_batches": 2}, "plugin-broken", "'irc-bad'"),
        ({"recompute": "raises"}, "plugin-broken", "OSError: no licence"),
        ({"backend": "half"}, "plugin-broken", "no method emit_plan_sources"),
        ({"backend": "other"}, "plugin-broken", "its extension is '../x'"),
        ({"schedule": "none", "micro_batches": 2}, "plugin-broken", "which is no Schedule"),
        ({"schedule": "fails", "micro_batches": 2}, "plugin-broken", "KeyError: 'stages'"),
        ({"recompute": "none-of-it"}, "plugin-broken", "'NoneType' object is not iterable"),
        ({"recompute": "text"}, "plugin-broken", "is no function"),
    ],
)
def test_who_names_one_is_told_why(options: dict[str, object], code: str, says: str) -> None:
    with pytest.raises(IrcError) as caught:
        step(**options)
    assert caught.value.code == code
    assert says in caught.value.render()


def test_list_shows_the_state_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a warning, which would say less; what an import prints is not in the JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["list", "--verbose", "--json"]) == 0
        those = json.loads(capsys.readouterr().out)
        assert main(["list", "--verbose"]) == 0
        assert main(["schedule", "list"]) == 0
        assert main(["list", "backends"]) == 0
    listed = capsys.readouterr().out
    states = {(each["distribution"], each["kind"], each["name"]): each["state"] for each in those}
    assert states["irc-one", "backend", "cpu"] == "disabled"
    assert states["irc-two", "policy", "both"] == "disabled"
    assert states["irc-bad", "ops", "raises"] == "broken"
    assert states["irc-wrong", "schedule", "fails"] == "usable"
    assert "irc-bad 1.5\n" in listed
    assert "broken" in listed
    assert "OSError: no licence; irc_raises_on_import:any" in listed
    assert "1f1b            [plug-in: irc-one, disabled: irc has a schedule of this name]" in listed
