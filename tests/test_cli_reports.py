"""The commands that read plans: what they print, and what they say to wrong input."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from irc.cli import COMMANDS, main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    weights = [
        numpy_helper.from_array(np.ones((48, 96), np.float32), "up"),
        numpy_helper.from_array(np.ones((96, 48), np.float32), "down"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 48])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


@pytest.fixture(scope="module")
def plan(model: Path) -> Path:
    folder = model.parent / "plan"
    constraints = model.parent / "plan.sbp"
    constraints.write_text("# up is cut by columns\nup = [tensor = S(1)]\ndown = [tensor = S(0)]\n")
    words = ["compile", str(model), "-o", str(folder), "--mesh", "tensor=2"]
    assert main([*words, "--cluster", "demo-gpus", "--pins", str(constraints)]) == 0
    constraints.unlink()
    return folder


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    return output


def test_explain_and_diff_print_answers(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    text = output_of(capsys, "explain", "plan", str(plan))
    assert "tensor=2 (2 ranks)" in text
    assert "[Shard(1)]" in text
    assert "runner-up" in output_of(capsys, "explain", "plan", str(plan), "--op", "n0")
    answer = output_of(capsys, "explain", "plan", str(plan), "--op", "n0", "--why-not", "B")
    assert "costs" in answer
    assert json.loads(output_of(capsys, "explain", "plan", str(plan), "--json"))["cluster"]
    assert "PLAN" in output_of(capsys, "export", str(plan), "--format", "parallelize-module")
    assert output_of(capsys, "diff", str(plan), str(plan)) == "the plans are the same\n"
    assert json.loads(output_of(capsys, "diff", str(plan), str(plan), "--json"))["same"]


def test_json_is_all_that_is_printed(
    model: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out = str(tmp_path / "again")
    facts = json.loads(output_of(capsys, "compile", str(model), "-o", out, "--json"))
    assert facts == json.loads(output_of(capsys, "explain", "plan", out, "--json"))
    assert facts["backend"] == "cpu"
    call = json.loads(output_of(capsys, "simulate", str(plan), "--json"))
    assert (call["ranks"], call["mesh"]) == (2, "tensor=2")
    busy = {each["name"]: each["busy_s"] for each in call["streams"]}
    assert {"compute", "link tensor"} <= busy.keys()
    assert max(busy.values()) <= call["seconds"] <= sum(busy.values()) * (1 + 1e-9)
    passes = json.loads(output_of(capsys, "list", "passes", "--json"))
    assert "fuse" in {each["name"] for each in passes}
    assert all(set(each) == {"name", "about"} for each in passes)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_its_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert " ".join(capsys.readouterr().out.split()).count("Exit codes: 0") == 1


@pytest.mark.parametrize(
    ("words", "status", "code", "says"),
    [
        ("explain plan nowhere", 2, "plan-missing", "nowhere"),
        ("explain plan PLAN --op n99", 2, "option-value", "the plan has no op 'n99'"),
        ("explain plan PLAN --why-not B", 2, "option-value", "--op"),
        ("explain plan PLAN --op n0 --why-not S[0]", 2, "placement-syntax", "S["),
        ("explain plan PLAN --op n0 --why-not B,B", 2, "mesh-mismatch", "lists 2 axes"),
        ("explain plan PLAN --opp n0", 2, "option-unknown", "did you mean '--op'?"),
        ("explain error mesh-syntax --op n0", 2, "option-value", "--op is for plans"),
        ("explain pass fuse --sizes", 2, "option-value", "--sizes is for plans"),
        ("export PLAN", 2, "option-value", "--format"),
        ("export PLAN --format toml", 2, "option-value", "torchtitan"),
        ("export nowhere --format json", 2, "plan-missing", "nowhere"),
        ("export PLAN --format json -o PLAN", 2, "output-exists", "choose another file"),
        ("export PLAN --format json -o no/such/folder", 2, "output-write", "cannot write"),
        ("diff PLAN", 2, "option-value", "B"),
        ("diff PLAN nowhere", 2, "plan-missing", "nowhere"),
    ],
)
def test_wrong_input_has_no_traceback(
    words: str, status: int, code: str, says: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([str(plan) if word == "PLAN" else word for word in words.split()]) == status
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"error[{code}]: ")
    assert says in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("pins", "status", "code"),
    [
        ("up = [tensor = S(1)\n", 2, "placement-syntax"),
        ("upp = B", 2, "input-mismatch"),
        ("x = S(0)", 2, "mesh-axis-indivisible"),
        ("op n0 = P(max)", 4, "sharding-infeasible"),
        ("no-such-file.sbp", 2, "file-missing"),
    ],
)
def test_constraints_that_cannot_be_end_the_compilation(
    pins: str,
    status: int,
    code: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    words = ["compile", str(model), "-o", str(tmp_path / "plan"), "--mesh", "tensor=2"]
    assert main([*words, "--cluster", "demo-gpus", "--pins", pins]) == status
    assert capsys.readouterr().err.startswith(f"error[{code}]: ")
    assert not (tmp_path / "plan").exists()


def test_explain_fusion_names_kernels_and_what_is_apart(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    text = output_of(capsys, "explain", "plan", str(plan), "--fusion")
    assert "matmul, 1 run" in text and "Not fused" in text and "[" in text
    fusion = json.loads(output_of(capsys, "explain", "plan", str(plan), "--fusion", "--json"))
    assert fusion["kernels"] and all(row["rule"] for row in fusion["apart"])
    pair = [fusion["apart"][0][side]["id"] for side in ("first", "second")]
    why = output_of(capsys, "explain", "plan", str(plan), "--fusion", "--why-not", *pair)
    assert f"[{fusion['apart'][0]['rule']}]" in why


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fusion", "--why-not", "n0"], "takes two ops"),
        (["--fusion", "--why-not", "n0", "n99"], "an op 'n99'"),
        (["--op", "n0", "--why-not", "B", "B"], "takes one placement"),
    ],
)
def test_why_not_of_fusion_asks_for_ops_that_exist(
    words: list[str], says: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["explain", "plan", str(plan), *words]) == 2
    assert says in capsys.readouterr().err


def test_fusion_constraints_on_one_device_hold_or_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model.parent / "pinned"
    words = ["compile", str(model), "-o", str(folder)]
    assert main([*words, "--pins", "fuse n0, n1"]) in (0, 4)
    capsys.readouterr()
    assert main([*words, "--pins", "fuse n0, n77", "--force"]) == 2
    assert "there is no op 'n77'" in capsys.readouterr().err
    assert main([*words, "--pins", "keep n0 apart", "--force"]) == 0
    capsys.readouterr()
    fusion = json.loads(output_of(capsys, "explain", "plan", str(folder), "--fusion", "--json"))
    assert ["n0"] in [[op["id"] for op in row["ops"]] for row in fusion["kernels"]]
