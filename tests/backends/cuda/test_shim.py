"""CUDA kernels, compiled by g++ against a shim and run on fibers, equal what they mean."""

import ctypes
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from irc.backends.cuda.functions import expression
from irc.dialects.task import KernelOp
from irc.kernels.form import integer_bound, read
from irc.ops.functions import POINTWISE
from tests.backends import attention_kernels
from tests.backends import gpu_kernels as g
from tests.backends.cuda.host import ORDERS, build, run, run_in_all_orders

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# Functions that are tested where they are defined, on (0.1, 0.9); acosh above 1.
INSIDE = {"asin", "acos", "atanh", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow"}


def table_kernel(dtype: str) -> KernelOp:
    """Every function of a dtype, on strided and broadcast operands, one output each."""
    rows, columns = 7, 13
    numbers = random.Random(dtype)
    b = g.Builder(f"table_{dtype}", (rows, columns), 2, (1, 16))
    floats = dtype in ("f32", "f64", "f16", "bf16")
    functions = [fn for fn in POINTWISE if fn != "cast" and works(fn, dtype)]
    casts = ("f32", "f64", "f16", "bf16", "i64", "i32", "i1", *(("i8", "u8") if floats else ()))
    x, z, inside = (b.input(rows * columns, dtype) for _ in range(3))
    choice = b.input(rows * columns, "i1")
    outputs = []
    for fn in functions:
        strides = [numbers.choice([(columns, 1), (1, rows), (0, 1)]) for _ in range(2)]
        first = b.load(inside if fn in INSIDE else x, strides[0])
        if fn == "acosh":
            first = b.fn("add", first, b.constant(6, dtype)) if floats else first
        operands = [first, b.load(z, strides[1])][: POINTWISE[fn].arity]
        if fn == "where":
            operands = [b.load(choice, (columns, 1)), *operands, first][:3]
        outputs.append(b.fn(fn, *operands))
    for to in casts:
        value = b.load(inside if to == "u8" else x, (columns, 1))
        outputs.append(b.fn("cast", value, dtype=to))
    for value in outputs:
        b.store(value, b.output(rows * columns, value.type.dtype), (columns, 1))
    return b.kernel(sources=functions)


def works(fn: str, dtype: str) -> bool:
    result = "i1" if POINTWISE[fn].result == "bool" else dtype
    return expression(fn, dtype, result) is not None


def table_inputs(kernel: KernelOp) -> list[torch.Tensor]:
    """Operands of both signs, divisors that are not 0, and values inside (0.1, 0.9)."""
    x, z, inside, choice = g.inputs_for(kernel, lambda i: 2 if i == 3 else 6)
    if x.dtype.is_floating_point:
        inside = (torch.rand(inside.shape) * 0.8 + 0.1).to(x.dtype)
        return [x, z, inside, choice]
    if x.dtype not in (torch.bool, torch.uint8):
        x, inside = x - 3, inside - 3
    return [x, z + 1 if x.dtype != torch.bool else z, inside, choice]


def special_kernel() -> KernelOp:
    """NaN, infinity and signed zero through the functions that have a choice."""
    b = g.Builder("special", (6, 6), 2, (1, 8))
    x, z = b.input(6, "f32"), b.input(6, "f32")
    left, right = b.load(x, (1, 0)), b.load(z, (0, 1))
    names = [
        "maximum", "minimum", "floor_div", "remainder", "fmod", "div", "eq", "ne", "lt", "ge",
        "pow", "atan2",
    ]  # fmt: skip
    values = [b.fn(fn, left, right) for fn in names]
    values += [
        b.fn(fn, left)
        for fn in ("relu", "sign", "is_nan", "is_inf", "sigmoid", "round", "tanh", "gelu")
    ]
    for value in values:
        b.store(value, b.output(36, value.type.dtype), (6, 1))
    return b.kernel()


def hand_written() -> dict[str, KernelOp]:
    kernels = [
        g.softmax(), g.softmax(dtype="f16", name="softmax_f16"),
        g.softmax(columns=9, rows=70, name="short"),
        g.softmax(rows=3, columns=1300, tile=1, name="block_row"),
        g.softmax(rows=2, columns=9001, tile=1, name="wide"),
        g.layer_norm(), g.layer_norm(columns=9000, rows=2, dtype="bf16", name="layer_norm_wide"),
        g.gelu_bias(), g.gelu_bias(columns=36), g.flat_add(), g.flat_add(size=50, dtype="f16"),
        g.embedding(), g.transposed_copy(), g.iota(), g.causal_any(), g.column_sums(),
        g.whole_product(),
        g.matmul(), g.matmul(batch=(2, 3), m=5, n=17, k=70, name="matmul_batch"),
        g.matmul(m=130, n=140, k=20, block_m=128, block_n=128, name="matmul_128"),
        g.matmul(m=72, n=150, k=12, transposed=True, block_m=64, block_n=128, name="matmul_64_128"),
        g.matmul(m=50, n=44, k=33, dtype="f64", name="matmul_f64", block_m=64, block_n=64),
        g.matmul(m=9, n=20, k=7, dtype="i32", epilogue=False, name="matmul_i32"),
        g.matmul(dtype="f16", transposed=True, name="matmul_f16"),
        g.matmul(m=72, n=80, k=64, dtype="f16", name="matmul_f16_vector"),
        g.matmul(m=13, n=64, k=40, dtype="bf16", name="matmul_bf16"),
        g.matmul(
            m=130, n=136, k=40, batch=(2,), dtype="bf16", block_m=128, block_n=128,
            name="matmul_bf16_128",
        ),
        g.matmul(m=72, n=80, k=40, dtype="f16", a_transposed=True, name="matmul_f16_a_transposed"),
        g.matmul(m=36, n=80, k=40, a_transposed=True, transposed=True, name="matmul_a_transposed"),
        g.matmul(m=1, n=131, k=301, transposed=True, name="skinny_k"),
        g.matmul(m=8, n=45, k=70, batch=(2,), name="skinny_n"),
        g.matmul(m=3, n=7, k=11, dtype="f64", transposed=True, name="skinny_f64"),
        g.matmul(m=5, n=33, k=19, dtype="i32", epilogue=False, name="skinny_i32"),
        g.empty(), g.empty(rows=3, columns=0, name="no_columns"),
        g.matmul(m=3, n=5, k=0, name="no_products"),
        *[g.random_kernel(seed) for seed in range(24)],
        *[g.reductions(d) for d in ("f32", "f64", "f16", "i64", "i32", "i8", "u8", "i1")],
    ]  # fmt: skip
    kernels[9].sym_name = type(kernels[9].sym_name)("flat_add_scalar")
    by_name = {}
    for kernel in kernels:
        name = kernel.sym_name.data
        if name in by_name:
            name += "_again"
            kernel.sym_name = type(kernel.sym_name)(name)
        by_name[name] = kernel
    return by_name


HAND = hand_written()
TABLE = {
    k.sym_name.data: k
    for k in [
        table_kernel(d) for d in ("f32", "f64", "f16", "bf16", "i64", "i32", "i8", "u8", "i1")
    ]
}
EVERY = {**HAND, **TABLE, "special": special_kernel()}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("shim"), EVERY)


