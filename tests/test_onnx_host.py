"""ONNX files whose values decide sizes, branches and trips, as plans: compiled, written, loaded."""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import irc
import irc.runtime
from irc.cli import main
from irc.dialects.builder import functions
from irc.errors import IrcError
from irc.from_files import compile_file
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import read_model
from irc.frontends.onnx.trace import trace
from irc.interpret.dynamic import run_dynamic
from irc.onnx.outline import outline
from irc.plan.host import load_host
from irc.runtime.host import HostExecutor, load_host_weights
from tests.frontends.onnx.compare import model_of, reference
from tests.models.host_models import (
    GO,
    NESTED,
    branches,
    loop_model,
    repeated,
    repeated_while,
    scan_model,
    stored,
)

LOOP = "outer = Exp (x)\n" + repeated()


def compiled(model: onnx.ModelProto, folder: Path) -> HostExecutor:
    onnx.save(model, folder / "model.onnx")
    compile_file(str(folder / "model.onnx"), str(folder / "plan"), native="none")
    executor = irc.load(folder / "plan")
    assert isinstance(executor, HostExecutor)
    return executor


def same(model: onnx.ModelProto, run: HostExecutor, *values: np.ndarray) -> None:
    """Hold a plan against ONNX Runtime."""
    names = [value_info.name for value_info in model.graph.input]
    wanted = reference(model, dict(zip(names, values, strict=True)))
    for a, b in zip(wanted, run(*map(torch.from_numpy, map(np.asarray, values))), strict=True):
        equal(a, b)


def equal(wanted: Any, output: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(output, list)
        for a, b in zip(wanted, output, strict=True):
            equal(a, b)
        return
    assert tuple(output.shape) == wanted.shape
    np.testing.assert_allclose(np.asarray(output), wanted, rtol=1e-5, atol=1e-6)


def x_of(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_loop_is_compiled_once_for_any_trips(tmp_path: Path) -> None:
    model = loop_model()
    run = compiled(model, tmp_path)
    for trips in (1, 4, 7):
        same(model, run, x_of(trips, 3, 8), np.array(trips))
    assert run.stepped == {}
    # No rows were collected: the region after the loop gives none, and is not run for that.
    same(model, run, x_of(9, 3, 8), np.array(0))
    assert run.stepped == {}
    facts = load_host(tmp_path / "plan").facts
    assert not any(region.reason for region in facts.regions.values())


def test_a_sum_of_no_rows_is_run_op_by_op(tmp_path: Path) -> None:
    """The plan of the region is for one row and more, and its result has elements."""
    model = stored(
        model_of(
            LOOP + "\ns = ReduceSum <keepdims = 0> (all)",
            "float[3,8] x, int64 n", "float[3,8] y, float s", stored=GO,
        )
    )  # fmt: skip
    run = compiled(model, tmp_path)
    for trips, times in ((2, 0), (0, 1)):
        same(model, run, x_of(trips, 3, 8), np.array(trips))
        assert sum(run.stepped.values()) == times


def test_run_check_and_explain_take_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(loop_model(), tmp_path)
    plan = str(tmp_path / "plan")
    assert main(["run", plan]) == 0
    assert "OK" in capsys.readouterr().out
    assert main(["check", plan]) == 0
    out = capsys.readouterr().out
    assert out.count("every stage agrees with eager") == 3
    assert "the host program agrees with eager" in out
    assert main(["explain", "plan", plan]) == 0
    assert "1 Loop" in capsys.readouterr().out
    assert main(["explain", "plan", plan, "--fusion"]) == 2
    assert "name a region" in capsys.readouterr().err
    assert main(["launch", plan]) == 2
    assert "regions/NAME" in capsys.readouterr().err
    values = {"x": x_of(0, 3, 8), "n": np.array(3)}
    np.savez(tmp_path / "in.npz", allow_pickle=False, **values)
    saved = str(tmp_path / "out.safetensors")
    assert main(["run", plan, "--inputs", str(tmp_path / "in.npz"), "--outputs", saved]) == 0


def test_a_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    compiled(loop_model(), tmp_path)
    plan = tmp_path / "plan"
    text = (plan / "host.mlir").read_text()
    (plan / "host.mlir").write_text(text.replace("tanh", "sigmoid"))
    with pytest.raises(IrcError, match=r"host\.mlir") as caught:
        irc.load(plan)
    assert caught.value.code == "plan-corrupt"
    (plan / "host.mlir").write_text(text)
    kernel = next((plan / "regions").rglob("*.ll"))
    kernel.write_text(kernel.read_text() + "\n")
    with pytest.raises(IrcError) as caught:
        irc.load(plan)
    assert caught.value.code == "plan-corrupt"


def test_a_wrong_region_is_found(tmp_path: Path) -> None:
    """A plan of other weights than the program's is what a wrong kernel looks like from outside."""
    compiled(loop_model(), tmp_path)
    plan = load_host(tmp_path / "plan")
    weights = load_host_weights(plan)
    from irc.runtime.host_run import compared

    inputs = [torch.from_numpy(x_of(0, 3, 8)), torch.tensor(3)]
    run = HostExecutor(plan, weights)
    assert compared(plan, weights, inputs, run(*inputs)).ok
    wrong = HostExecutor(plan, {**weights, "W": weights["W"] * 1.01})
    assert not compared(plan, weights, inputs, wrong(*inputs)).ok


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    run = compiled(loop_model(), tmp_path)
    with pytest.raises(IrcError, match="takes 2 inputs"):
        run(torch.zeros(3, 8))
    with pytest.raises(IrcError, match=r"input 'x' is \[3, 7\]"):
        run(torch.zeros(3, 7), torch.tensor(2))
    with pytest.raises(IrcError, match="input 'n'"):
        run(torch.zeros(3, 8), torch.tensor(2.0))


GROW = (
    "g, k = Loop (n, go, x, x) <body = b (int64 i, bool going, float[p,8] v, float[p,8] u) => "
    "(bool on, float[q,8] w, float[q,8] z) { on = Identity (going)\nw = Concat <axis = 0> (v, x)\n"
    "z = Concat <axis = 0> (u, x) }>\ns = Add (g, k)\ny = MatMul (s, W)"
)
NONZERO = "i = NonZero (x)\nj = Transpose (i)\ng = GatherND (x, j)\ne = Exp (g)\ny = Softmax (e)"


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "more", "calls"),
    [
        (branches(), "float[3,8] x, bool c", "float[a,b] y", "", [(True,), (False,)]),
        (repeated_while(), "float[3,8] x", "float[3,8] y, float[t] h", f"{GO}, float eps = {{0.3}}",
         [()]),
        (GROW, "float[3,8] x, int64 n", "float[t,8] y", GO, [(1,), (4,)]),
        (NESTED, "float[3,8] x, int64 n", "float[3,8] y", GO, [(0,), (3,)]),
        (NONZERO, "float[3,8] x", "float[k] y", "", [()]),
    ],
    ids=["if", "while", "grow", "nested", "nonzero"],
)  # fmt: skip
def test_values_decide(
    body: str,
    inputs: str,
    outputs: str,
    more: str,
    calls: Sequence[tuple[Any, ...]],
    tmp_path: Path,
) -> None:
    model = stored(model_of(body, inputs, outputs, opset=18, stored=more))
    run = compiled(model, tmp_path)
    for seed, call in enumerate(calls):
        same(model, run, x_of(seed, 3, 8), *map(np.asarray, call))
    assert run.stepped == {}
    assert all(not region.reason for region in run.plan.facts.regions.values())


