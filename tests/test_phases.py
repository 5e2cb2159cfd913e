"""A compilation that stops at a phase and goes on is the one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.from_files import compile_text
from irc.ops import custom
from irc.pipeline.order import ORDER

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.up, self.down = nn.Embedding(11, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        h = self.emb(x)
        return (h + self.down(torch.tanh(self.up(h)))).square().mean()

def build():
    torch.manual_seed(0)
    return Net(), (torch.arange(8).reshape(4, 2),)
"""
TRAINING = {"optimizer": "adamw", "mesh": "data=2"}
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "inference": ({}, ("capture", "canonicalize", "flow", "fuse", "task")),
    "mesh": ({"mesh": "data=2,tensor=2"}, ("flow+sbp", "spmd", "bucket-collectives", "order")),
    "training": (TRAINING, ("pad-parameters", "differentiate", "add-optimizer", "capture", "spmd")),
}


class Net(nn.Module):
    """A table and two matmuls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.up, self.down = nn.Embedding(11, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.emb(x)
        return (h + self.down(torch.tanh(self.up(h)))).square().mean()


ARGS = (torch.arange(8).reshape(4, 2),)


def files(folder: Path) -> dict[str, bytes]:
    return {f"{p.relative_to(folder)}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("stopping_net.py").write_text(MODEL)
    return "stopping_net.py:build"


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_that_of_a_whole_compilation(kind: str, tmp_path: Path) -> None:
    """All files are equal: plan, texts after each pass, kernels, machine code, weights, launch."""
    options, phases = KINDS[kind]
    irc.export_plan(Net(), ARGS, out=tmp_path / "whole", **options)
    whole = files(tmp_path / "whole")
    for phase in phases:
        program, plan = tmp_path / f"{phase}.mlir", tmp_path / f"{phase}-plan"
        irc.export_plan(Net(), ARGS, out=program, to=phase, **options)
        compile_text(f"{program}", f"{plan}")
        assert files(plan) == whole, phase


def test_a_program_may_stop_again_and_be_changed(tmp_path: Path) -> None:
    """Irc opt runs on the file where it lies; what changes numbers is told by irc check."""
    first, second, plan = (f"{tmp_path / name}" for name in ("a.mlir", "b.mlir", "plan"))
    irc.export_plan(Net(), ARGS, out=first, to="flow")
    assert main(["opt", first, "-p", "canonicalize", "-o", first]) == 0
    compile_text(first, second, to="fuse")
    compile_text(second, plan)
    assert main(["check", plan]) == 0
    text = Path(first).read_text()
    assert text.count('fn = "tanh"') == 1
    Path(first).write_text(text.replace('fn = "tanh"', 'fn = "exp"'))
    compile_text(first, plan, force=True)
    assert main(["check", plan]) == 1
    (now,) = irc.load(plan)(*ARGS)
    net = Net()
    h = net.emb(*ARGS)
    torch.testing.assert_close(now, (h + net.down(net.up(h).exp())).square().mean())


def test_the_command_prints_writes_and_goes_on(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", model, "--mesh", "data=2", "--to", "flow+sbp"]) == 0
    printed = capsys.readouterr().out
    assert "[data = S(0)]" in printed
    assert {p.name for p in tmp_path.iterdir()} <= {"stopping_net.py", "__pycache__"}
    words = ["compile", model, "--mesh", "data=2", "--to", "flow+sbp", "-o", "net.mlir"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert Path("net.mlir").read_text() == printed
    assert "go on       irc compile net.mlir --from flow+sbp -o PLAN" in said
    assert main(["compile", "net.mlir", "--from", "flow+sbp", "-o", "plan"]) == 0
    assert main(["compile", model, "--mesh", "data=2", "-o", "whole"]) == 0
    assert files(Path("plan")) == files(Path("whole"))


def test_a_text_of_a_plan_is_a_program(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What no --to has written takes its options from the command line."""
    assert main(["compile", model, "-o", "whole"]) == 0
    (text,) = Path("whole/ir").glob("*-fuse.mlir")
    Path("net.mlir").write_text(text.read_text())
    Path("net.mlir.safetensors").write_bytes(Path("whole/weights.safetensors").read_bytes())
    assert main(["compile", "net.mlir", "-o", "plan"]) == 2
    assert "which passes it is behind is not said" in capsys.readouterr().err
    assert main(["compile", "net.mlir", "--from", "fuse", "-o", "plan"]) == 0
    now, was = files(Path("plan")), files(Path("whole"))
    kernels = [name for name in was if name.startswith("kernels/")]
    assert kernels
    assert [now[name] for name in kernels] == [was[name] for name in kernels]
    assert torch.equal(irc.load("plan")(*ARGS)[0], irc.load("whole")(*ARGS)[0])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--to fues", "phase-unknown", "did you mean 'fuse'?"),
        ("--to auto-shard", "phase-unknown", "it is run of: a mesh"),
        ("--to flow+sbp", "phase-unknown", "choose a mesh"),
        ("--to fuse -o net", "option-value", "ends in .mlir"),
        ("--to fuse --json", "option-value", "--json is of a plan"),
        ("--to fuse --sign-key k", "option-value", "--sign-key is of a plan"),
        ("--to fuse --native none", "option-value", "--native"),
        ("--from fuse -o plan", "option-value", "programs in text form"),
        ("", "option-value", "-o DIR, or --to PHASE"),
        ("--train --mesh pipe=2 --to fuse", "option-value", "stages or micro-batches"),
    ],
)
def test_what_cannot_be_is_refused(
    words: str, code: str, says: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", model, *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error[{code}]")
    assert says in said


