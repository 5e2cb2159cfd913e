"""The native loop of RNN, GRU and LSTM against the cells written in torch."""

# pyright: basic
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from irc import onnx as irc_onnx
from irc.backends.cpu.features import AVX2, BASELINE, host
from irc.backends.cpu.recurrent.sweep import written
from irc.ops.recurrent import GATES, UNIT, padded, rows
from irc.runtime import recurrent, recurrent_sweep

CELLS = {"RNN": recurrent._rnn_step, "GRU": recurrent._gru_step, "LSTM": recurrent._lstm_step}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def case(
    kind: str,
    hidden: int,
    batch: int,
    direction: str,
    *,
    steps: int = 5,
    with_optional: bool = True,
) -> tuple[list[Any], dict[str, Any]]:
    """Return operands and options."""
    kind, _, before = kind.partition(" ")
    torch.manual_seed(hidden + batch)
    count, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    w, r = torch.randn(count, gates * hidden, 3), torch.randn(count, gates * hidden, hidden)
    state = torch.randn(count, batch, hidden) if with_optional else None
    cell = torch.randn(count, batch, hidden) if with_optional and kind == "LSTM" else None
    bias = torch.randn(count, 2 * gates * hidden) if with_optional else None
    operands = [torch.randn(steps, batch, 3), w, r / hidden**0.5, bias, None, state, cell, None]
    options = {
        "hidden": hidden, "direction": direction, "layout": 0, "clip": None, "input_forget": 0,
        "linear_before_reset": not before, "activations": DEFAULTS[kind] * count,
        "alpha": [], "beta": [],
    }  # fmt: skip
    return operands, options


def wanted(kind: str, operands: list[Any], options: dict[str, Any]) -> list[torch.Tensor]:
    """Return what the cell in torch gives, in float64."""
    wide = [v if v is None or i == 4 else v.double() for i, v in enumerate(operands)]
    cell = recurrent.Cell(
        kind, CELLS[kind], GATES[kind], len(DEFAULTS[kind]), 2 if kind == "LSTM" else 1
    )
    x, w, r, *rest = wide
    products = [recurrent.Product(p) for p in w], [recurrent.Product(p) for p in r]
    return recurrent._run(cell, x, products, rest, options)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("hidden", "batch"), [(1, 1), (7, 3), (16, 1), (33, 8)])
@pytest.mark.parametrize("name", ["RNN", "GRU", "GRU before", "LSTM"])
def test_all_sizes_and_directions(name: str, hidden: int, batch: int, direction: str) -> None:
    for with_optional in (True, False):
        operands, options = case(name, hidden, batch, direction, with_optional=with_optional)
        kind = name.partition(" ")[0]
        before = [None if value is None else value.clone() for value in operands]
        assert recurrent_sweep.fits(kind, operands, options)
        outputs = recurrent.CELLS[kind](operands, options)
        for mine, want in zip(outputs, wanted(kind, operands, options), strict=True):
            assert mine.is_contiguous()
            torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)
        for was, now in zip(before, operands, strict=True):
            assert was is now is None or torch.equal(was, now)


@pytest.mark.parametrize("name", ["RNN", "GRU", "GRU before", "LSTM"])
@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 0, 2, 1]])
def test_sequences_end_at_their_lengths(name: str, lengths: list[int]) -> None:
    operands, options = case(name, 7, 4, "bidirectional")
    operands[4] = torch.tensor(lengths, dtype=torch.int32)
    kind = name.partition(" ")[0]
    assert recurrent_sweep.fits(kind, operands, options)
    outputs = recurrent.CELLS[kind](operands, options)
    for mine, want in zip(outputs, wanted(kind, operands, options), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [16, 20])
