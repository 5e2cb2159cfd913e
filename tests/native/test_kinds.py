"""Programs of other kinds: with state, with random numbers, in bfloat16, on empty tensors."""

import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu.variants import VARIANTS
from irc.cli import main
from irc.runtime import load
from irc.runtime.native import processor

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)


class Counter(nn.Module):
    """Keeps a running sum of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.full((5, 3), 2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add_(x)
        return self.seen * 2, x.T


def test_each_program_keeps_its_own_state(tmp_path: Path) -> None:
    module, x = Counter(), torch.arange(15.0).reshape(5, 3)
    irc.export_plan(module, (x,), out=tmp_path / "plan")
    module.seen.fill_(2)
    for mapped in (False, True):
        program, other = (load(tmp_path / "plan", threads=2, mapped=mapped) for _ in range(2))
        for count in range(1, 4):
            y, turned = program.run([x.numpy()])
            assert np.array_equal(y, (2 + count * x.numpy()) * 2)
            assert np.array_equal(turned, x.numpy().T)
        assert np.array_equal(other.run([x.numpy()])[0], (2 + x.numpy()) * 2)


def test_calls_that_change_a_state_take_turns(tmp_path: Path) -> None:
    x = torch.ones(5, 3)
    irc.export_plan(Counter(), (x,), out=tmp_path / "plan")
    program = load(tmp_path / "plan", threads=2)
    before = program.run([x.numpy()])[0][0, 0] / 2

    def call() -> None:
        for _ in range(200):
            program.run([x.numpy()])

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert program.run([x.numpy() * 0])[0][0, 0] / 2 == before + 800


def test_random_numbers_differ_from_call_to_call(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Linear(40, 64), nn.Dropout(0.5)).train(), torch.randn(6, 40)
    irc.export_plan(module, (x,), out=tmp_path / "plan")
    program, plan = load(tmp_path / "plan", threads=1), irc.load(tmp_path / "plan")
    outputs = [program.run([x.numpy()])[0] for _ in range(3)]
    assert not np.array_equal(outputs[0], outputs[1])
    for got in outputs:
        assert np.array_equal(got, plan(x)[0].detach().numpy())


def test_bfloat16_has_code_with_and_without_dot_products(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(64, 48).bfloat16(), torch.randn(32, 64).bfloat16()
    text = irc.export_plan(module, (x,), out=tmp_path / "plan")
    assert "x86-64-v4-dots " in text
    assert "x86-64-v4 " in text
    operand = x.float().numpy().astype(ml_dtypes.bfloat16)
    want = (x.double() @ module.weight.double().T + module.bias.double()).detach().numpy()
    fitting = [v.name for v in VARIANTS.values() if not set(v.requires) - processor.flags()]
    assert fitting
    for code in fitting:
        program = load(tmp_path / "plan", threads=2, code=code)
        (got,) = program.run([operand])
        assert got.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=2e-2)


def test_int8_has_code_with_and_without_tiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sums of bytes are exact: all code gives the same bits."""
    draw = np.random.default_rng(0)
    w = draw.integers(-128, 128, (72, 48)).astype(np.int8)
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    kind = onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info("x", kind, (37, 72))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (37, 48))],
        [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    file = tmp_path / "model.onnx"
    opset = [onnx.helper.make_opsetid("", 19)]
    proto = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    file.write_bytes(proto.SerializeToString())
    assert main(["compile", str(file), "-o", str(tmp_path / "plan")]) == 0
    text = capsys.readouterr().out
    assert "x86-64-v4-amx " in text
    assert "x86-64-v4-dots " in text
    x = draw.integers(0, 256, (37, 72)).astype(np.uint8)
    for code in [v.name for v in VARIANTS.values() if not set(v.requires) - processor.flags()]:
        (got,) = load(tmp_path / "plan", threads=2, code=code).run([x])
        np.testing.assert_array_equal(got, x.astype(np.int64) @ w)


@pytest.mark.parametrize("rows", [0, 1, 13])
def test_few_rows_or_none(tmp_path: Path, rows: int) -> None:
    module, x = nn.Sequential(nn.Linear(7, 5), nn.Softmax(-1)), torch.randn(rows, 7)
    irc.export_plan(module, (x,), out=tmp_path / "plan", native="x86-64-v3")
    (got,) = load(tmp_path / "plan", threads=2).run([x.numpy()])
    np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_nothing_to_compute(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    irc.export_plan(lambda x: (x[1:3, ::2], x), (x,), out=tmp_path / "plan")
    part, whole = load(tmp_path / "plan", threads=2).run([x.numpy()])
    assert np.array_equal(part, x[1:3, ::2].numpy())
    assert np.array_equal(whole, x.numpy())
    whole[:] = 0
    assert x.abs().sum() > 0