def compare(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for i, (one, other) in enumerate(zip(outputs, wanted, strict=True)):
        if one.dtype.is_floating_point:
            rtol = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(one.dtype, 2e-5)
            torch.testing.assert_close(
                one.double(),
                other,
                rtol=rtol,
                atol=rtol,
                equal_nan=True,
                msg=lambda m, i=i: f"output {i}: {m}",
            )
        else:
            assert torch.equal(one, other), f"output {i}"


@pytest.mark.parametrize("name", HAND)
def test_hand_written_kernel_in_any_order(library: ctypes.CDLL, name: str) -> None:
    kernel = HAND[name]
    form = read(kernel)
    inputs = g.inputs_for(kernel, lambda i: integer_bound(form, i))
    compare(run_in_all_orders(library, kernel, inputs), g.meaning(kernel, inputs))


def test_kernels_of_a_gpt(tmp_path: Path) -> None:
    kernels = g.gpt_kernels(torch.bfloat16)
    library = build(tmp_path, kernels)
    assert len(kernels) > 8
    for kernel in kernels.values():
        if kernel.template.data == "attention":
            inputs = g.inputs_for(kernel, lambda i: 1)
            compare(run(library, kernel, inputs, 1), attention_kernels.meaning(kernel, inputs))
            continue
        form = read(kernel)
        inputs = g.inputs_for(kernel, lambda i, form=form: integer_bound(form, i))
        compare(run(library, kernel, inputs, 1), g.meaning(kernel, inputs))


@pytest.mark.parametrize("name", TABLE)
def test_all_functions(library: ctypes.CDLL, name: str) -> None:
    kernel = TABLE[name]
    inputs = table_inputs(kernel)
    compare(run(library, kernel, inputs, 0), g.meaning(kernel, inputs))


UNGUARDED = ("block_row", "column_sums", "matmul", "matmul_f16", "skinny_n")


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Kernels without their barriers, and one whose barrier some threads miss."""
    kernels = {name: HAND[name] for name in UNGUARDED} | {"divergent": HAND["block_row"]}
    changes = {name: lambda text: text.replace("__syncthreads();", "") for name in UNGUARDED}
    divergent = "if (threadIdx.x < 40) __syncthreads();"
    changes["divergent"] = lambda text: text.replace("__syncthreads();", divergent)
    return build(tmp_path_factory.mktemp("unguarded"), kernels, changes)


@pytest.mark.parametrize("name", UNGUARDED)
def test_a_missing_barrier_is_found(unguarded: ctypes.CDLL, name: str) -> None:
    """The shim earns its keep: without barriers the same checks fail."""
    kernel = HAND[name]
    inputs = g.inputs_for(kernel, lambda i: 9)
    wanted = g.meaning(kernel, inputs)

    def check() -> None:
        for order in range(len(ORDERS)):
            compare(run(unguarded, kernel, inputs, order), wanted)

    with pytest.raises(AssertionError):
        check()


def test_a_barrier_that_some_threads_miss_is_an_error(unguarded: ctypes.CDLL) -> None:
    kernel = HAND["block_row"]
    with pytest.raises(AssertionError, match="CUDA error 999"):
        run(unguarded, kernel, g.inputs_for(kernel, lambda i: 9), 0, "divergent")


def test_misaligned_buffers_are_refused(library: ctypes.CDLL) -> None:
    memory = torch.zeros(2000)
    pointers = (ctypes.c_void_p * 3)(*[memory.data_ptr() + 4] * 3)
    library.shim_reset(0)
    assert library.launch_flat_add(pointers, None) == 716


def test_special_values(library: ctypes.CDLL) -> None:
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -2.5, 1.0])
    kernel = EVERY["special"]
    compare(run(library, kernel, [values, values], 0), g.meaning(kernel, [values, values]))
