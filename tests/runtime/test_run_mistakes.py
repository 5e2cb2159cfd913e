"""Mistakes of `irc run` and `irc check` are refused by name, not ignored and not called bugs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import irc
from irc.cli import main
from irc.commands.demo_onnx import write_perceptron
from irc.errors import IrcError
from irc.frontends.onnx.read import decode
from irc.interpret.check import check_plan
from irc.runtime.launch import check_writable, run_plan


def test_an_output_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    for wrong in (tmp_path, tmp_path / "none" / "out.safetensors"):
        with pytest.raises(IrcError) as caught:
            run_plan(tmp_path / "plan", outputs=str(wrong))
        assert caught.value.code == "output-write"
    check_writable(tmp_path / "kept")
    check_writable(tmp_path / "new")
    assert (tmp_path / "kept").read_text() == "as it was"
    assert not (tmp_path / "new").exists()


def test_a_size_beside_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrcError) as caught:
        run_plan(tmp_path, inputs="x.npz", sizes={"batch": 4})
    assert caught.value.code == "option-value"


def test_steps_of_a_plan_that_is_not_of_training_are_refused(tmp_path: Path) -> None:
    irc.export_plan(torch.nn.Linear(2, 2), torch.ones(1, 2), out=tmp_path / "plan", native="none")
    with pytest.raises(IrcError) as caught:
        run_plan(tmp_path / "plan", steps=2)
    assert caught.value.code == "option-value" and "--steps" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"), [(["net.py"], "net.py:build"), (["net.py:build", "--lr", "0.1"], "--train")]
)
def test_compile_refuses_what_it_would_ignore(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    net = "import torch\ndef build(): return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    (tmp_path / "net.py").write_text(net)
    assert main(["compile", *words, "-o", "plan"]) == 2
    shown = capsys.readouterr().err
    assert "option-value" in shown and said in shown
    assert not (tmp_path / "plan").exists()


def test_an_empty_file_has_no_empty_reason() -> None:
    with pytest.raises(IrcError) as caught:
        decode(b"", "empty.onnx")
    assert "because" not in caught.value.render()


@pytest.mark.slow
def test_check_refuses_inputs_of_another_shape(tmp_path: Path) -> None:
    write_perceptron(tmp_path / "mlp.onnx")
    plan = str(tmp_path / "plan")
    assert main(["compile", str(tmp_path / "mlp.onnx"), "-o", plan]) == 0
    np.savez(tmp_path / "x.npz", x=np.ones((3, 5), "f4"))
    with pytest.raises(IrcError) as caught:
        check_plan(plan, str(tmp_path / "x.npz"))
    assert caught.value.code == "input-mismatch"


@pytest.mark.parametrize("mesh", ["data=2", "pipe=2"])
def test_ranks_that_do_not_fit_into_memory_do_not_start(
    mesh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    options: dict[str, Any] = {"micro_batches": 2} if mesh == "pipe=2" else {}
    x = torch.ones(4, 64)
    irc.export_plan(
        net, (x, x), out=tmp_path / "plan", mesh=mesh, loss=F.mse_loss, optimizer="sgd",
        native="none", **options,
    )  # fmt: skip

    def started(*_: Any) -> Any:
        raise AssertionError("processes were started")

    monkeypatch.setattr("irc.runtime.launch._run_processes", started)
    with pytest.raises(AssertionError):
        run_plan(tmp_path / "plan")
    monkeypatch.setattr("irc.runtime.memory_needed.free_bytes", lambda: 330 << 20)
    with pytest.raises(AssertionError):  # 160 MiB a process, and little beside
        run_plan(tmp_path / "plan")
    monkeypatch.setattr("irc.runtime.memory_needed.free_bytes", lambda: 320 << 20)
    with pytest.raises(IrcError) as caught:
        run_plan(tmp_path / "plan")
    assert caught.value.code == "memory-exceeded"
    assert "of them" in str(caught.value) and "--comm fake" in str(caught.value)
