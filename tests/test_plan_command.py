"""`irc plan` and `mesh="auto"`: what is searched, printed, written and refused."""

# pyright: basic
from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.parts_files import is_parts, load_parts
from irc.simulate.parts import predict_step

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return (x - y).square().mean()

def build():
    torch.manual_seed(0)
    return Net(), (torch.zeros(16, 64), torch.zeros(16, 64))

def call():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)), torch.zeros(16, 64)
"""
LAYERS = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean()

def build():
    return Net(), (torch.zeros(16, 128), torch.zeros(16, 128))
"""
DEMO = ["--cluster", "demo-gpus", "--devices", "4"]
TWO = ["--cluster", "demo-gpus", "--devices", "2"]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(NET)
    return str(path)


def test_help_says_how_many_processes_there_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "IRC_PROCESSES=N" in capsys.readouterr().out


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("layers") / "layers.py"
    path.write_text(LAYERS)
    return str(path)


def test_a_step_is_searched_and_written(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    words = ["plan", f"{net}:build", "--train", "sgd", *TWO, "--most", "2", "--json"]
    assert main([*words, "-o", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    best, *others = [row for row in report["rows"] if row["step_s"] is not None]
    assert all(row["step_s"] >= best["step_s"] for row in others)
    assert best["devices"] == 2
    assert any(row["micro_batches"] > 1 for row in report["rows"])
    assert report["items"] == "samples"
    assert best["items_per_s"] == pytest.approx(16 / best["step_s"])
    # What was judged is what was written.
    if is_parts(out):
        plan = load_parts(out)
        from irc.cluster.load import find_cluster

        cluster = find_cluster("demo-gpus").fit(plan.mesh)
        assert predict_step(plan, cluster).seconds == pytest.approx(best["step_s"])
        assert str(plan.mesh) == best["mesh"]
    else:
        plan = load_plan(out).plan
        assert plan.mesh == best["mesh"]
        assert plan.predicted_s == pytest.approx(best["step_s"])


def test_a_plan_in_an_order_has_the_prices_of_it(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced, written = list[str](), list[str]()

    def price(cluster: str, chosen: Any) -> float:
        priced.append(cluster)
        return 0.0

    def write(*called: Any, cluster: str, **options: Any) -> str:
        written.append(cluster)
        return ""

    monkeypatch.setattr("irc.searched.cluster_in_order", lambda name, best: f"{name}@[1,0]")
    monkeypatch.setattr("irc.searched.price_of_stored", price)
    monkeypatch.setattr("irc.exports.export_plan", write)
    words = ["plan", f"{net}:build", "--train", "sgd", *TWO, "--most", "1"]
    assert main([*words, "-o", str(tmp_path / "plan")]) == 0
    assert priced == written == ["demo-gpus@[1,0]"]


def test_a_call_has_a_table(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{net}:call", *DEMO]) == 0
    said = capsys.readouterr().out
    assert "chosen" in said
    assert "samples/s" in said
    assert "kernels are for CPUs" in said
    assert "money" not in said


def test_money_is_of_a_price(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", f"{net}:call", *DEMO, "--objective", "cost", "--price", "2.5"]
    assert main([*words, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        assert row["money_per_step"] == pytest.approx(2.5 * row["devices"] * row["step_s"] / 3600)
        assert row["money_per_billion"] == pytest.approx(row["money_per_step"] / 16 * 1e9)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--devices", "5000", "--cluster", "8xH100"], "mesh-mismatch", "has 8"),
        (["--devices", "12", "--cluster", "2x8xH100"], "option-value", "choose 8 or 16"),
        (["--devices", "0"], "option-value", "1 or more"),
        (["--cluster", "8xH10"], "cluster-unknown", "8xH100"),
        (["--objective", "speed"], "option-value", "throughput"),
        (["--memory", "much"], "option-value", "GB"),
        (["--time-limit", "0"], "option-value", "above 0"),
        (["--most", "0"], "option-value", "1 or more"),
        (["--price", "-2"], "option-value", "above 0"),
        (["--price", "nan"], "option-value", "above 0"),
        (["--global-batch", "8"], "option-value", "whole batch"),
        (["--loss", "x"], "option-value", "--train"),
        (["--size", "N=4"], "option-value", "ONNX"),
    ],
)
def test_refusals(
    net: str, words: list[str], code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{net}:call", *words]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error[{code}]")
    assert says in errors


def test_the_budget_that_is_named_where_nothing_fits_works(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", f"{net}:build", "--train", "sgd", *TWO, "--most", "1", "--memory"]
    assert main([*words, "1kB"]) == 4
    errors = capsys.readouterr().err
    assert "error[plan-infeasible]" in errors
    # Two layers of 64 x 64 and 64 numbers, on two devices.
    assert "parameters and states alone take 16640 bytes on at least one of 2 devices" in errors
    assert "group memory: --memory 1000" in errors
    assert (match := re.search(r"(\d+) bytes do for ", errors)) is not None
    assert main([*words, match[1], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert any(row["step_s"] is not None for row in rows)


@pytest.mark.slow
def test_layers_that_cannot_fit_are_refused_soon(
    layers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On eight devices it took minutes to say so, since all was tried, and then a budget sought."""
    words = ["plan", f"{layers}:build", "--train", "adamw", "--cluster", "1x8xH100", "--memory"]
    began = time.process_time()
    assert main([*words, "100kB"]) == 4
    assert time.process_time() - began < 60
    errors = capsys.readouterr().err
    assert (match := re.search(r"(\d+) bytes do for ", errors)) is not None
    assert int(match[1]) < 10**7


@pytest.mark.parametrize(
    "memory", ["0", "0.4", "10%", "lots", "-1", "-1GB", "nan", "inf", "1e400B"]
)
def test_a_memory_that_cannot_be_is_refused(
    net: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{net}:call", f"--memory={memory}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error[option-value]")
    assert f"--memory {memory}" in errors


@pytest.mark.slow
def test_a_configuration_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    sizes = ["--global-batch", "4", "--sequence", "8"]
    assert main(["plan", str(path), *DEMO, *sizes, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["items"] == "tokens"
    path.write_text(json.dumps({**config, "model_type": "lama"}))
    assert main(["plan", str(path), *DEMO]) == 2
    assert "did you mean 'llama'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"schedule": "gpipe"}, {"recompute": "full"}, {"layout": "ddp"}, {"dynamic": True}]
)
def test_auto_refuses_what_it_chooses(tmp_path: Path, options: dict[str, Any]) -> None:
    module = nn.Linear(4, 4)
    with pytest.raises(IrcError, match="option-value"):
        irc.export_plan(module, (torch.zeros(2, 4),), out=tmp_path / "p", mesh="auto", **options)


def test_auto_is_the_plan_that_the_search_chooses(net: str, tmp_path: Path) -> None:
    from irc.frontends.torch.named import named_example

    example = named_example(f"{net}:call")
    said = irc.export_plan(
        example.module, example.args, out=tmp_path / "plan", mesh="auto", cluster="demo-gpus",
        devices=4, native="none",
    )  # fmt: skip
    assert "4 ranks" in said


def test_auto_on_one_process_is_one_device() -> None:
    x = torch.randn(4, 8)
    model = nn.Linear(8, 8)
    step = irc.compile_step(
        model, loss=nn.functional.mse_loss, optimizer="sgd", mesh="auto", example=(x, x)
    )
    assert float(step(x, x)) > float(step(x, x))
    compiled = irc.compile(nn.Linear(8, 8), mesh="auto", example=(x,))
    assert compiled(x).shape == x.shape


def test_auto_needs_an_example() -> None:
    with pytest.raises(IrcError, match="give an example"):
        irc.compile(nn.Linear(8, 8), mesh="auto")
    with pytest.raises(IrcError, match="a tuple of arguments"):
        irc.compile_step(nn.Linear(8, 8), mesh="auto", example=torch.zeros(2, 8))
    with pytest.raises(IrcError, match="example is for"):
        irc.compile(nn.Linear(8, 8), mesh="data=2", example=(torch.zeros(2, 8),))
    with pytest.raises(IrcError, match="none yet to call"):
        irc.compile(mesh="auto")


def test_an_onnx_file_has_numbers_for_its_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = numpy_helper.from_array(np.ones((64, 8), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = str(tmp_path / "m.onnx")
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert main(["plan", path, *TWO]) == 2
    errors = capsys.readouterr().err
    assert "error[size-unbound]" in errors
    assert "--size batch=8" in errors
    out = tmp_path / "plan"
    assert main(["plan", path, *TWO, "--size", "batch=16", "-o", str(out)]) == 0
    assert load_plan(out).plan.device_mesh.num_ranks == 2
