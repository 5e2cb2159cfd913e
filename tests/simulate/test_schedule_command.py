"""`irc schedule simulate`, from the terminal."""

import json
from pathlib import Path

import pytest

from irc.cli import main

SMALL = ["schedule", "simulate", "1f1b", "--ranks", "2", "--micro-batches", "4"]


def test_classes_of_ranks_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    options = "--mesh data=4,tensor=2 --slow 3=1.5 --saved 2GB --weights 500MB --message 1kB"
    more = "--link 0.5 --transfer 0.25 --reduce 1 --update 1 --norm --weight-share 0.5"
    assert main([*SMALL, *options.split(), *more.split(), "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("ranks           16, data=4,tensor=2 in each of 2; 2 classes of columns")
    assert [line.split()[:2] for line in lines[4:]] == [
        ["0", "3"], ["0", "1"], ["1", "3"], ["1", "1"],
    ]  # fmt: skip
    assert lines[4].split()[3:] == ["2", "4.5", "GB", "4.5", "GB"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"0update", "1REDUCE_GRAD", "0F0 to 1"} <= {event["name"] for event in events}


def test_traces_of_two_schedules_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(tmp_path / name) for name in ("gpipe.json.gz", "zb.json")]
    for name, file in zip(("gpipe", "zb-h1"), files, strict=True):
        assert main(["schedule", "simulate", name, *SMALL[3:], "--trace", file]) == 0
    assert main(["compare", *files]) == 0
    assert "bubble" in capsys.readouterr().out
    assert main([*SMALL, "--trace", str(tmp_path / "none" / "t.json")]) == 2
    assert "error[output-write]" in capsys.readouterr().err


def test_the_time_is_that_of_show(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1f1b", "zb-h1", "interleaved:2", "zb-v"):
        sizes = [name, "--ranks", "4", "--micro-batches", "8", "--times", "1,1,0.7"]
        shown: list[str] = []
        for action, word in (("show", "makespan"), ("simulate", "step")):
            assert main(["schedule", action, *sizes, "--transfer", "0.25"]) == 0
            out = capsys.readouterr().out
            shown += [line.split()[1] for line in out.splitlines() if line.startswith(word)]
        assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ("--slots 1", "schedule-slots", "saved values of stage 0 has 1 and needs 2 slots"),
        ("--slots 0", "option-value", "one number above zero, or two"),
        ("--slots 2,x", "option-value", "one number above zero, or two"),
        ("--mesh 2x4", "mesh-syntax", "not of the form axis=size"),
        ("--saved 3PB", "option-value", "one of B, kB, MB, GB, TB"),
        ("--slow 2=3", "option-value", "there are ranks 0 to 1"),
        ("--slow 1:3", "option-value", "not of the form rank=times"),
        ("--link -1", "option-value", "it is a time"),
        ("--weight-share 2", "option-value", "it is a part"),
    ],
)
def test_what_cannot_be_is_refused(
    options: str, code: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options.split()]) == 2
    shown = capsys.readouterr().err
    assert f"error[{code}]" in shown
    assert text in shown


def test_its_options_are_not_for_other_actions(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["1f1b", "--ranks", "2", "--micro-batches", "4"]
    assert main(["schedule", "show", *sizes, "--mesh", "data=2"]) == 2
    assert "--mesh is for irc schedule simulate, not for show" in capsys.readouterr().err
