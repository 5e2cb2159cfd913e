"""Kernels of attention's gradients against autograd in float64: shapes, masks, machines."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from irc.backends.cpu.attention_backward import slopes, writer
from irc.backends.cpu.attention_backward.memory import Rows
from irc.backends.cpu.attention_backward.plan import plan_gradients
from irc.backends.cpu.features import AVX2, BASELINE, Features, host
from irc.backends.cpu.vector.builder import Operand
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from tests.backends.cpu.gradient_cases import Case, error, kernels_of
from tests.processors import EVERY

TOLERANCE = {"f32": 5e-6, "bf16": 1.5e-2, "f16": 2e-3}
MANY = Case(rows=97, keys=131, depth=24, width=40)
HALF = replace(MANY, dtype="bf16", depth=32, width=64)
CASES = {
    "tails everywhere": Case(rows=53, keys=301, depth=17, width=19),
    "one of each": Case(rows=1, keys=1, depth=1, width=1, scale=-0.5),
    "few keys": Case(rows=33, keys=3, depth=64, width=17),
    "few rows": Case(rows=3, keys=131, depth=64, width=17),
    "wide": Case(rows=61, keys=70, depth=128, width=80),
    "dense rows, added up in place": Case(rows=130, keys=66, depth=64, width=64, turned=False),
    "causal": replace(MANY, causal=True, keys=97),
    "causal, more keys": replace(MANY, causal=True),
    "causal, more rows": replace(MANY, causal=True, keys=41),
    "causal, later rows": replace(MANY, causal=True, start=34),
    "causal, rows that see nothing": replace(MANY, causal=True, start=-50),
    "causal, nothing at all": replace(MANY, causal=True, start=-500),
    "grouped heads": replace(MANY, lead=(4,), groups=2, causal=True),
    "heads of one key": replace(MANY, groups=1, causal=True),
    "keys in parts": replace(MANY, heads=1, groups=1, keys=513, causal=True),
    "parts of grouped heads": replace(MANY, heads=4, groups=2, keys=513, mask=(97, 513)),
    "no heads": replace(MANY, lead=(), heads=0, groups=0),
    "bool mask": replace(MANY, mask=(1, 8, 97, 131)),
    "padding mask": replace(MANY, lead=(2,), mask=(2, 1, 1, 131), causal=True),
    "mask of rows": replace(MANY, mask=(97, 1)),
    "additive mask": replace(MANY, mask=(97, 131), mask_dtype="f32", lead=(2,)),
    "additive half mask, causal": replace(MANY, mask=(97, 131), mask_dtype="bf16", causal=True),
    "added to others": replace(MANY, before=True, causal=True, start=3),
    "bfloat16": replace(HALF, causal=True),
    "bfloat16, added, masked": replace(HALF, before=True, mask=(1, 1, 1, 131)),
    "bfloat16, odd features": replace(HALF, depth=23, width=7, mask=(1, 8, 97, 131)),
    "bfloat16, odd sizes": replace(HALF, rows=61, keys=7, depth=6, width=2),
    "float16": replace(MANY, dtype="f16", causal=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_equal_autograd(case: Case) -> None:
    assert error(case.executed(num_threads=2), case.expected()) < TOLERANCE[case.dtype]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_interpreter_equals_autograd(case: Case) -> None:
    # Half types: y has been rounded, so delta is not that of the formula.
    tolerance = 1e-6 if case.dtype == "f32" else TOLERANCE[case.dtype]
    assert error(case.interpreted(), case.expected()) < tolerance


@pytest.mark.parametrize("features", [AVX2, BASELINE], ids=["avx2", "baseline"])
@pytest.mark.parametrize(
    "name", ["tails everywhere", "causal, later rows", "bool mask", "few keys"]
)
def test_other_machines_compute_the_same(name: str, features: Features) -> None:
    case = CASES[name]
    assert error(case.executed(features=features), case.expected()) < 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("features", EVERY)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_case_on_every_machine(case: Case, features: Features) -> None:
    assert error(case.executed(features=features), case.expected()) < TOLERANCE[case.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 23, 24, 25, 59, 60, 61, 120, 121])
@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 63, 64, 65, 128, 129])
def test_sizes_around_blocks(rows: int, keys: int, dtype: str) -> None:
    case = Case(
        rows=rows, keys=keys, depth=14, width=30, causal=True, start=keys // 2, dtype=dtype,
        mask=(rows, keys),
    )  # fmt: skip
    # One key has a probability of one: slopes are roundings, which add up over rows.
    assert error(case.executed(num_threads=2), case.expected()) < 4 * TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["causal", "keys in parts", "heads of one key", "bfloat16"])
def test_threads_give_the_same_bits(name: str) -> None:
    for one, two in zip(CASES[name].executed(1), CASES[name].executed(2), strict=True):
        assert torch.equal(one, two)


def test_few_heads_are_divided() -> None:
    spaces: dict[str, list[tuple[int, ...]]] = {}
    for name in ("causal", "heads of one key", "keys in parts"):
        kernels = kernels_of(CASES[name].program())
        spaces[name] = [kernel.space_extents for kernel in kernels]
    # [B, G, R, S, P, C]; heads that share keys become heads, G a batch dim; 513 keys in 4 parts.
    assert spaces["causal"] == [(1, 8, 1, 97, 1, 97)]
    assert spaces["heads of one key"] == [(1, 1, 8, 1, 97, 1, 131)]
    assert spaces["keys in parts"] == [(1, 1, 1, 97, 4, 129)]


def test_nan_reaches_its_row_of_queries_and_all_keys() -> None:
    case = replace(MANY, seed=1)
    case.tensors["q"][0, 1, 2, 3] = torch.nan
    dq, dk, _ = case.executed()
    rows = torch.isnan(dq).all(-1)
    assert bool(rows[0, 1, 2]) and int(torch.isnan(dq).any(-1).sum()) == 1
    assert bool(torch.isnan(dk[0, 1]).any(-1).all()) and not torch.isnan(dk[0, 2]).any()


def test_a_mask_of_the_lowest_number_gives_no_nan() -> None:
    """Padding as Hugging Face writes it: a whole row of it must not overflow."""
    case = replace(MANY, mask=(97, 131), mask_dtype="f32", seed=2)
    case.tensors["mask"][5] = torch.finfo(torch.float32).min
    case.tensors["g"][..., 5, :] = 0
    assert error(case.executed(), case.expected()) < 5e-6


def test_pairs_are_used_where_the_machine_has_them() -> None:
    for name, wanted in (("bfloat16", True), ("bfloat16, odd features", False), ("causal", False)):
        (kernel,) = kernels_of(CASES[name].program())
        op = kernel.body.block.first_op
        assert isinstance(op, KernelAttentionBackwardOp)
        assert plan_gradients(op.form, host(), 2).pairs == (wanted and host().dot_bf16)
        assert not plan_gradients(op.form, AVX2, 2).pairs


class NoDiagonal(slopes.SlopesWriter):
    """Forgets what rows do not see."""

    def write(self, at: Rows, scores: Operand, slopes: Operand) -> None:
        super().write(replace(at, offset=None), scores, slopes)


def test_a_missing_diagonal_is_found() -> None:
    case = CASES["causal"]
    with mock.patch.object(writer, "SlopesWriter", NoDiagonal):
        assert error(case.executed(), case.expected()) > 1e-2


def test_a_missing_delta_is_found() -> None:
    case = replace(MANY, seed=3)
    wanted = case.expected()
    case.tensors["y"].zero_()
    dq, dk, dv = case.executed()
    assert error([dv], wanted[2:]) < 5e-6
    assert error([dq], wanted[:1]) > 1e-2 and error([dk], wanted[1:2]) > 1e-2
