"""Folded literals are what torch computes, bit for bit."""

import math

import pytest
import torch

from irc.ops.fold import BOTH, FLOAT, INTEGER, MAX_VALUES, fold_pointwise, fold_shape
from irc.ops.functions import POINTWISE
from irc.runtime.dtypes import dtypes
from irc.runtime.library import run

VALUES = {
    "f32": (0.1, -0.0, 2.5, -1.5, math.inf, -math.inf, math.nan),
    "f64": (0.1, -0.0, 2.5, -1.5, math.inf, -math.inf, math.nan),
    "i64": (0, 1, -7, 5, 12, 3, -1),
    "i1": (0, 1, 1, 0, 1, 0, 0),
}


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("fn", sorted({**BOTH, **FLOAT, **INTEGER}))
def test_folding_is_torch(fn: str, dtype: str) -> None:
    row = POINTWISE[fn]
    kinds = ["i1", dtype, dtype] if fn == "where" else [dtype] * row.arity
    operands = [
        (VALUES[k] if n % 2 == 0 else VALUES[k][::-1], (7,), k) for n, k in enumerate(kinds)
    ]
    result = "i1" if row.result == "bool" else dtype
    folded = fold_pointwise(fn, operands, (7,), result)
    if folded is None:
        return
    tensors = [torch.tensor(v, dtype=dtypes()[k]) for v, _, k in operands]
    want = run("flow.pointwise", {"fn": fn}, tensors, [((7,), result)])[0]
    got = torch.tensor(folded, dtype=dtypes()[result])
    assert torch.equal(torch.nan_to_num(got, 9.0), torch.nan_to_num(want, 9.0))
    if want.is_floating_point():
        assert torch.equal(torch.signbit(got)[~want.isnan()], torch.signbit(want)[~want.isnan()])


def test_a_literal_is_rounded_before_it_is_cast() -> None:
    assert fold_pointwise("cast", [((0.1,), (), "f32")], (), "f64") == (0.10000000149011612,)
    assert fold_pointwise("cast", [((0.1,), (), "bf16")], (), "f64") == (0.10009765625,)
    assert fold_pointwise("cast", [((math.inf,), (), "bf16")], (), "f64") == (math.inf,)
    assert fold_pointwise("cast", [((2.5, -2.5), (2,), "f32")], (2,), "i64") == (2, -2)


def test_a_literal_of_bfloat16_is_rounded_as_torch_rounds() -> None:
    numbers = (torch.randn(64) * 10.0 ** torch.randint(-40, 38, (64,))).tolist()
    numbers[:4] = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0]  # ties go to the even one
    folded = fold_pointwise("cast", [(tuple(numbers), (64,), "bf16")], (64,), "f32")
    assert folded == tuple(torch.tensor(numbers, dtype=torch.bfloat16).tolist())


@pytest.mark.parametrize(("value", "dtype"), [(math.nan, "i64"), (300.0, "i8"), (-1.0, "u8")])
def test_casts_that_machines_disagree_on_stay(value: float, dtype: str) -> None:
    assert fold_pointwise("cast", [((value,), (), "f32")], (), dtype) is None


def test_shapes_fold_up_to_the_size_of_a_literal() -> None:
    values = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    turned = fold_shape("flow.transpose", {"perm": (1, 0)}, values, (2, 3), (3, 2))
    assert turned == (1.0, 4.0, 2.0, 5.0, 3.0, 6.0)
    assert fold_shape("flow.broadcast", {}, values, (6,), (MAX_VALUES, 6)) is None
    assert fold_shape("flow.broadcast", {}, (1.0,), (), (1000, 6)) == (1.0,)