def test_results_are_written_where_they_are_to_lie(hidden: int) -> None:
    operands, options = case("LSTM", hidden, 5, "bidirectional")
    kept = recurrent.Kept("LSTM", options)
    out = [torch.full_like(value, 9.0) for value in kept(operands)]
    assert kept.write(operands, out)
    for mine, want in zip(out, wanted("LSTM", operands, options), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)
    assert not kept.write(operands, [value[:1] for value in out])


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 0, 2, 1, 5, 3, 4, 1, 1, 2, 5]])
@pytest.mark.parametrize("name", ["GRU before", "LSTM"])
def test_threads_share_rows_and_directions(
    name: str, direction: str, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent_sweep, "SHARED", 0)
    monkeypatch.setattr(recurrent_sweep, "_num_threads", lambda: 3)
    operands, options = case(name, 7, 11, direction)
    operands[4] = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    kind = name.partition(" ")[0]
    for _ in range(5):
        outputs = recurrent.CELLS[kind](operands, options)
        for mine, want in zip(outputs, wanted(kind, operands, options), strict=True):
            torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)


def test_other_activations() -> None:
    operands, options = case("RNN", 9, 2, "forward")
    options["activations"] = ["Relu"]
    for mine, want in zip(
        recurrent.rnn(operands, options), wanted("RNN", operands, options), strict=True
    ):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (4, torch.tensor([5])),
        (5, torch.zeros(1, 1, 4)),
        (7, torch.zeros(1, 12)),
        (0, torch.randn(5, 33, 3)),
    ],
)
def test_what_the_loop_does_not_do_is_left_to_torch(index: int, value: torch.Tensor) -> None:
    operands, options = case("LSTM", 4, 2, "forward", with_optional=False)
    operands[index] = value
    assert not recurrent_sweep.fits("LSTM", operands, options)


@pytest.mark.parametrize("features", [host(), AVX2, BASELINE])
def test_the_function_is_written_for_any_machine(features: Any) -> None:
    text = written("GRU", 20, ("sigmoid", "tanh"), features)
    assert f"<{UNIT} x float>" in text
    for kind in GATES:  # a row of the state is read up to there
        assert padded(20) >= rows(kind, 20)
    assert ("@llvm.fma" in text) is features.fma


def test_weights_are_packed_once_and_again_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    operands, options = case("GRU", 6, 2, "forward")
    kept, packs = recurrent.Kept("GRU", options), list[int]()
    pack = recurrent_sweep.packed

    def counted(*arguments: Any) -> Any:
        packs.append(1)
        return pack(*arguments)

    monkeypatch.setattr(recurrent_sweep, "packed", counted)
    first = kept(operands)[0]
    assert torch.equal(kept(operands)[0], first)
    assert len(packs) == 1
    operands[2].mul_(2)
    torch.testing.assert_close(
        kept(operands)[0].double(), wanted("GRU", operands, options)[0], rtol=1e-5, atol=1e-5
    )
    assert len(packs) == 2


@pytest.mark.parametrize("computed", [False, True])
def test_weights_that_a_model_computes_are_packed_each_time(computed: bool) -> None:
    """Their memory is the same in every call, and what lies there is not."""
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 16, 4)).astype(np.float32) for _ in range(2))
    stored = [numpy_helper.from_array(r, "r"), numpy_helper.from_array(w, "w0")]
    nodes = [
        helper.make_node("Mul", ["w0", "scale" if computed else "one"], ["w"]),
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4),
    ]
    stored.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [12, 2, 4]),
         helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [12, 1, 2, 4])], stored,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    session = irc_onnx.InferenceSession(model.SerializeToString())
    x = rng.standard_normal((12, 2, 4)).astype(np.float32)
    operands, options = case("LSTM", 4, 2, "forward", with_optional=False)
    for scale in (1.0, 3.0, 0.5):
        (output,) = session.run(None, {"x": x, "scale": np.full(1, scale, np.float32)})
        factor = scale if computed else 1.0
        operands[:3] = torch.from_numpy(x), torch.from_numpy(w) * factor, torch.from_numpy(r)
        want = wanted("LSTM", operands, options)[0]
        np.testing.assert_allclose(output, want.numpy(), rtol=1e-5, atol=1e-5)
