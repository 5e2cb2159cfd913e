"""The library against torch's own operators, on odd sizes."""

from typing import Any

import pytest
import torch

from irc.dialects.flow_ops import OP_BY_NAME
from irc.ops.functions import POINTWISE
from irc.runtime import library
from irc.runtime.flow_ops import extern

STRUCTURAL = {"flow.fusion", "flow.yield"}


def test_every_op_has_a_meaning() -> None:
    assert set(OP_BY_NAME) - STRUCTURAL == set(library.LIBRARY)


@pytest.mark.parametrize("fn", sorted(POINTWISE))
def test_every_pointwise_function_runs_and_has_the_dtype_of_its_row(fn: str) -> None:
    row = POINTWISE[fn]
    integer = fn.startswith(("bit_", "shift_"))
    x = torch.tensor([1, 2, 3]) if integer else torch.tensor([0.25, 0.5, 0.75])
    inputs = [x > 0.4, x, x] if fn == "where" else [x] * row.arity
    (output,) = library.run("flow.pointwise", {"fn": fn}, inputs, [((3,), "f32")])
    assert output.shape == (3,)
    assert output.dtype == (torch.bool if row.result == "bool" else x.dtype)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)])
def test_pooling(kernel: int, stride: int, pad: int, *, ceil: bool, counted: bool) -> None:
    x = torch.randn(2, 3, 7, 8)
    F = torch.nn.functional
    attrs = {
        "window": (kernel,) * 2, "strides": (stride,) * 2, "low": (pad,) * 2, "high": (pad,) * 2,
        "dilations": (1, 1), "count_padding": counted,
    }  # fmt: skip
    largest = F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)
    average = F.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil, count_include_pad=counted)
    for fn, expected in (("max", largest), ("avg", average)):
        results = [(tuple(expected.shape), "f32")]
        (output,) = library.run("flow.pool", {**attrs, "fn": fn}, [x], results)
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("mask", ["none", "bool", "additive"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_grouped_heads(mask: str, *, causal: bool) -> None:
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 4)
    keep = torch.rand(2, 1, 5, 5) > 0.3
    keep |= torch.eye(5, dtype=torch.bool)
    operands = {"none": [], "bool": [keep], "additive": [torch.randn(5, 5)]}[mask]
    scores = q @ k.repeat_interleave(3, 1).transpose(-1, -2) * 0.3
    if mask == "bool":
        scores = scores.masked_fill(~keep, -torch.inf)
    if mask == "additive":
        scores = scores + operands[0]
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    expected = torch.softmax(scores, -1) @ v.repeat_interleave(3, 1)
    attrs = {"is_causal": causal, "scale": 0.3}
    (output,) = library.run("flow.attention", attrs, [q, k, v, *operands], [((2, 6, 5, 4), "f32")])
    torch.testing.assert_close(output, expected)
    shapes = [(tuple(t.shape), "f32") for t in (q, k, v)]
    record = OP_BY_NAME["flow.attention"].RECORD
    assert record is not None
    assert record.infer is not None
    assert record.infer(attrs, shapes) == [((2, 6, 5, 4), "f32")]


def test_random_numbers_do_not_depend_on_the_shape_drawn() -> None:
    attrs, seed = {"distribution": "uniform", "stream": 3}, torch.tensor(7)
    (whole,) = library.run("flow.random", attrs, [seed], [((4000,), "f64")])
    (front,) = library.run("flow.random", attrs, [seed], [((50,), "f64")])
    assert torch.equal(whole[:50], front)
    assert abs(float(whole.mean()) - 0.5) < 0.02
    (normal,) = library.run(
        "flow.random", {**attrs, "distribution": "normal"}, [seed], [((4000,), "f64")]
    )
    assert abs(float(normal.std()) - 1) < 0.05


def test_the_random_numbers_of_the_next_step_are_not_these_moved_along() -> None:
    attrs, count = {"distribution": "uniform", "stream": 3}, (1 << 20) + 64
    numbers = [
        library.run("flow.random", {**attrs, **own}, [torch.tensor(seed)], [((count,), "f64")])[0]
        for seed, own in ((5, {}), (6, {}), (5, {"stream": 4}))
    ]
    assert len(set(torch.cat(numbers).tolist())) == 3 * count


def test_extern_fills_operands_and_keywords() -> None:
    attrs = {
        "target": "aten::std.correction",
        "arguments": '[[{"operand": 0}, [1]], {"correction": 0, "keepdim": true}]',
    }
    x = torch.randn(3, 5)
    (output,) = library.run("flow.extern", attrs, [x], [((3, 1), "f32")])
    torch.testing.assert_close(output, x.std(1, correction=0, keepdim=True))


def test_arguments_that_are_read_once_are_those_of_each_call() -> None:
    arguments: list[Any] = [
        [{"operand": 0}, [{"operand": 1}, None], [2, 3], {"float": "inf"}, {"dtype": "f64"}],
        {"at": {"device": "here"}, "complex": {"complex": [1, 2]}, "pairs": [[{"operand": 0}]]},
    ]
    fill = extern.calling(arguments)
    for inputs in ([torch.ones(2), torch.zeros(3)], [torch.ones(4), torch.zeros(5)]):
        positional, named = fill(inputs)
        wanted, wanted_named = extern.called_with(arguments, inputs)
        assert positional[0] is inputs[0]
        assert positional[1][0] is inputs[1]
        assert positional[2:] == wanted[2:]
        assert named["pairs"][0][0] is inputs[0]
        assert {**named, "pairs": None} == {**wanted_named, "pairs": None}
        positional[2].append(7)  # as an op may
