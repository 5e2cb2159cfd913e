"""Plans of several programs from the command line: written, explained, run, refused."""

# pyright: basic
from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.plan.parts_files import load_parts
from irc.report.parts import _head as head_of
from irc.report.parts_facts import gather_parts
from irc.runtime import load
from irc.runtime.pipeline import PipelineExecutor
from irc.trace.read import read_trace
from tests.programs.models import GPT, model_and_batch
from tests.simulate.test_traces import check_form

NET = """
import torch
from tests.programs.models import GPT, model_and_batch

def build():
    torch.manual_seed(0)
    return GPT(2, 16, tied=True), model_and_batch("tied", torch.float32)[1]

def dropped():
    return model_and_batch("dropped", torch.float32)
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(NET)
    return f"{path}:build"


@pytest.fixture(scope="module")
def plan(net: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plans") / "plan"
    words = ["--train", "sgd", "--lr", "0.1", "--mesh", "pipe=2", "--micro-batches", "4"]
    stages = "tok, pos, blocks.0; blocks.1, norm"
    assert main(["compile", net, "-o", str(out), *words, "--stages", stages]) == 0
    return out


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A batch whose micro-batches have different numbers of targets that count."""
    _, (ids, targets) = model_and_batch("tied")
    path = tmp_path_factory.mktemp("inputs") / "batch.npz"
    np.savez(path, ids=ids.numpy(), targets=targets.numpy())
    return str(path)


