"""`irc demo`: a GPT, its training and an ONNX file on four processes, compared with eager."""

import argparse
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from irc.commands.json_output import add_json_option, print_json

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


@dataclass(frozen=True)
class Outcome:
    """A model that was compiled and run.

    Attributes:
        model: its name.
        mesh: that it ran on.
        processes: that ran it.
        compile_s: seconds to compile it.
        call_s: seconds of a call or step, of the slowest process.
        error: relative to eager's magnitude.
        ok: whether its numbers are right.
    """

    model: str
    mesh: str
    processes: int
    compile_s: float
    call_s: float
    error: float
    ok: bool

    def cells(self) -> tuple[str, ...]:
        """Return a row of the table."""
        times = f"{self.compile_s:.1f} s", f"{self.call_s * 1e3:.1f} ms"
        verdict = "OK" if self.ok else "FAIL"
        return self.model, self.mesh, f"{self.processes}", *times, f"{self.error:.1e}", verdict


HEADS = ("model", "mesh", "processes", "compile", "call", "error to eager", "")
WIDTHS = (16, 16, 0, 8, 10, 0, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc demo`."""
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the models' plans there (default: a temporary folder)"
    )
    add_json_option(parser, "each model, its times and its error")


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; 1 where a number differs from eager's."""
    if args.keep:
        Path(args.keep).mkdir(parents=True, exist_ok=True)
        return _shown(args, Path(args.keep))
    with TemporaryDirectory() as folder:
        return _shown(args, Path(folder))


def _shown(args: argparse.Namespace, folder: Path) -> int:
    # What is said meanwhile stands beside the JSON, not in it.
    with redirect_stdout(sys.stderr if args.json else sys.stdout):
        outcomes = run_demo(folder)
    if args.json:
        print_json(outcomes)
    else:
        print()
        for row in (HEADS, *(each.cells() for each in outcomes)):
            cells = zip(row, HEADS, WIDTHS, strict=True)
            print("  ".join(f"{cell:<{max(len(head), width)}}" for cell, head, width in cells))
    return 0 if all(each.ok for each in outcomes) else 1


def run_demo(folder: Path) -> list[Outcome]:
    """Compile, run and compare the models, saying so."""
    from irc.commands.demo_onnx import write_perceptron

    model = folder / "perceptron.onnx"
    write_perceptron(model)
    cases = (("gpt", "data=2,tensor=2"), ("gpt", "tensor=4"), (model.name, "data=2,tensor=2"))
    outcomes = [_case(folder, model, name, mesh) for name, mesh in cases]
    return [*outcomes, _training_case(folder, "data=2,tensor=2")]


def _case(folder: Path, model: Path, name: str, mesh: str) -> Outcome:
    """Compile and run one model on one mesh, saying so."""
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
    ok = report.ok and error < 1e-4
    return Outcome(name, mesh, len(report.seconds), seconds, max(report.seconds), error, ok)


def _training_case(folder: Path, mesh: str) -> Outcome:
    """Compile some steps of training a smaller GPT, run them, saying so."""
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
    processes, call_s, error = len(report.seconds), max(report.seconds), report.comparison.relative
    return Outcome("gpt, training", mesh, processes, seconds, call_s, error, report.ok)


def _compile_training(plan: Path, mesh: str) -> str:
    import torch

    from irc.commands.demo_gpt import GPT, GPTConfig
    from irc.exports import export_plan

    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
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

    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    return GPT().eval(), text_bytes(4, GPT().config.block)


def _compile_gpt(plan: Path, mesh: str) -> str:
    from irc.exports import export_plan

    module, tokens = _gpt()
    pins = MEGATRON if mesh.startswith("tensor") else ""
    return export_plan(
        module, (tokens,), out=plan, mesh=mesh, cluster=CLUSTER, pins=pins, force=True
    )


def _compile_file(model: Path, plan: Path, mesh: str) -> str:
    from irc.from_files import compile_file

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

    graph = onnx.load(str(model)).graph  # pyright: ignore[reportUnknownMemberType]
    weight = {
        t.name: torch.from_numpy(  # pyright: ignore[reportUnknownMemberType]
            numpy_helper.to_array(t).copy()
        )
        for t in graph.initializer
    }
    shape = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return {"x": x}, torch.relu(x @ weight["up"]) @ weight["down"]


def _run(
    plan: Path, inputs: "dict[str, torch.Tensor]", expected: "torch.Tensor"
) -> "tuple[RunReport, float]":
    """Run a plan; return its report and its output's error relative to eager's magnitude."""
    import numpy as np
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

    from irc.runtime.launch import run_plan

    inputs_file, outputs_file = plan.with_suffix(".npz"), plan.with_suffix(".safetensors")
    arrays: dict[str, Any] = {name: value.numpy() for name, value in inputs.items()}
    np.savez(inputs_file, **arrays)
    report = run_plan(plan, inputs=str(inputs_file), outputs=str(outputs_file))
    (output,) = load_file(outputs_file).values()
    return report, float((output - expected).abs().max() / expected.abs().max())


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
