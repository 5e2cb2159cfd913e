"""Attention kernels against torch in float64: all forms, odd sizes, strides, masks, machines."""

from dataclasses import replace

import pytest
import torch

import irc
from irc.backends.cpu.attention.blocks import plan_attention
from irc.backends.cpu.attention.few import suits_few
from irc.backends.cpu.emit import emit, info_of
from irc.backends.cpu.features import AVX2, AVX512, BASELINE, Features
from irc.dialects.attention import KernelAttentionOp
from tests.backends.cpu.attention_cases import Case
from tests.backends.cpu.conftest import execute
from tests.processors import EVERY

TOLERANCE = {"f32": 4e-6, "bf16": 1.5e-2, "f16": 2e-3}
MANY = Case(heads=4, rows=97, keys=131, depth=24, width=40)
FEW = Case(heads=4, rows=4, keys=131, depth=24, width=40)
CASES = {
    "one block": Case(rows=40, keys=50, depth=16, width=16),
    "tails everywhere": Case(heads=3, groups=3, rows=53, keys=301, depth=17, width=19),
    "fewer rows than lanes": Case(rows=11, keys=29, depth=5, width=33),
    "one key": Case(rows=33, keys=1, depth=1, width=1, scale=-0.5),
    "fewer keys than a tile": Case(rows=33, keys=3, depth=64, width=17),
    "causal": replace(MANY, causal=True, keys=97, sums=True),
    "causal, more keys": replace(MANY, causal=True),
    "causal, later rows": replace(MANY, causal=True, start=20, sums=True),
    "causal, rows that see nothing": replace(MANY, causal=True, start=-50, sums=True),
    "causal, nothing at all": replace(MANY, causal=True, start=-500, sums=True),
    "grouped heads": replace(MANY, groups=2),
    "bool mask": replace(MANY, mask=(1, 4, 97, 131), sums=True),
    "padding mask": replace(MANY, batch=2, mask=(2, 1, 1, 131)),
    "mask of rows": replace(MANY, mask=(97, 1), sums=True),
    "additive mask": replace(MANY, mask=(97, 131), mask_dtype="f32", batch=2),
    "additive half mask, causal": replace(MANY, mask=(97, 131), mask_dtype="bf16", causal=True),
    "negative scale": replace(MANY, scale=-0.2, causal=True),
    "goes on": replace(MANY, before=True, sums=True, mask=(1, 4, 97, 131)),
    "heads first": replace(MANY, turned=False, stored=False),
    "rows 4 KiB apart": Case(heads=16, groups=16, rows=40, keys=50, depth=64, width=64),
    "heads of one key as rows": Case(heads=32, groups=1, rows=1, keys=77, depth=64, width=64),
    "bfloat16": replace(MANY, dtype="bf16", mask=(1, 4, 97, 131), sums=True),
    "float16": replace(MANY, dtype="f16", causal=True, before=True, sums=True),
    "few": FEW,
    "few, one row": Case(heads=4, rows=1, keys=131, depth=64, width=64),
    "few, causal": replace(FEW, causal=True, start=60, sums=True, groups=2),
    "few, rows that see nothing": replace(FEW, causal=True, start=-2, sums=True),
    "few, bool mask": replace(FEW, mask=(1, 4, 4, 131), before=True, sums=True),
    "few, padding mask": replace(FEW, mask=(1, 1, 1, 131)),
    "few, additive mask": replace(FEW, mask=(4, 131), mask_dtype="f32"),
    "few, mask across": replace(FEW, mask=(4, 1), sums=True),
    "few, heads of one key": Case(heads=8, groups=1, rows=1, keys=131, depth=64, width=64),
    "few, bfloat16": replace(FEW, dtype="bf16", mask=(1, 1, 1, 131), rows=7),
    "few, float16": replace(FEW, dtype="f16", rows=1, groups=2),
    "few, narrow values": replace(FEW, width=3),
}


def close(case: Case, outputs: list[torch.Tensor], tolerance: float) -> None:
    """Compare with torch in float64; minus infinity where torch has it."""
    for got, want in zip(outputs, case.expected(), strict=True):
        assert torch.equal(torch.isinf(got), torch.isinf(want))
        finite = torch.isfinite(want)
        error = (got.double() - want)[finite].abs()
        assert not error.numel() or float(error.max()) < tolerance


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_equal_torch(case: Case) -> None:
    close(case, case.executed(num_threads=2), TOLERANCE[case.dtype])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_interpreter_equals_torch(case: Case) -> None:
    if case.rows * case.keys <= 97 * 131:
        close(case, case.interpreted(), 1e-12)


