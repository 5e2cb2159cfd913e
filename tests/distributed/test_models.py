"""Whole models on four processes: compiled, started with torchrun, equal to eager to 1e-4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch

from irc.exports import export_plan
from irc.from_files import compile_file
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.runtime.launch import run_plan
from tests.models import onnx_models
from tests.models.gpt import GPT
from tests.models.hugging_face import llama

CLUSTER = "demo-gpus"
"""Slow at arithmetic: small models are worth sharding there."""


@dataclass(frozen=True)
class Case:
    """A mesh, and what the plan must show on it.

    Attributes:
        mesh: axes.
        pins: per model, placements to force; ``data only`` and ``tensor only`` are forced.
        split: whether weights must be split (None: as the planner likes).
    """

    mesh: str
    pins: dict[str, str]
    split: bool | None = None


def _columns_and_rows(up: str, down: str, axis: str) -> str:
    return f"{up} = [{axis} = S(0)]; {down} = [{axis} = S(1)]"


CASES = {
    "four": Case("data=4", {}),
    "two by two": Case("data=2,tensor=2", {}),
    "data only": Case(
        "data=4", dict.fromkeys(("gpt", "llama", "resnet", "transformer"), "* = [data = B]"), False
    ),
    "tensor only": Case(
        "tensor=4",
        {
            "gpt": _columns_and_rows("*.up.weight", "*.down.weight", "tensor"),
            "llama": _columns_and_rows("*.gate_proj.weight", "*.down_proj.weight", "tensor"),
            "resnet": "*.conv1.weight.folded = [tensor = S(0)];"
            " *.conv2.weight.folded = [tensor = S(0)]",
            # MatMul's weights are [in, out].
            "transformer": "*.up.weight = [tensor = S(1)]; *.down.weight = [tensor = S(0)]",
        },
        True,
    ),
}


def gpt(out: Path, mesh: str, pins: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (4, 256))
    export_plan(GPT().eval(), (tokens,), out=out, mesh=mesh, cluster=CLUSTER, pins=pins)


def hugging_face_llama(out: Path, mesh: str, pins: str) -> None:
    tokens = torch.randint(0, 131, (4, 16))
    export_plan(llama(), (tokens,), out=out, mesh=mesh, cluster=CLUSTER, pins=pins)


def _file(out: Path, model: onnx.ModelProto, mesh: str, pins: str) -> None:
    path = out.with_suffix(".onnx")
    onnx.save(model, str(path))
    compile_file(str(path), str(out), mesh=mesh, cluster=CLUSTER, pins=pins)


def resnet(out: Path, mesh: str, pins: str) -> None:
    _file(out, onnx_models.resnet(batch=4), mesh, pins)


def transformer(out: Path, mesh: str, pins: str) -> None:
    _file(out, onnx_models.transformer(batch=4, tokens=12), mesh, pins)


MODELS: dict[str, Callable[[Path, str, str], None]] = {
    "gpt": gpt,
    "llama": hugging_face_llama,
    "resnet": resnet,
    "transformer": transformer,
}
QUICK = {("llama", "two by two")}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("model", "case"),
    [
        pytest.param(m, c, marks=[] if (m, c) in QUICK else pytest.mark.slow, id=f"{m}-{c}")
        for m in MODELS
        for c in CASES
    ],
)
def test_four_processes_equal_eager(tmp_path: Path, model: str, case: str) -> None:
    chosen = CASES[case]
    pins = chosen.pins.get(model, "")
    MODELS[model](tmp_path / "plan", chosen.mesh, pins)
    plan = load_plan(tmp_path / "plan").plan
    if chosen.split is not None:
        cut = [b for b in (plan.buffers[i] for i in plan.weights) if b.placement]
        assert bool(cut) == chosen.split
    assert any(isinstance(action, Start) for action in plan.actions), "nothing was sharded"
    report = run_plan(tmp_path / "plan")
    print(f"\n{model} on {case} ({chosen.mesh})\n{report}")
    assert len(report.seconds) == 4
    assert report.comparison is not None
    assert report.comparison.relative < 1e-4
    assert report.ok