def test_open_sizes_have_no_phase(tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="dynamic") as caught:
        irc.export_plan(Net(), ARGS, out=tmp_path / "a.mlir", to="fuse", dynamic=True)
    assert caught.value.code == "option-value"


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    irc.export_plan(Net(), ARGS, out=tmp_path / "net.mlir", to="flow")
    return tmp_path / "net.mlir"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 9}, "its format is 9"),
        ({"done": 4}, "runs others"),
        ({"done": 4000}, "runs others"),
        ({"options": {"mesh": 3}}, "expected str"),
        ({"training": {"differentiate": {"no_such": 1}}}, "no_such"),
        ({"unknown": 1}, "unknown key"),
    ],
)
def test_damaged_facts_are_refused(
    change: dict[str, object], says: str, stopped: Path, tmp_path: Path
) -> None:
    beside = stopped.with_name("net.mlir.json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), **change}))
    with pytest.raises(IrcError) as caught:
        compile_text(f"{stopped}", f"{tmp_path / 'plan'}")
    assert caught.value.code == "phase-invalid"
    assert says in f"{caught.value}"


def test_going_on_refuses_what_was_said_already(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are those of the first command; damaged weights are named; links are kept."""
    plan = f"{tmp_path / 'plan'}"
    for words, says in (
        (["--backend", "triton"], "says how"),
        (["--train"], "not of programs in text form"),
        (["--size", "a=1"], "of ONNX files"),
        (["--to", "capture"], "already"),
        (["--from", "fues"], "did you mean 'fuse'?"),
    ):
        assert main(["compile", f"{stopped}", *words, "-o", f"{plan}.mlir"]) == 2
        assert says in capsys.readouterr().err
    again = ["compile", f"{stopped}", "--to", "fuse", "-o"]
    assert main([*again, f"{stopped}"]) == 2
    assert "or --force" in capsys.readouterr().err
    link = tmp_path / "link.mlir"
    link.symlink_to(tmp_path / "elsewhere")
    assert main([*again, f"{link}", "--force"]) == 2
    assert "link" in capsys.readouterr().err
    assert main([*again, f"{stopped}", "--force"]) == 0
    weights = tmp_path / "net.mlir.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    assert main(["compile", f"{stopped}", "-o", plan]) == 2
    assert "phase-invalid" in capsys.readouterr().err


def test_an_onnx_file_stops_where_its_sizes_are_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", kind, [8, 4], [0.125 * i for i in range(32)])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", kind, ["batch", 8])],
        [helper.make_tensor_value_info("y", kind, ["batch", 4])],
        [weight],
    )
    model, program = f"{tmp_path / 'net.onnx'}", f"{tmp_path / 'net.mlir'}"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), model)
    assert main(["compile", model, "--to", "fuse", "-o", program]) == 2
    assert "--size" in capsys.readouterr().err
    fixed = ["compile", model, "--size", "batch=2"]
    assert main([*fixed, "--to", "fuse", "-o", program]) == 0
    assert main(["compile", program, "-o", f"{tmp_path / 'plan'}"]) == 0
    assert main([*fixed, "-o", f"{tmp_path / 'whole'}"]) == 0
    assert files(tmp_path / "plan") == files(tmp_path / "whole")


OWN = """
import irc, torch
from torch import nn

@torch.library.custom_op("stopping::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

irc.register_op("stopping::twice", rule="(a b) -> (a b)", flops=lambda call: 1e12)

class Net(nn.Module):
    def forward(self, x):
        return torch.ops.stopping.twice(x).tanh()

def build():
    return Net(), (torch.ones(4, 2),)
"""


def test_ops_of_others_are_declared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In another process nothing is known of them, and the plan would be another one."""
    monkeypatch.chdir(tmp_path)
    Path("stopping_own.py").write_text(OWN)
    assert main(["compile", "stopping_own.py:build", "--to", "flow", "-o", "net.mlir"]) == 0
    assert main(["compile", "net.mlir", "-o", "plan"]) == 0
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(custom.DECLARED, "stopping::twice")
        assert main(["compile", "net.mlir", "-o", "other"]) == 2
    assert "import what declares it: --import FILE.py" in capsys.readouterr().err


def test_every_pass_of_the_list_is_a_phase() -> None:
    from irc.pipeline.phases import check_phase

    for row in ORDER:
        check_phase(row.name)
