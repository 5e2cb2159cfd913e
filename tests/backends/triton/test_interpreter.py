"""Triton kernels computed by Triton's interpreter equal what they mean."""

import random
from pathlib import Path

import pytest
import torch

from irc.backends.triton.functions import expression
from irc.dialects.task import KernelOp
from irc.kernels.form import header, integer_bound, read
from irc.ops.functions import POINTWISE
from tests.backends import gpu_kernels as g
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")

# Arguments at which the functions are defined; others are tested with NaN and infinity below.
DOMAIN = {"acosh": (1, 4), "atanh": (-0.9, 0.9), "asin": (-1, 1), "acos": (-1, 1), "log": (0.1, 4)}
DOMAIN |= {
    "log2": (0.1, 4),
    "log10": (0.1, 4),
    "log1p": (-0.5, 4),
    "sqrt": (0, 4),
    "rsqrt": (0.1, 4),
}


def pointwise_kernel(fn: str, dtype: str, seed: int) -> KernelOp:
    """``fn`` of strided, broadcast operands, at an odd size that depends on the seed."""
    numbers = random.Random(f"{fn}{dtype}{seed}")
    rows, columns = numbers.randint(1, 9), numbers.randint(1, 40)
    b = g.Builder(f"{fn}_{dtype}", (rows, columns), 2, (numbers.choice([1, 2, 4]), 32))
    operands, kinds = [], [dtype] * POINTWISE[fn].arity
    if fn == "where":
        kinds[0] = "i1"
    buffers = [b.input(rows * columns, kind) for kind in kinds]
    for buffer in buffers:
        strides = numbers.choice([(columns, 1), (1, rows), (0, 1)])
        operands.append(b.load(buffer, strides))
    result = {"same": dtype, "bool": "i1"}.get(POINTWISE[fn].result, numbers.choice(["f32", "i32"]))
    y = b.output(rows * columns, result)
    b.store(b.fn(fn, *operands, dtype=result), y, (columns, 1))
    return b.kernel()


def pointwise_inputs(fn: str, kernel: KernelOp) -> list[torch.Tensor]:
    inputs = g.inputs_for(kernel, lambda i: 2 if kernel.args[i].type.dtype == "i1" else 7)
    if fn in ("shift_left", "shift_right"):
        return inputs
    adjusted = []
    for i, x in enumerate(inputs):
        if x.dtype.is_floating_point and fn in DOMAIN:
            low, high = DOMAIN[fn]
            x = torch.rand(x.shape, generator=torch.Generator().manual_seed(i)) * (high - low) + low
        elif not x.dtype.is_floating_point and x.dtype not in (torch.bool, torch.uint8):
            # Both signs; divisors and nothing else must not be 0.
            x = torch.where(x < 3, x - 5, x) if i else x - 3
        elif fn == "pow" and i == 0 and x.dtype.is_floating_point:
            x = x.abs()
        if x.dtype == torch.uint8:
            x = x + 1
        adjusted.append(x.to(inputs[i].dtype))
    return adjusted


def hand_written() -> dict[str, KernelOp]:
    kernels = [
        g.softmax(), g.softmax(dtype="f16", name="softmax_f16"),
        g.softmax(rows=3, columns=9001, tile=2, name="softmax_wide"),
        g.layer_norm(), g.layer_norm(columns=9000, rows=3, name="layer_norm_wide"),
        g.gelu_bias(), g.flat_add(), g.embedding(), g.transposed_copy(), g.iota(), g.causal_any(),
        g.column_sums(), g.whole_product(),
        g.matmul(), g.matmul(batch=(2, 3), m=5, n=17, k=70, name="matmul_batch"),
        g.matmul(dtype="f16", transposed=True, name="matmul_f16"),
        g.matmul(m=1, n=40, k=33, dtype="f64", name="matmul_f64"),
        g.matmul(m=1, n=129, k=257, transposed=True, name="row_f32"),
        g.matmul(m=1, n=70, k=300, batch=(3,), dtype="f16", name="row_f16"),
        g.matmul(m=9, n=20, k=7, dtype="i32", epilogue=False, name="matmul_i32"),
        g.matmul(a_transposed=True, batch=(2,), name="matmul_a_transposed"),
        g.layer_norm(dtype="bf16", name="layer_norm_bf16"), g.empty(),
        g.swapped_batches(),
        g.matmul(dtype="bf16", batch=(3, 2), k=61, name="matmul_bf16"),
        g.empty(rows=3, columns=0, name="no_columns"), g.matmul(m=3, n=5, k=0, name="no_products"),
        *[g.random_kernel(seed) for seed in range(24)],
        *[g.reductions(d) for d in ("f32", "f64", "f16", "i64", "i32", "i8", "u8", "i1")],
    ]  # fmt: skip
    return {k.sym_name.data: k for k in kernels}


def table() -> dict[str, tuple[str, KernelOp]]:
    kernels = {}
    for fn in POINTWISE:
        for seed, dtype in enumerate(("f32", "f64", "i64", "i8", "u8", "i1")):
            kernel = pointwise_kernel(fn, dtype, seed)
            result = kernel.args[-1].type.dtype
            if expression(fn, dtype, result) is not None:
                kernels[f"{fn}_{dtype}"] = (fn, kernel)
    return kernels


HAND, TABLE = hand_written(), table()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interpreted")
    every = [(k, random_inputs(k)) for k in HAND.values()]
    every += [(k, pointwise_inputs(fn, k)) for fn, k in TABLE.values()]
    interpret(folder, every)
    return folder


def random_inputs(kernel: KernelOp) -> list[torch.Tensor]:
    form = header(kernel) if kernel.template.data == "attention" else read(kernel)
    return g.inputs_for(kernel, lambda i: integer_bound(form, i))


def compare(folder: Path, kernel: KernelOp, tolerance: float) -> None:
    outputs = outputs_of(folder, kernel)
    count = kernel.num_inputs.value.data
    inputs = torch.load((folder / kernel.sym_name.data).with_suffix(".in"))[:count]
    for output, wanted in zip(outputs, g.meaning(kernel, inputs), strict=True):
        if output.dtype.is_floating_point:
            torch.testing.assert_close(
                output.double(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True
            )
        else:
            assert torch.equal(output, wanted)


@pytest.mark.parametrize("name", HAND)
def test_hand_written_kernel(results: Path, name: str) -> None:
    dtypes = {a.type.dtype for a in HAND[name].args}
    compare(results, HAND[name], 2e-2 if "bf16" in dtypes else 4e-3 if "f16" in dtypes else 2e-5)


@pytest.mark.parametrize("name", TABLE)
def test_pointwise_function(results: Path, name: str) -> None:
    compare(results, TABLE[name][1], 2e-6)


def test_kernels_of_a_gpt(tmp_path: Path) -> None:
    kernels = g.gpt_kernels().values()
    interpret(tmp_path, [(k, random_inputs(k)) for k in kernels])
    assert len(kernels) > 8
    for kernel in kernels:
        compare(tmp_path, kernel, 2e-5)
