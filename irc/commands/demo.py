"""`irc demo`: a GPT, its training and an ONNX file on four processes, compared with eager."""

# pyright: basic
import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from irc.runtime.report import RunReport

HELP = "compile, train and run a GPT and an ONNX model on four processes, compare with eager"

CLUSTER = "8xH100"
"""Prices the plans: the mesh is four GPUs of such a node, the processes are this machine's."""

SMALL_CLUSTER = "demo-gpus"
"""Slow at arithmetic: a small model is worth sharding there."""

MEGATRON = "*.up.weight = [tensor = S(0)]; *.down.weight = [tensor = S(1)]"
"""Four samples on four devices are best split by sample; these pins show the other way."""

HEADS = ("model", "mesh", "processes", "compile", "call", "error to eager", "")
WIDTHS = (16, 16, 0, 8, 10, 0, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc demo`."""
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the models' plans there (default: a temporary folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; 1 where a number differs from eager's."""
    if args.keep:
        Path(args.keep).mkdir(parents=True, exist_ok=True)
        return run_demo(Path(args.keep))
    with TemporaryDirectory() as folder:
        return run_demo(Path(folder))


def run_demo(folder: Path) -> int:
    """Compile, run and compare both models; prints one table and returns the exit status."""
    from irc.commands.demo_onnx import write_perceptron

    model = folder / "perceptron.onnx"
    write_perceptron(model)
    cases = (("gpt", "data=2,tensor=2"), ("gpt", "tensor=4"), (model.name, "data=2,tensor=2"))
    rows = [_case(folder, model, name, mesh) for name, mesh in cases]
    rows.append(_training_case(folder, "data=2,tensor=2"))
    print()
    for row in (HEADS, *rows):
        cells = zip(row, HEADS, WIDTHS, strict=True)
        print("  ".join(f"{cell:<{max(len(head), width)}}" for cell, head, width in cells))
    return 0 if all(row[-1] == "OK" for row in rows) else 1


def _case(folder: Path, model: Path, name: str, mesh: str) -> tuple[str, ...]:
    """Compile and run one model on one mesh, saying so; return its row of the table."""
    plan = folder / f"plan-{name.partition('.')[0]}-{mesh.replace(',', '-').replace('=', '')}"
    print(f"compiling {name} for {mesh} ...", flush=True)
    start = time.perf_counter()
    summary = _compile_gpt(plan, mesh) if name == "gpt" else _compile_file(model, plan, mesh)
    seconds = time.perf_counter() - start
    print(_indented(summary))
    print(f"running {plan.name} with torchrun ...", flush=True)
    inputs, expected = _gpt_eagerly() if name == "gpt" else _file_eagerly(model)
    report, error = _run(plan, inputs, expected)
    print(_indented(str(report)))
    return (
        name,
        mesh,
        str(len(report.seconds)),
        f"{seconds:.1f} s",
        f"{max(report.seconds) * 1e3:.1f} ms",
        f"{error:.1e}",
        "OK" if report.ok and error < 1e-4 else "FAIL",
    )


def _training_case(folder: Path, mesh: str) -> tuple[str, ...]:
    """Compile some steps of training a smaller GPT, run them; return their row of the table."""
    from irc.runtime.launch import run_plan

    plan = folder / "plan-gpt-training"
    print(f"compiling a step of training for {mesh} ...", flush=True)
    start = time.perf_counter()
    summary = _compile_training(plan, mesh)
    seconds = time.perf_counter() - start
    print(_indented(summary))
    print(f"training {plan.name} with torchrun ...", flush=True)
    report = run_plan(plan)
    print(_indented(str(report)))
    assert report.comparison is not None
    return (
        "gpt, training",
        mesh,
        str(len(report.seconds)),
        f"{seconds:.1f} s",
        f"{max(report.seconds) * 1e3:.1f} ms",
        f"{report.comparison.relative:.1e}",
        "OK" if report.ok else "FAIL",
    )


def _compile_training(plan: Path, mesh: str) -> str:
    import torch

    from irc.commands.demo_gpt import GPT, GPTConfig
    from irc.exports import export_plan

    torch.manual_seed(0)
    module = GPT(GPTConfig(layers=2, hidden=64, heads=4, block=32))
    tokens = text_bytes(8, 33)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return export_plan(
        module, batch, out=plan, mesh=mesh, cluster=SMALL_CLUSTER, optimizer="adamw", force=True
    )


def text_bytes(batch: int, length: int) -> "torch.Tensor":
    """Return [batch, length] bytes of real text: the pages of irc's errors."""
    import torch

    from irc.error_pages import PAGES

    text = "\n".join(page.render() for page in PAGES).encode()
    return (
        torch.frombuffer(bytearray(text[: batch * length]), dtype=torch.uint8)
        .long()
        .reshape(batch, length)
    )


def _gpt() -> "tuple[torch.nn.Module, torch.Tensor]":
    import torch

    from irc.commands.demo_gpt import GPT

    torch.manual_seed(0)
    return GPT().eval(), text_bytes(4, GPT().config.block)


def _compile_gpt(plan: Path, mesh: str) -> str:
    from irc.exports import export_plan

    module, tokens = _gpt()
    pins = MEGATRON if mesh.startswith("tensor") else ""
    return export_plan(
        module, (tokens,), out=plan, mesh=mesh, cluster=CLUSTER, pins=pins, force=True
    )


def _compile_file(model: Path, plan: Path, mesh: str) -> str:
    from irc.exports import compile_file

    return compile_file(str(model), str(plan), mesh=mesh, cluster=CLUSTER, force=True)


def _gpt_eagerly() -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
    """Return the inputs by name and what PyTorch makes of them."""
    import torch

    module, tokens = _gpt()
    with torch.no_grad():
        return {"tokens": tokens}, module(tokens)


def _file_eagerly(model: Path) -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
    """The same for the ONNX file: its three ops, written out in PyTorch."""
    import onnx
    import torch
    from onnx import numpy_helper

    graph = onnx.load(str(model)).graph
    weight = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
    shape = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return {"x": x}, torch.relu(x @ weight["up"]) @ weight["down"]


def _run(
    plan: Path, inputs: "dict[str, torch.Tensor]", expected: "torch.Tensor"
) -> "tuple[RunReport, float]":
    """Run a plan; return its report and its output's error relative to eager's magnitude."""
    import numpy as np
    from safetensors.torch import load_file

    from irc.runtime.launch import run_plan

    given, found = plan.with_suffix(".npz"), plan.with_suffix(".safetensors")
    arrays: dict[str, Any] = {name: value.numpy() for name, value in inputs.items()}
    np.savez(given, **arrays)
    report = run_plan(plan, inputs=str(given), outputs=str(found))
    (output,) = load_file(found).values()
    return report, float((output - expected).abs().max() / expected.abs().max())


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
