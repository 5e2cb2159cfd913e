"""Exports of transformers on meshes, by `irc compile` and `irc run`: equal to one device."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import irc.onnx
from irc.cli import main
from irc.plan.load import load_plan
from irc.plan.schema import Start
from tests.exports.compare import CLOSE
from tests.exports.export import ARCHITECTURES, export
from tests.models.zoo.table import ZOO

pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

MESHES = {"two": "tensor=2", "two by two": "data=2,tensor=2"}
QUICK = {("bert", "two")}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(n, m, marks=[] if (n, m) in QUICK else pytest.mark.slow, id=f"{n}-{m}")
        for n in ARCHITECTURES
        for m in MESHES
    ],
)
def test_a_mesh_gives_what_one_device_gives(
    name: str, mesh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plan = tmp_path / "model.onnx", tmp_path / "plan"
    feeds = export(ZOO[name], model)
    # Slow at arithmetic: models as small as these are worth sharding there.
    words = ["compile", str(model), "-o", str(plan), "--mesh", MESHES[mesh]]
    assert main([*words, "--cluster", "demo-gpus"]) == 0
    actions = load_plan(plan).plan.actions
    assert any(isinstance(action, Start) for action in actions), "nothing was sharded"
    np.savez(tmp_path / "inputs.npz", **dict[str, Any](feeds))
    files = ["--inputs", str(tmp_path / "inputs.npz"), "--outputs", str(tmp_path / "y.safetensors")]
    assert main(["run", str(plan), *files]) == 0, capsys.readouterr().out
    session = irc.onnx.InferenceSession(str(model))
    (wanted,) = session.run(None, feeds)
    (output,) = load_file(tmp_path / "y.safetensors").values()
    np.testing.assert_allclose(output, wanted, rtol=0, atol=CLOSE * float(np.abs(wanted).max()))
