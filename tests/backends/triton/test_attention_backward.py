"""Attention's gradients as Triton kernels: equal to their meaning, and compiled for all targets."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from irc.backends.triton import compile_for, emit
from irc.errors import IrcError
from irc.kernels.gpu.attention import backward_candidates
from irc.kernels.gpu.limits import GPUS, gpu
from irc.kernels.gpu.tiles import with_tile
from tests.backends import attention_backward_kernels as backward
from tests.backends.attention_kernels import Attend
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")

CASES = backward.backward_cases()
SIDES = backward.SIDES
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention_backward")
    kernels = [(a, backward.backward_of(a, side)) for a in CASES.values() for side in SIDES]
    interpret(folder, [(k, backward.backward_inputs(a, k)) for a, k in kernels])
    return folder


@pytest.mark.parametrize("side", SIDES, ids="_".join)
@pytest.mark.parametrize("name", CASES)
def test_gradients_in_the_interpreter(results: Path, name: str, side: tuple[str, ...]) -> None:
    case = CASES[name]
    kernel = backward.backward_of(case, side)
    wanted = backward.backward_meaning(kernel, backward.backward_inputs(case, kernel))
    for gradient, right in zip(outputs_of(results, kernel), wanted, strict=True):
        tolerance = TOLERANCE[case.dtype]
        torch.testing.assert_close(gradient.double(), right, rtol=tolerance, atol=tolerance)


def test_the_meaning_is_the_gradient_of_torch() -> None:
    """The reference itself, against autograd: two heads of queries share one of keys."""
    case = Attend(repeats=2, causal=True, rows=9, keys=9, batch=1, groups=1)
    inputs = backward.backward_inputs(case, backward.backward_of(case, ("dq",)))
    g, q, k, v = (
        x.double().view(1, 9, -1, 16).transpose(1, 2).requires_grad_() for x in inputs[:4]
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=case.scale, enable_gqa=True)
    grads = torch.autograd.grad(y, (q, k, v), g)
    for role, wanted in zip(("dq", "dk", "dv"), grads, strict=True):
        kernel = backward.backward_of(case, (role,))
        (gradient,) = backward.backward_meaning(kernel, inputs)
        torch.testing.assert_close(gradient, wanted.transpose(1, 2).flatten(), rtol=1e-5, atol=1e-6)


BUGS = {
    "keys_seen_early": (
        "causal", SIDES[0], "(t[:, None] <= s[None, :] + start)", "(t[:, None] <= 9999)",
    ),
    "rows_see_late": (
        "causal", SIDES[1], "(t[None, :] <= s[:, None] + start)", "(t[None, :] <= 9999)",
    ),
    "no_delta": ("plain", SIDES[0], "ds = w * (dw - delta)", "ds = w * dw"),
    "no_sums": ("plain", SIDES[1], "sums = tl.load", "sums = 0 * tl.load"),
    "empty_rows": ("masked", SIDES[0], 'float("inf"), sums *', 'float("-inf"), sums *'),
}  # fmt: skip


def test_planted_bugs_are_seen(tmp_path: Path) -> None:
    runs, texts = [], {}
    for bug, (name, side, line, other) in BUGS.items():
        case = replace(CASES[name], name=bug)
        kernel = backward.backward_of(case, side)
        text = emit(kernel)
        assert line in text
        runs.append((kernel, backward.backward_inputs(case, kernel)))
        texts[kernel.sym_name.data] = text.replace(line, other)
    interpret(tmp_path, runs, texts=texts)
    for kernel, inputs in runs:
        wanted = backward.backward_meaning(kernel, inputs)
        pairs = zip(outputs_of(tmp_path, kernel), wanted, strict=True)
        right = [torch.allclose(a.double(), b, rtol=1e-3, atol=1e-3) for a, b in pairs]
        assert not all(right), kernel.sym_name.data


@pytest.mark.parametrize("target", [80, 90, 100])
@pytest.mark.parametrize(
    ("name", "side"),
    [("cached", SIDES[0]), ("long_f16", SIDES[1]), ("single", SIDES[0]), ("single", SIDES[1])],
)
def test_gradients_compile_without_spills(name: str, side: tuple[str, ...], target: int) -> None:
    report = compile_for(backward.backward_of(CASES[name], side), target)
    assert report.spill_bytes == 0
    assert report.shared_bytes <= gpu(f"sm_{target}").block_bytes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("features", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("side", SIDES, ids="_".join)
def test_tiles_of_long_gradients_do_not_spill(
    dtype: str, features: int, side: tuple[str, ...]
) -> None:
    case = Attend(
        batch=1, rows=1000, keys=1000, depth=features, width=features, dtype=dtype, causal=True
    )
    tile = backward_candidates(1000, 1000, features, dtype)[0]
    kernel = with_tile(backward.backward_of(case, side), tile.options())
    for target in GPUS.values():
        report = compile_for(kernel, target.arch)
        assert report.spill_bytes == 0
        assert report.shared_bytes <= target.block_bytes


def test_gradients_of_both_sides_are_two_kernels() -> None:
    with pytest.raises(IrcError) as caught:
        emit(backward.backward_of(CASES["plain"], ("dq", "dk", "dv")))
    assert caught.value.code == "op-unsupported"