def test_what_is_compiled_is_described(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = gather_parts(load_parts(plan))
    assert [part.layers for part in facts.parts] == [
        ("tok", "pos", "blocks.0"),
        ("blocks.1", "norm", "tok"),
    ]
    assert [part.ranks for part in facts.parts] == [(0,), (1,)]
    twice = replace(facts, parts=(facts.parts[0], replace(facts.parts[1], ranks=(1, 0))))
    assert "pipe=2 (2 ranks)" in "\n".join(head_of(twice))
    whole = sum(p.numel() for p in GPT(2, 16, tied=True).parameters())
    tied = GPT(2, 16).tok.weight.numel()
    assert sum(part.num_parameters for part in facts.parts) == whole + tied
    assert facts.parts[0].accumulator_bytes == facts.parts[0].parameter_bytes
    # 1F1B holds as many micro-batches on a rank as are ranks from it to the last.
    saved = [max(r.slots for r in part.registers) for part in facts.parts]
    assert saved[0] > saved[1] >= 1
    forth, back = facts.channels
    assert (forth.producer, forth.consumer, back.producer, back.consumer) == (0, 1, 1, 0)
    assert forth.bytes == back.bytes == 2 * 12 * 16 * 4
    assert main(["explain", "plan", str(plan)]) == 0
    said = capsys.readouterr().out
    assert "1f1b, 4 micro-batches, 2 stages" in said
    assert "tok.weight is in stages 0-1" in said
    assert main(["explain", "plan", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == facts.hash


def test_two_processes_train_it_as_eager_does(
    plan: Path, ignoring: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "after.safetensors"
    words = ["--steps", "2", "--inputs", ignoring, "--outputs", str(outputs)]
    traces = [str(tmp_path / f"{name}.json.gz") for name in ("predicted", "measured")]
    assert main(["run", str(plan), *words, "--trace", traces[1]]) == 0
    said = capsys.readouterr().out
    assert said.rstrip().endswith("OK")
    assert "registers" in said.splitlines()[2]
    after = load_file(outputs)
    assert set(after) == {*dict(GPT(2, 16, tied=True).named_parameters()), "losses"}
    assert main(["simulate", str(plan), "--trace", traces[0]]) == 0
    capsys.readouterr()
    assert main(["compare", *traces]) == 0
    assert "bubble" in capsys.readouterr().out
    predicted, measured = map(read_trace, traces)
    check_form(measured)
    for rank in (0, 1):
        # The same functions in the same order, made of the same ops of the same micro-batches;
        # what is said to take no time is not drawn where that is predicted.
        for kind in ("function", "kernel"):
            own = [
                [(e.label, e.where) for e in t.events if (e.rank, e.kind) == (rank, kind)
                 and (e.where.micro_batch is not None or kind == "function")]
                for t in (predicted, measured)
            ]  # fmt: skip
            assert own[0]
            assert own[0] == [each for each in own[1] if each in own[0]]
        ways = [e for e in measured.events if e.rank == rank and e.track.startswith("link")]
        assert [e.where.micro_batch for e in ways] == [0, 1, 2, 3]
    sums = [e for e in measured.events if e.label.name.startswith("sum of ")]
    assert {e.rank for e in sums} == {0, 1}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("build", "--micro-batches"), ("build", "--accumulate"), ("dropped", "--micro-batches")],
)
def test_micro_batches_on_one_device(
    net: str,
    ignoring: str,
    name: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By either name of the option; a loss divides by what the whole batch sums up to."""
    out, model = str(tmp_path / "plan"), net.replace(":build", f":{name}")
    assert main(["compile", model, "-o", out, "--train", kind, "4"]) == 0
    assert main(["run", out, *(["--inputs", ignoring] if name == "build" else [])]) == 0
    assert capsys.readouterr().out.rstrip().endswith("OK")


def test_what_does_not_train_is_seen(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is held against eager training is the run, and not only its losses."""
    out = str(tmp_path / "plan")
    assert main(["compile", net, "-o", out, "--train", "--micro-batches", "4"]) == 0
    monkeypatch.setattr(PipelineExecutor, "_update", _nothing)
    assert main(["run", out, "--steps", "1"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAIL")


def _nothing(_executor: PipelineExecutor) -> None:
    pass


REFUSED = {
    "--mesh pipe=2": "option-value",
    "--micro-batches 4": "option-value",
    "--schedule zb-v": "option-value",
    "--schedule 1f1b": "option-value",
    "--stages x;y": "option-value",
    "--train --schedule zb-v": "option-value",
    "--train --mesh pipe=2 --micro-batches 0": "option-value",
    "--train --mesh pipe=2 --micro-batches 99": "input-mismatch",
    "--train --mesh pipe=2 --schedule 2f2b": "schedule-unknown",
    "--train --mesh pipe=2 --schedule none.csv": "file-missing",
    "--train --mesh pipe=2 --schedule interleaved:2 --micro-batches 1": "schedule-size",
    "--train --mesh pipe=2 --stages tok;nose": "pipeline-stages",
    "--train --mesh pipe=2 --stages tok": "pipeline-stages",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused(
    net: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    assert main(["compile", net, "-o", str(out), *words.split()]) != 0
    assert f"error[{REFUSED[words]}]" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("words", ["--micro-batches 4", "--schedule zb-v", "--mesh pipe=2"])
def test_an_onnx_file_has_no_stages(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "-o", "x", *words.split()]) != 0
    assert "error[option-value]" in capsys.readouterr().err


def test_another_number_of_processes_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(plan), "--nproc", "3"]) != 0
    assert "error[world-size]" in capsys.readouterr().err
    assert main(["run", str(plan), "--size", "n=1"]) != 0
    assert "error[size-unknown]" in capsys.readouterr().err


def test_a_plan_without_a_recipe_is_not_trained(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(plan, tmp_path / "plan"))
    data = json.loads((folder / "parts.json").read_text())
    data["files"] = {}
    (folder / "parts.json").write_text(json.dumps(data, indent=1) + "\n")
    assert main(["run", str(folder), "--no-compare"]) != 0
    assert "no recipe" in capsys.readouterr().err


def test_python_writes_the_same_plan(net: str, plan: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = GPT(2, 16, tied=True), model_and_batch("tied", torch.float32)[1]
    said = irc.export_plan(
        model,
        batch,
        out=tmp_path / "plan",
        optimizer={"kind": "sgd", "lr": 0.1},
        mesh="pipe=2",
        micro_batches=4,
        stages="tok, pos, blocks.0; blocks.1, norm",
    )
    assert load_parts(tmp_path / "plan").hash == load_parts(plan).hash
    assert load_parts(plan).hash[:16] in said
    with pytest.raises(IrcError, match="output-exists"):
        irc.export_plan(
            model, batch, out=tmp_path / "plan", optimizer="sgd", mesh="pipe=2", micro_batches=4
        )


def test_what_differs_is_said(
    net: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tmp_path / "other")
    words = ["--train", "sgd", "--lr", "0.1", "--mesh", "pipe=2", "--micro-batches", "8"]
    stages = "tok, pos; blocks.0, blocks.1, norm"
    assert main(["compile", net, "-o", other, *words, "--stages", stages]) == 0
    capsys.readouterr()
    assert main(["diff", str(plan), str(plan)]) == 0
    assert capsys.readouterr().out == "the plans are the same\n"
    assert main(["diff", str(plan), other, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    changes = {c["name"]: (c["before"], c["after"]) for c in (*report["whole"], *report["stages"])}
    assert changes["micro-batches"] == ("4", "8")
    assert changes["stage 0 layers"] == ("tok, pos, blocks.0", "tok, pos")
    assert "schedule" not in changes
    assert "stage 0 F" in report["functions"]
    assert main(["diff", str(plan), other]) == 0
    assert "stage 0 layers" in capsys.readouterr().out
    assert main(["diff", str(plan), f"{other}/parts/0/F"]) != 0
    assert "only one of them is of several programs" in capsys.readouterr().err


def test_each_value_on_its_way_is_checked(
    plan: Path, ignoring: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks in this process; planted faults are in test_parts_check.py."""
    assert main(["check", str(plan), "--inputs", ignoring]) == 0
    assert "are as eager has them" in capsys.readouterr().out


def test_it_holds_no_native_program(plan: Path) -> None:
    with pytest.raises(IrcError) as caught:
        load(plan)
    assert caught.value.code == "native-missing"


def test_other_commands_take_it(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", str(plan)]) == 0
    assert "--nproc-per-node 2" in capsys.readouterr().out
    assert main(["simulate", str(plan)]) == 0
    assert "stages          2, 4 micro-batches" in capsys.readouterr().out
    assert main(["explain", "plan", f"{plan}/parts/0/F"]) != 0
    assert "which has parts.json" in capsys.readouterr().err
    assert main(["explain", "plan", str(plan), "--fusion"]) != 0
    assert "--fusion is about one program" in capsys.readouterr().err
    assert main(["export", str(plan), "--format", "json"]) != 0
    assert "a plan in stages is not written as json" in capsys.readouterr().err


def test_a_stage_may_end_inside_of_the_loss(
    net: str, ignoring: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last stage divides by a share of the batch, and sends that back as it is."""
    out = str(tmp_path / "plan")
    words = ["--mesh", "pipe=7", "--micro-batches", "4", "--schedule", "zb-h1"]
    assert main(["compile", net, "-o", out, "--train", *words]) == 0
    assert main(["check", out, "--inputs", ignoring]) == 0
    assert "are as eager has them" in capsys.readouterr().out


def test_a_layer_that_is_cut_is_named_by_its_parameters(tmp_path: Path) -> None:
    """Between a matmul and its bias: no layer is said to be in two stages."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    said = irc.export_plan(
        model,
        (torch.randn(4, 8),),
        out=tmp_path / "plan",
        loss=lambda y: y.square().mean(),
        optimizer="sgd",
        mesh="pipe=2",
        micro_batches=2,
        pins='stage "0.weight" = 0\nstage "0.bias", "1.*" = 1',
    )
    rows = [line.split("%")[-1].strip() for line in said.splitlines() if "%" in line]
    assert rows == ["0.weight", "0.bias, 1"]


def test_a_plan_for_gpus_is_checked_without_one(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its kernels are interpreted, on the registers and in the order that it has."""
    out = str(tmp_path / "plan")
    words = ["--train", "sgd", "--mesh", "pipe=2", "--micro-batches", "2", "--backend", "triton"]
    assert main(["compile", net, "-o", out, *words]) == 0
    assert main(["check", out]) == 0
    assert "are as eager has them" in capsys.readouterr().out
