"""What torch.onnx exports, and ONNX Runtime's optimiser makes of it, is what irc computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exports.compare import CLOSE, difference
from tests.exports.export import ARCHITECTURES, export, optimised
from tests.models.zoo.table import ZOO

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

FEW = ("llama",)


def check(name: str, folder: Path, *, named: bool) -> None:
    feeds = export(ZOO[name], folder / "model.onnx", named=named)
    assert difference(folder / "model.onnx", feeds) <= CLOSE
    optimised(folder / "model.onnx", folder / "optimised.onnx")
    assert difference(folder / "optimised.onnx", feeds) <= CLOSE


@pytest.mark.parametrize("name", FEW)
def test_an_export_agrees(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, named=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in FEW])
def test_exports_agree(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, named=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_exports_with_open_sizes_agree(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, named=True)
