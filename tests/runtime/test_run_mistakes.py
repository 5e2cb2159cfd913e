"""Mistakes of `irc run` and `irc check` are refused by name, not ignored and not called bugs."""

from pathlib import Path

import numpy as np
import pytest

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


def test_an_empty_file_has_no_empty_reason() -> None:
    with pytest.raises(IrcError) as caught:
        decode(b"", "empty.onnx")
    assert "because" not in caught.value.render()


@pytest.mark.slow
def test_check_refuses_inputs_of_another_shape(tmp_path: Path) -> None:
    from irc.cli import main

    write_perceptron(tmp_path / "mlp.onnx")
    plan = str(tmp_path / "plan")
    assert main(["compile", str(tmp_path / "mlp.onnx"), "-o", plan]) == 0
    np.savez(tmp_path / "x.npz", x=np.ones((3, 5), "f4"))
    with pytest.raises(IrcError) as caught:
        check_plan(plan, str(tmp_path / "x.npz"))
    assert caught.value.code == "input-mismatch"