@pytest.mark.parametrize("features", [AVX2, BASELINE], ids=["avx2", "baseline"])
@pytest.mark.parametrize("name", ["tails everywhere", "causal, later rows", "goes on", "few"])
def test_other_machines_compute_the_same(name: str, features: Features) -> None:
    close(CASES[name], CASES[name].executed(features=features), 4e-6)


@pytest.mark.slow
@pytest.mark.parametrize("features", EVERY)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_case_on_every_machine(case: Case, features: Features) -> None:
    close(case, case.executed(features=features), TOLERANCE[case.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("keys", [1, 2, 11, 12, 13, 24, 127, 128, 129, 257])
def test_sizes_around_tiles(rows: int, keys: int) -> None:
    case = Case(rows=rows, keys=keys, depth=13, width=29, causal=True, start=keys // 2, sums=True)
    close(case, case.executed(num_threads=2), 4e-6)


def test_threads_give_the_same_bits() -> None:
    case = replace(MANY, causal=True, sums=True)
    for one, two in zip(case.executed(1), case.executed(2), strict=True):
        assert torch.equal(one, two)


def test_nan_reaches_its_row_alone() -> None:
    for case in (replace(MANY, groups=4), replace(FEW, groups=4)):
        case.tensors["q"][0, 1, 2, 3] = torch.nan
        (y,) = case.executed()
        rows = torch.isnan(y).all(-1)
        assert bool(rows[0, 1, 2]) and int(torch.isnan(y).any(-1).sum()) == 1


def test_large_scores_do_not_overflow() -> None:
    for case in (replace(MANY, scale=900.0), replace(FEW, scale=900.0)):
        close(case, case.executed(), 2e-3)


def test_few_rows_take_the_form_of_few_rows() -> None:
    forms: dict[str, bool] = {}
    for name in ("few", "few, narrow values", "heads of one key as rows", "one block"):
        kernel, _ = CASES[name].kernel()
        op = kernel.body.block.first_op
        assert isinstance(op, KernelAttentionOp)
        forms[name] = suits_few(plan_attention(op.form, AVX512, 4))
        assert info_of(emit(kernel, AVX512)).template == (
            "attention few" if forms[name] else "attention lanes"
        )
    assert list(forms.values()) == [True, False, False, False]


def test_a_wrong_stride_is_found() -> None:
    """The comparison above can fail: rows of V one key too early give other numbers."""
    case = CASES["one block"]
    kernel, inputs = case.kernel()
    op = kernel.body.block.first_op
    assert isinstance(op, KernelAttentionOp)
    strides = list(op.plain["strides"])
    width = len(kernel.space_extents) + 1
    at = 2 * width + width - 2
    strides[at] -= 1
    wrong = KernelAttentionOp.make(op.inputs, [], **{**op.plain, "strides": tuple(strides)})
    kernel.body.block.erase_op(op)
    kernel.body.block.add_op(wrong)
    with pytest.raises(AssertionError):
        close(case, case.shown(execute(kernel, inputs)), 1e-3)


def _triangle(rows: int, keys: int, start: int = 0) -> torch.Tensor:
    return torch.arange(rows)[:, None] + start >= torch.arange(keys)


HIDING = {
    "lower triangle": _triangle(128, 128),
    "window": _triangle(100, 300, 150) & ~_triangle(100, 300, 90),
    "nothing seen": torch.zeros(100, 300, dtype=torch.bool),
    "padding": (torch.arange(300) < 77).reshape(1, 1, 1, 300),
    "padding in front": (torch.arange(300) >= 177).reshape(1, 1, 1, 300),
    "the last of few": (torch.arange(13) == 12).reshape(1, 1, 1, 13).expand(1, 1, 40, 13),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("mask", HIDING.values(), ids=HIDING)
def test_keys_that_a_mask_hides_are_passed_over(
    mask: torch.Tensor, dtype: str, causal: bool
) -> None:
    rows = mask.shape[-2] if mask.shape[-2] > 1 else 100
    case = Case(
        heads=3, groups=3, rows=rows, keys=mask.shape[-1], depth=24, width=40, scale=0.2,
        dtype=dtype, sums=True, mask=tuple(mask.shape), causal=causal, start=30 if causal else None,
    )  # fmt: skip
    case.tensors["mask"] = mask.contiguous()
    close(case, case.executed(num_threads=2), TOLERANCE[dtype])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_do_not_change_a_bit(dtype: torch.dtype, dynamic: bool) -> None:
    """A row of the diagonal belongs to one block: blocks that overlapped raced for it."""
    q = torch.randn(5, 3, 129, 24).to(dtype)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    before = torch.get_num_threads()
    outputs: list[torch.Tensor] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            compiled = irc.compile(attend, dynamic=dynamic)
            outputs += [compiled(q).clone() for _ in range(30)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, outputs[0]) for each in outputs)
