"""Import a model, run it on level flow, and compare with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from xdsl.dialects.builtin import StringAttr

from irc.dialects.flow import FlowOp, loc_of
from irc.dialects.text import dump, load
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.external import to_torch
from irc.interpret.flow import run_function
from irc.program import Program
from tests.models.onnx_models import example_inputs

LETTERS = "abcdefgh"


def model_of(
    body: str, inputs: str, outputs: str, *, opset: int = 17, stored: str = "", domains: str = ""
) -> onnx.ModelProto:
    """Write a model in ONNX's own text: ``x = ...`` lines, typed inputs, outputs and constants."""
    others = "".join(f', "{domain}": 1' for domain in domains.split())
    weights = f" <{stored}>" if stored else ""
    text = (
        f'<ir_version: {8 if opset < 21 else 10}, opset_import: ["": {opset}{others}]>\n'
        f"g ({inputs}) => ({outputs}){weights} {{\n{body}\n}}"
    )
    return onnx.parser.parse_model(text)


def exact_options() -> onnxruntime.SessionOptions:
    """Return options with which ONNX Runtime's sums of bytes are exact on every processor.

    Without VNNI it adds pairs of products in 16 bits, which saturate.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run onnxruntime without its own rewrites."""
    options = exact_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, dict(feeds))


def run(program: Program, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a program on level flow."""
    tensors = {name: to_torch(np.asarray(value)) for name, value in feeds.items()}
    return [t.numpy() for t in run_function(program.module, program.bind(tensors))]


def check(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    relative: float = 1e-5,
    absolute: float = 1e-6,
) -> Program:
    """Compare all outputs with onnxruntime, and the program with its own text."""
    feeds = example_inputs(model, sizes=sizes) if feeds is None else feeds
    program = load_onnx(model, sizes)
    wanted, outputs = reference(model, feeds), run(program, feeds)
    assert len(wanted) == len(outputs)
    for a, b in zip(wanted, outputs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(
            b, a, rtol=relative, atol=absolute * max(1, abs(a).max(initial=0))
        )
    assert dump(load(dump(program.module))) == dump(program.module)
    assert all(loc_of(op) != "unknown" for op in program.module.walk() if isinstance(op, FlowOp))
    return program


def check_text(
    body: str,
    inputs: str,
    outputs: str,
    *,
    opset: int = 17,
    stored: str = "",
    feeds: Mapping[str, np.ndarray] | None = None,
    relative: float = 1e-5,
    absolute: float = 1e-6,
) -> Program:
    """Compare a model in text; outputs are ``y:2`` for name and number of dims."""
    model = model_of(body, inputs, declare(outputs.split()), opset=opset, stored=stored)
    return check(model, feeds, relative=relative, absolute=absolute)


def declare(outputs: Sequence[str]) -> str:
    """Turn ``y:2`` or ``int64/y:2`` into a typed output with free sizes."""
    typed: list[str] = []
    for index, output in enumerate(outputs):
        kind, _, rest = output.rpartition("/")
        name, _, ndim = rest.partition(":")
        dims = ",".join(f"o{index}{LETTERS[i]}" for i in range(int(ndim)))
        typed.append(f"{kind or 'float'}[{dims}] {name}")
    return ", ".join(typed)


def op_counts(program: Program) -> dict[str, int]:
    """Count the ops of a program by name; extern ops by their target."""
    counts: dict[str, int] = {}
    for op in program.module.walk():
        if isinstance(op, FlowOp):
            target = op.properties.get("target")
            name = target.data if isinstance(target, StringAttr) else op.name
            counts[name] = counts.get(name, 0) + 1
    return counts
