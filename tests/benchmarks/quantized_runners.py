"""Contenders that run integers: weight-only layers, and int8 models of ONNX Runtime's tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Run = Callable[..., Any]
SAMPLES = 4
"""Random inputs that the static ranges are taken from."""


def _weight_only(bits: int) -> Callable[[Any, tuple[Any, ...]], Run]:
    def make(module: Any, inputs: tuple[Any, ...]) -> Run:
        import irc

        return irc.compile(irc.quantize(deepcopy(module), bits=bits))

    return make


def int8_model(module: Any, inputs: tuple[Any, ...], folder: Path, *, static: bool) -> Path:
    """Export a module and quantise it with onnxruntime.quantization; returns the file."""
    import numpy as np
    import torch
    from onnx import load_model
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready, int8 = (folder / f"{name}.onnx" for name in ("plain", "ready", "int8"))
    torch.onnx.export(module, inputs, str(plain), dynamo=True, verbose=False)
    quant_pre_process(str(plain), str(ready))
    if not static:
        quantize_dynamic(str(ready), str(int8), weight_type=QuantType.QInt8)
        return int8
    name, shape = load_model(ready, load_external_data=False).graph.input[0].name, inputs[0].shape

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            draw = np.random.default_rng(0).standard_normal
            self.left = [draw(tuple(shape)).astype(np.float32) for _ in range(SAMPLES)]

        def get_next(self) -> Any:
            return {name: self.left.pop()} if self.left else None

    quantize_static(
        str(ready),
        str(int8),
        Samples(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return int8


def _session(library: str, module: Any, inputs: tuple[Any, ...], *, static: bool) -> Run:
    """Return a function that runs the int8 model in a session of ONNX Runtime or of irc."""
    import torch

    with TemporaryDirectory(prefix="irc-bench-") as folder:
        path = str(int8_model(module, inputs, Path(folder), static=static))
        session: Any
        if library == "irc":
            import irc.onnx as ort

            session = ort.InferenceSession(path)
        else:
            import onnxruntime as ort  # type: ignore[no-redef]

            options = ort.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*tensors: Any) -> Any:
        feeds = {name: value.numpy() for name, value in zip(names, tensors, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return run


QUANTIZED: Mapping[str, Callable[[Any, tuple[Any, ...]], Run]] = {
    "irc int4 weights": _weight_only(4),
    "irc int8 weights": _weight_only(8),
    "onnxruntime static int8": lambda m, x: _session("onnxruntime", m, x, static=True),
    "onnxruntime dynamic int8": lambda m, x: _session("onnxruntime", m, x, static=False),
    "irc static int8": lambda m, x: _session("irc", m, x, static=True),
    "irc dynamic int8": lambda m, x: _session("irc", m, x, static=False),
}
