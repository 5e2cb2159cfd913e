"""Example arguments that a module does not take are refused by name, before anything is traced."""

from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.frontends.torch.examples import bound, positional
from irc.plan.load import load_plan

NET = """
import torch
from torch import nn

def pair():
    return nn.Linear(8, 4), (torch.zeros(2, 8), torch.zeros(2, 4))

def error(output, target):
    return ((output - target) ** 2).mean()
"""


def test_too_many_arguments_name_what_the_module_takes() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(IrcError) as caught:
        capture(nn.Linear(8, 4), (x, x))
    assert caught.value.code == "input-mismatch"
    assert "it takes: input" in caught.value.render()


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_a_tensor_by_itself_is_one_argument_not_its_rows(
    tmp_path: Path, optimizer: str | None
) -> None:
    # One row: as a sequence it would be the one argument that the module takes, of another shape.
    x = torch.ones(1, 8)
    loss = None if optimizer is None else (lambda output: output.sum())
    irc.export_plan(
        nn.Linear(8, 4), x, out=tmp_path / "plan", native="none", optimizer=optimizer, loss=loss
    )
    plan = load_plan(tmp_path / "plan").plan
    assert (1, 8) in [plan.buffers[i].shape for i in plan.inputs]


def test_what_is_no_sequence_is_refused() -> None:
    assert positional([1, 2]) == (1, 2)
    for wrong in (3, "x", {"x": 1}):
        with pytest.raises(IrcError) as caught:
            positional(wrong)
        assert caught.value.code == "option-value"


def test_arguments_are_bound_by_name() -> None:
    def forward(x: int, *more: int, scale: int = 1, **named: int) -> None: ...

    arguments = bound(forward, (1, 2, 3), {"scale": 2, "other": 4}).arguments
    assert arguments == {"x": 1, "more": (2, 3), "scale": 2, "named": {"other": 4}}


def test_the_command_line_names_the_option_for_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    named = f"{tmp_path / 'net.py'}:pair"
    assert main(["compile", named, "--train", "-o", str(tmp_path / "plan")]) == 2
    assert "--loss NAME:FUNCTION" in capsys.readouterr().err
    assert not (tmp_path / "plan").exists()
