"""Models of the zoo as torch.onnx exports them, and as ONNX Runtime writes them once optimised."""

# pyright: basic
from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.models.zoo.model import Model

ARCHITECTURES = (
    "bert", "roberta", "distilbert", "modernbert", "gpt2", "llama", "qwen2", "mistral", "gemma2",
    "opt", "t5", "vit",
)  # fmt: skip
"""What the comparison exports by default."""


class First(nn.Module):
    """The first result of a model, its tensors given by position."""

    def __init__(self, module: nn.Module, names: tuple[str, ...], fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self.names, self.fixed = module, names, dict(fixed)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the model."""
        return self.module(**dict(zip(self.names, inputs, strict=True)), **self.fixed)[0]


def export(model: Model, path: Path, *, named: bool = False) -> dict[str, np.ndarray]:
    """Write a model as ONNX and return what it is called with, by input name.

    Args:
        model: of the zoo.
        path: the file.
        named: leave batch and sequence open, as torch.export allows.
    """
    tensors = {k: v for k, v in model.inputs.items() if isinstance(v, Tensor)}
    fixed = {k: v for k, v in model.inputs.items() if not isinstance(v, Tensor)}
    module = model.build()
    if "use_cache" in inspect.signature(module.forward).parameters:
        fixed["use_cache"] = False
    first = First(module, tuple(tensors), fixed).eval()
    dims: dict[int, Any] = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    open_dims = tuple({d: dims[d] for d in range(min(t.ndim, 2))} for t in tensors.values())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            first, tuple(tensors.values()), dynamo=True, verbose=False,
            dynamic_shapes=(open_dims,) if named else None,
        )  # fmt: skip
    assert program is not None
    program.save(str(path))
    names = [value.name for value in program.model.graph.inputs]
    return {str(name): value.numpy() for name, value in zip(names, tensors.values(), strict=True)}


def optimised(path: Path, target: Path, *, level: str = "extended") -> None:
    """Write what ONNX Runtime's optimiser makes of a model, for this kind of machine at ``all``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    chosen = {"extended": levels.ORT_ENABLE_EXTENDED, "all": levels.ORT_ENABLE_ALL}
    options.graph_optimization_level = chosen[level]
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
