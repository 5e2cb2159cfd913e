"""How each contender of a benchmark runs a module: eager, torch.compile, ONNX Runtime, irc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.quantized_runners import QUANTIZED

Run = Callable[..., Any]

FREEZING = {"freezing": True}
MOST = {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
WRAPPED = {**FREEZING, "cpp_wrapper": True}


def _eager(module: Any, inputs: tuple[Any, ...]) -> Run:
    return module


def _inductor(**options: Any) -> Callable[[Any, tuple[Any, ...]], Run]:
    def make(module: Any, inputs: tuple[Any, ...]) -> Run:
        import torch

        return torch.compile(module, options=options or None)

    return make


def _onnx_runtime(module: Any, inputs: tuple[Any, ...]) -> Run:
    """Export with torch.onnx, then a session with every optimisation."""
    import onnxruntime
    import torch

    folder = TemporaryDirectory(prefix="irc-bench-")
    path = Path(folder.name) / "model.onnx"
    torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*tensors: Any) -> Any:
        feeds = {name: value.numpy() for name, value in zip(names, tensors, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    run.folder = folder  # type: ignore[attr-defined]  # lives as long as the session
    return run


def _irc(module: Any, inputs: tuple[Any, ...]) -> Run:
    import irc

    return irc.compile(module)


def _irc_backend(module: Any, inputs: tuple[Any, ...]) -> Run:
    import torch

    return torch.compile(module, backend="irc")


RUNNERS: Mapping[str, Callable[[Any, tuple[Any, ...]], Run]] = {
    "eager": _eager,
    "inductor": _inductor(),
    "inductor freezing": _inductor(**FREEZING),
    "inductor cpp_wrapper": _inductor(**WRAPPED),
    "inductor max-autotune": _inductor(**MOST),
    "onnxruntime": _onnx_runtime,
    "irc.compile": _irc,
    "irc backend": _irc_backend,
    **QUANTIZED,
}

TRACING = (
    "torch._dynamo",
    "torch._export.non_strict_utils",
    "torch._functorch.aot_autograd",
    "torch.export._trace",
)
"""What every compiler of torch modules imports on first use."""

INDUCTOR = (
    "torch._inductor.compile_fx",
    "torch._inductor.cpp_builder",
    "torch._inductor.scheduler",
)
IRC = (
    "irc.backends.cpu",
    "irc.calls.compiled_class",
    "irc.passes.canonicalize",
    "irc.passes.fuse",
    "irc.passes.map_tasks",
    "irc.plan.build",
    "irc.runtime.executor",
    "irc.torch_backend",
)
ONNX_RUNTIME = ("onnxruntime", "torch.onnx")


def import_for(name: str) -> None:
    """Import what a contender will need, so that its cold time is compiling alone."""
    own: Mapping[str, tuple[str, ...]] = {
        "eager": (),
        "inductor": INDUCTOR,
        "onnxruntime": ONNX_RUNTIME,
        "irc": IRC,
    }
    kind = name.split()[0].partition(".")[0]
    for module in (*(TRACING if kind != "eager" else ()), *own[kind]):
        import_module(module)