def test_two_carried_sizes_that_grow_together_are_one(tmp_path: Path) -> None:
    model = stored(model_of(GROW, "float[3,8] x, int64 n", "float[t,8] y", stored=GO))
    program = trace(prepare(read_model(model)), {}, dynamic=True, bodies=True).program
    (body,) = (f for name, f in functions(program.module).items() if name.startswith("loop"))
    _, _, first, second, *_ = body.function_type.inputs
    assert first == second


def test_a_scan_over_an_open_length(tmp_path: Path) -> None:
    model = scan_model()
    run = compiled(model, tmp_path)
    for length in (1, 5, 40):
        same(model, run, x_of(length, 3, 8), x_of(1, length, 3, 8))
    assert main(["run", str(tmp_path / "plan"), "--size", "T=6"]) == 0
    assert main(["run", str(tmp_path / "plan"), "--size", "U=6"]) == 2


def test_sequences_and_strings(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["v", "W"], ["w"]),
            helper.make_node("SequenceInsert", ["s", "w"], ["t"]),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [3, 8]),
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 8]),
            helper.make_tensor_sequence_value_info("t", TensorProto.FLOAT, None),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("SequenceEmpty", [], ["e"], dtype=TensorProto.FLOAT),
            helper.make_node("Loop", ["n", "", "x", "e"], ["y", "all"], body=body),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8]),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8]),
            helper.make_tensor_sequence_value_info("all", TensorProto.FLOAT, None),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    model = stored(helper.make_model(graph, opset_imports=opset, ir_version=9))
    run = compiled(model, tmp_path)
    feeds: dict[str, np.ndarray] = {"x": x_of(0, 3, 8), "n": np.array(3)}
    for a, b in zip(reference(model, feeds), run(*feeds.values()), strict=True):
        equal(a, b)
    text = model_of("e = Equal (s, t)\ny = Cast <to = 1> (e)", "string[4] s, string[4] t",
                    "float[4] y", opset=19)  # fmt: skip
    (tmp_path / "text").mkdir()
    (output,) = compiled(text, tmp_path / "text")(
        np.array(["a", "b", "c", "d"], object), np.array(["a", "x", "c", "y"], object)
    )
    assert output.tolist() == [1, 0, 1, 0]
    assert main(["run", str(tmp_path / "text" / "plan")]) == 2  # no strings are drawn


def test_outlining_changes_no_number() -> None:
    model = stored(
        model_of(
            LOOP + "\nz = ReduceSum <keepdims = 0> (all)",
            "float[N,8] x, int64 n", "float[N,8] y, float z", stored=GO,
        )
    )  # fmt: skip
    for formal in model.graph.node[1].attribute[0].g.input[2:]:
        formal.type.tensor_type.shape.dim[0].dim_param = "N"
    traced = trace(prepare(read_model(model)), {"N": 5}, dynamic=True, bodies=True)
    module, tensors = traced.program.module, traced.program.tensors
    feeds = {"x": torch.from_numpy(x_of(0, 6, 8)), "n": torch.tensor(3)}
    before = run_dynamic(module, traced.program.bind(feeds), weights=tensors)
    outlined = outline(module, {})
    module.verify()
    assert len(outlined) == 3
    after = run_dynamic(module, traced.program.bind(feeds), weights=tensors)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


def test_on_a_mesh_a_loop_is_refused_by_name(tmp_path: Path) -> None:
    onnx.save(loop_model(), tmp_path / "model.onnx")
    with pytest.raises(IrcError, match="trip count depends on inputs") as caught:
        compile_file(str(tmp_path / "model.onnx"), str(tmp_path / "plan"), mesh="data=2")
    assert "one CPU" in caught.value.help


def test_without_torch_they_are_refused(tmp_path: Path) -> None:
    compiled(loop_model(), tmp_path)
    with pytest.raises(IrcError, match="holds no native one") as caught:
        irc.runtime.load(tmp_path / "plan")
    assert caught.value.code == "native-missing"
