"""``irc.explain`` of steps of training, of entries, and of what torch.compile has returned."""

# pyright: basic
from __future__ import annotations

import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc import logs
from irc.errors import IrcError
from irc.logs import TOPIC_NAMES

HERE = Path(__file__).name
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """Two layers, and what is fused with them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


class Broken(nn.Module):
    """Has a branch on values, in a layer of its own."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        if y.sum() > 0:
            y = y.cos()
        return y * 2


class Left(nn.Module):
    """Has an op that irc has no form for."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.linalg.qr(x + 1).R).sum()


def line_of(function: Any, text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    return f"{HERE}:{start + next(i for i, line in enumerate(lines) if text in line)}"


def step_of(module: nn.Module, **options: Any) -> Any:
    return irc.compile_step(module, loss=nn.functional.mse_loss, optimizer="adamw", **options)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.ones(rows, 4), torch.zeros(rows, 4)


def test_a_step_has_its_kernels_and_why_it_is_compiled_again() -> None:
    step = step_of(Net())
    assert "a step is compiled at its first batch" in f"{irc.explain(step)}"
    step(*batch(2))
    step(*batch(2))
    step(*batch(3))
    report = irc.explain(step)
    assert report.name == "step of Net" and len(report.graphs) == 2
    first, second = report.calls
    assert first.kind and first.kind.arguments == ("x: float32[2, 4]", "target: float32[2, 4]")
    assert first.kind.training and first.kind.gradients and not first.recompiles
    assert second.recompiles[0].reason == "'x' has shape [3, 4], compiled for [2, 4]"
    (graph,) = first.graphs
    lines = [op.line for kernel in graph.kernels for op in kernel.ops]
    assert graph.what == "step of training" and graph.seconds > 0
    assert any(line.endswith(line_of(Net.forward, "relu")) for line in lines)
    assert "optimizer" in lines


def test_a_step_that_is_prepared_says_so_before_it_trains() -> None:
    step = step_of(Net())
    step.prepare(*batch(2))
    before = irc.explain(step).json()
    assert len(json.loads(before)["calls"]) == 1
    step(*batch(2))
    assert irc.explain(step).json() == before


def test_other_numbers_of_the_optimiser_compile_a_step_again() -> None:
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters())
    step = irc.compile_step(module, loss=nn.functional.mse_loss, optimizer=optimizer)
    step(*batch(2))
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    step(*batch(2))
    (again,) = irc.explain(step).recompiles
    assert "optimiser's numbers" in again.reason


def test_an_op_that_a_step_leaves_to_torch_has_its_line() -> None:
    step = irc.compile_step(Left(), optimizer="sgd")
    step(torch.eye(3))
    (left,) = irc.explain(step).fallbacks
    assert "qr" in left.what and left.line.endswith(line_of(Left.forward, "qr"))


def test_a_step_in_micro_batches_has_its_schedule_and_functions() -> None:
    step = step_of(Net(), micro_batches=2)
    step(*batch(4))
    (call,) = irc.explain(step).calls
    (pipeline,) = call.pipelines
    assert pipeline.micro_batches == 2 and pipeline.seconds > 0
    assert pipeline.stages[0].parameters == ("up.weight", "up.bias", "down.weight", "down.bias")
    assert [graph.what for graph in call.graphs] == ["forward pass", "backward pass", "optimiser"]
    lines = [op.line for op in call.graphs[0].kernels[0].ops]
    assert lines[0].endswith(line_of(Net.forward, "relu"))
    assert "1 stage, schedule 1f1b, 2 micro-batches, planned in" in f"{irc.explain(step)}"


PIPELINE = """
import sys
import torch, irc
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
step = irc.compile_step(net, loss=nn.functional.mse_loss, mesh="pipe=2")
step(torch.ones(4, 4), torch.ones(4, 4))
(plan,) = irc.explain(step).pipelines
rank = torch.distributed.get_rank()
# one write a line: print's two of two ranks fall between each other
sys.stdout.write(f"{rank} {[s.place for s in plan.stages]} {bool(plan.seconds)}\\n")
sys.stdout.flush()
both = irc.compile_entries({"a": (nn.Linear(4, 4), (torch.ones(2, 4),))}, mesh="t=2")
(call,) = irc.explain(both).calls
sys.stdout.write(f"{rank} {len(call.graphs)} {call.kind.of}\\n")
"""


@pytest.mark.distributed
def test_each_rank_knows_the_stages_and_the_entries(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(tmp_path / "program.py")],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.splitlines()) == [
        "0 1 entry 'a'", "0 [0, 1] True", "1 1 entry 'a'", "1 [0, 1] False",
    ]  # fmt: skip


def test_entries_are_told_apart_by_name() -> None:
    net = Net().eval()
    both = irc.compile_entries(
        {"prefill": (net, (torch.ones(3, 4),)), "decode": (net, (), {"x": torch.ones(1, 4)})}
    )
    report = irc.explain(both)
    assert report.name == "entries prefill, decode"
    assert [call.title for call in report.calls] == [
        "entry 'prefill' (x: float32[3, 4]), evaluation, no gradients",
        "entry 'decode' (x: float32[1, 4]), evaluation, no gradients",
    ]
    for call in report.calls:
        ops = [op for graph in call.graphs for kernel in graph.kernels for op in kernel.ops]
        assert any(op.line.endswith(line_of(Net.forward, "relu")) for op in ops)


@pytest.mark.parametrize("whole", [True, False])
def test_torch_compile_of_a_module_and_of_a_function(whole: bool) -> None:
    module = Net()
    fast: Any = torch.compile(module if whole else lambda x: module(x), backend="irc")
    assert "torch has compiled no graph for it yet" in f"{irc.explain(fast)}"
    fast(torch.ones(2, 4)).sum().backward()
    fast(torch.ones(2, 4, dtype=torch.float32, requires_grad=True)).sum().backward()
    report = irc.explain(fast)
    assert [graph.what for graph in report.calls[0].graphs] == ["forward pass", "backward pass"]
    lines = [op.line for kernel in report.kernels for op in kernel.ops]
    assert any(line.endswith(line_of(Net.forward, "relu")) for line in lines)
    assert "requires_grad" in report.recompiles[0].reason
    kind = report.calls[1].kind
    assert kind and kind.arguments == ("x: float32[2, 4], requires grad",)


def test_torch_compile_in_place_of_a_module() -> None:
    module = Net()
    module.compile(backend="irc")
    module(torch.ones(2, 4))
    report = irc.explain(module)
    assert report.name == "Net" and report.graphs
    assert report.calls[0].kind and report.calls[0].kind.arguments == ("x: float32[2, 4]",)


def test_a_break_under_torch_compile_has_the_line_of_the_model() -> None:
    fast: Any = torch.compile(nn.Sequential(Broken()), backend="irc")
    fast(torch.ones(3))
    report = irc.explain(fast)
    (left,) = [each for each in report.fallbacks if each.kind == "break"]
    assert left.line.endswith(line_of(Broken.forward, "if y.sum"))
    assert left.reason == "a branch depends on the values of a tensor"
    assert len(report.graphs) == 2 and "the rest of" in f"{report.calls[1].title}"


def test_a_break_before_the_first_op_is_told_too() -> None:
    def function(x: Tensor) -> Tensor:
        print(end="")
        return x

    fast = torch.compile(function, backend="irc")
    fast(torch.ones(1))
    for _ in range(2):
        (left,) = irc.explain(fast).fallbacks
        assert left.line.endswith(line_of(function, "print("))


def test_graphs_of_two_functions_do_not_mix() -> None:
    first, second = (torch.compile(f, backend="irc") for f in (lambda x: x + 1, lambda x: x * 2))
    first(torch.ones(2))
    assert len(irc.explain(first).graphs) == 1 and not irc.explain(second).graphs
    second(torch.ones(2))
    assert len(irc.explain(first).graphs) == 1 and len(irc.explain(second).graphs) == 1


def test_a_method_and_an_op_without_a_form() -> None:
    class Holder:
        @torch.compile(backend="irc")
        def triangle(self, x: Tensor, *more: Tensor, scale: int = 1) -> Tensor:
            return torch.linalg.qr(x + more[0]).R * scale

    holder = Holder()
    holder.triangle(torch.eye(3), torch.ones(3), scale=2)
    report = irc.explain(holder.triangle)
    assert report.calls[0].kind and "more[0]: float32[3]" in report.calls[0].kind.arguments
    (left,) = [each for each in report.fallbacks if each.kind == "op"]
    assert "qr" in left.what and left.line.endswith(line_of(Holder.triangle, "qr"))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_another_backend_is_named(backend: str) -> None:
    for target in (Net(), torch.relu):
        with pytest.raises(IrcError, match=f"for the backend '{backend}'") as caught:
            irc.explain(torch.compile(target, backend=backend))
        assert caught.value.code == "input-mismatch" and 'backend="irc"' in caught.value.help


def test_what_is_supported_is_said() -> None:
    with pytest.raises(IrcError) as caught:
        irc.explain(Net())
    for name in ("irc.compile,", "irc.compile_step", "irc.compile_entries", "torch.compile"):
        assert name in f"{caught.value}"


def test_steps_and_entries_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("IRC_LOGS", "graph,fusion,recompile")
    monkeypatch.setattr(logs, "_read", None)
    step = step_of(Net())
    step(*batch(2))
    step(*batch(3))
    irc.compile_entries({"one": (Net(), (torch.ones(3, 4),))})
    told = "\n".join(f"{each.name}: {each.getMessage()}" for each in caplog.records)
    assert "irc.graph: step of training" in told and "irc.graph: whole call" in told
    assert "irc.fusion: k0" in told and "irc.recompile: 'x' has shape [3, 4]" in told
    for name in TOPIC_NAMES:  # loggers are the process's
        logging.getLogger(f"irc.{name}").setLevel(logging.NOTSET)
    logs._read = None
