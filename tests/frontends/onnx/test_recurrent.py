"""RNN, GRU and LSTM of few steps are plain ops; of more, or with more to them, library ops."""

from __future__ import annotations

import numpy as np
import pytest

from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import read_model
from irc.frontends.onnx.recurrent import GATES, MOST_STEPS
from irc.frontends.onnx.trace import trace
from irc.onnx import InferenceSession
from tests.frontends.onnx.compare import check_text, model_of, op_counts

RNG = np.random.default_rng(2)
BATCH, WIDTH, HIDDEN = 3, 4, 5


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(
    kind: str, steps: int, direction: str, *, bias: bool = True, states: bool = True, more: str = ""
) -> dict[str, int]:
    """Compare with ONNX Runtime and count the ops."""
    d, wide = (2 if direction == "bidirectional" else 1), GATES[kind] * HIDDEN
    feeds = {"x": normal(steps, BATCH, WIDTH), "w": normal(d, wide, WIDTH),
             "r": normal(d, wide, HIDDEN)}  # fmt: skip
    kinds = [f"float[{steps},{BATCH},{WIDTH}] x", f"float[{d},{wide},{WIDTH}] w",
             f"float[{d},{wide},{HIDDEN}] r"]  # fmt: skip
    if bias:
        feeds["b"] = normal(d, 2 * wide)
        kinds.append(f"float[{d},{2 * wide}] b")
    names = ["h", "c"] if kind == "LSTM" else ["h"]
    if states:
        feeds |= {name: normal(d, BATCH, HIDDEN) for name in names}
        kinds += [f"float[{d},{BATCH},{HIDDEN}] {name}" for name in names]
    operands = ", ".join(
        ["x", "w", "r", "b" if bias else "", "", *(names if states else [""] * len(names))]
    )
    last = ", last" if kind == "LSTM" else ""
    flags = f'hidden_size = {HIDDEN}, direction = "{direction}"{more}'
    body = f"y, z{last} = {kind} <{flags}> ({operands.rstrip(', ')})"
    outputs = "y:4 z:3" + (" last:3" if last else "")
    return op_counts(
        check_text(body, ", ".join(kinds), outputs, opset=14, feeds=feeds, absolute=1e-5)
    )


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("steps", [1, 3])
def test_few_steps_are_written_out(kind: str, direction: str, steps: int) -> None:
    for bias, states in ((True, True), (False, False)):
        counts = run(kind, steps, direction, bias=bias, states=states)
        assert not any(name.startswith("onnx::") for name in counts)


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_of_a_gated_unit_before_its_reset(bias: bool) -> None:
    counts = run("GRU", 2, "bidirectional", bias=bias, more=", linear_before_reset = 1")
    assert "onnx::GRU" not in counts


def test_activations_by_name() -> None:
    more = ', activations = ["Relu"]'
    assert "onnx::RNN" not in run("RNN", 2, "forward", more=more)
    more = ', activations = ["HardSigmoid", "Tanh", "Tanh"]'
    assert run("LSTM", 2, "forward", more=more)["onnx::LSTM"] == 1


def test_more_steps_are_a_library_op() -> None:
    for more, steps in (("", MOST_STEPS + 1), (", clip = 0.5", 2), (", layout = 0", 2)):
        counts = run("LSTM", steps, "forward", more=more)
        assert ("onnx::LSTM" in counts) == (more != ", layout = 0")


@pytest.mark.parametrize("operand", ["h", "c", "n"])
@pytest.mark.parametrize("steps", [2, MOST_STEPS + 1])
def test_states_of_another_batch_are_refused(operand: str, steps: int) -> None:
    # Torch's own cell does not look: it read and wrote outside of such a state.
    batch = {"h": BATCH, "c": BATCH, "n": BATCH, operand: BATCH - 1}
    inputs = (
        f"float[{steps},{BATCH},{WIDTH}] x, float[1,{4 * HIDDEN},{WIDTH}] w, "
        f"float[1,{4 * HIDDEN},{HIDDEN}] r, int32[{batch['n']}] n, "
        f"float[1,{batch['h']},{HIDDEN}] h, float[1,{batch['c']},{HIDDEN}] c"
    )
    body = f"y = LSTM <hidden_size = {HIDDEN}> (x, w, r, , {'n' if operand == 'n' else ''}, h, c)"
    model = model_of(body, inputs, "float[a,b,c,d] y")
    with pytest.raises(IrcError, match="batch of 2, the inputs of 3"):
        load_onnx(model)


def test_names_of_batches_that_a_cell_ties_are_one() -> None:
    body = f"y, last = GRU <hidden_size = {HIDDEN}, linear_before_reset = 1> (x, w, r, , , h)"
    inputs = (
        f"float[s,n,{WIDTH}] x, float[1,{3 * HIDDEN},{WIDTH}] w, float[1,{3 * HIDDEN},{HIDDEN}] r, "
        f"float[1,m,{HIDDEN}] h"
    )
    source = prepare(read_model(model_of(body, inputs, "float[a,b,c,d] y, float[a,b,c] last")))
    traced = trace(source, {"s": 11, "n": 3, "m": 3})
    assert traced.shapes["h"][1] == traced.shapes["x"][1]


@pytest.mark.parametrize("steps", [2, MOST_STEPS + 1])
@pytest.mark.parametrize("kind", list(GATES))
def test_batches_that_come_first(kind: str, steps: int) -> None:
    """ONNX Runtime knows them not: held against the same cell with its steps first."""
    wide, names = GATES[kind] * HIDDEN, ["h", "c"] if kind == "LSTM" else ["h"]
    weights = {"w": normal(2, wide, WIDTH), "r": normal(2, wide, HIDDEN)}
    feeds = {"x": normal(BATCH, steps, WIDTH)} | {n: normal(BATCH, 2, HIDDEN) for n in names}
    results: list[list[np.ndarray]] = []
    for layout in (0, 1):
        operands = {n: v if layout else v.swapaxes(0, 1) for n, v in feeds.items()} | weights
        inputs = [f"float[{','.join(map(str, v.shape))}] {n}" for n, v in operands.items()]
        flags = f'hidden_size = {HIDDEN}, direction = "bidirectional", layout = {layout}'
        last = ", last" if kind == "LSTM" else ""
        body = f"y, z{last} = {kind} <{flags}> (x, w, r, , , {', '.join(names)})"
        outputs = ["float[a,b,c,d] y", *(f"float[a,b,c] {n}" for n in ["z", *names[1:]])]
        outputs = [each.replace(" c", " last") if each.endswith(" c") else each for each in outputs]
        model = model_of(body, ", ".join(inputs), ", ".join(outputs))
        session = InferenceSession(model.SerializeToString())
        results.append([np.asarray(each) for each in session.run(None, operands)])
    (y, *last_states), (turned, *turned_states) = results
    np.testing.assert_array_equal(turned, y.transpose(2, 0, 1, 3))
    for mine, want in zip(turned_states, last_states, strict=True):
        np.testing.assert_array_equal(mine, want.swapaxes(0, 1))
