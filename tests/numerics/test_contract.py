"""The numerics contract (what a user may rely on), clause by clause.

Half types accumulate in float32; products and sums are contracted inside a reduction only, never
across a rounding that the user wrote; NaN and infinity propagate as in torch; denormals stay; a
program gives the same bits each time, on any number of threads where no sum is divided.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu.features import AVX2, BASELINE, Features
from tests.fuzz.program import Input, Node, Program
from tests.fuzz.targets import on_features
from tests.fuzz.vocabulary import OPS

HALVES = (torch.float16, torch.bfloat16)
FEATURES = pytest.mark.parametrize(
    "features", [None, AVX2, BASELINE], ids=["host", "avx2", "generic"]
)
INF, NAN = float("inf"), float("nan")
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}


def run(
    nodes: list[tuple[str, str, tuple[str, ...], dict[str, object]]],
    *inputs: torch.Tensor,
    features: Features | None = None,
) -> torch.Tensor:
    """Run statements of the fuzzer's vocabulary on given tensors; the last one is the result."""
    params = tuple(Input(f"x{i}", tuple(x.shape), NAMES[x.dtype]) for i, x in enumerate(inputs))
    program = Program(0, params, tuple(Node(*n) for n in nodes), (nodes[-1][0],))
    return on_features(features)(program, inputs)[0]


# accumulation of half types


@FEATURES
@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_halves_are_in_float32(dtype: torch.dtype, features: Features | None) -> None:
    """A sum of ones in bfloat16 itself stops at 256, one of float16 at 2048."""
    x = torch.ones(3, 6000, dtype=dtype)
    result = run([("v0", "sum", ("x0",), {"dim": 1, "keep": False})], x, features=features)
    assert result.tolist() == [float(torch.tensor(6000.0).to(dtype))] * 3


@FEATURES
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_products_of_halves_accumulate_in_float32(
    dtype: torch.dtype, rows: int, features: Features | None
) -> None:
    a, b = torch.ones(rows, 6000, dtype=dtype), torch.ones(6000, 33, dtype=dtype)
    result = run([("v0", "matmul", ("x0", "x1"), {})], a, b, features=features)
    assert result.eq(torch.tensor(6000.0).to(dtype)).all()


@FEATURES
@pytest.mark.parametrize("rows", [3, 8, 33])
def test_long_sums_of_products_are_made_in_parts(rows: int, features: Features | None) -> None:
    """One chain of 6,001 products is wrong by 3e-6 and more."""
    random = torch.Generator().manual_seed(rows)
    a, b = torch.rand(rows, 6001, generator=random), torch.rand(6001, 33, generator=random)
    result = run([("v0", "matmul", ("x0", "x1"), {})], a, b, features=features)
    assert (result.double() / (a.double() @ b.double()) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.Linear(6001, 33, bias=False), torch.rand(8, 6001)),
        lambda: (nn.Conv2d(512, 32, 3, bias=False), torch.rand(1, 512, 5, 5)),
        lambda: (nn.Conv2d(5001, 32, 1, bias=False), torch.rand(1, 5001, 4, 4)),
    ],
    ids=["panels", "taps", "channels"],
)
def test_long_sums_with_weights_are_made_in_parts(
    make: Callable[[], tuple[nn.Module, torch.Tensor]],
) -> None:
    torch.manual_seed(0)
    module, x = make()
    with torch.no_grad():
        for weight in module.parameters():
            weight.uniform_()
        result = irc.compile(module)(x)
        wide = module.double()(x.double())
    assert (result.double() / wide - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_of_halves_are_in_float32(dtype: torch.dtype) -> None:
    """The mean of squares of 300 is 90,000, which float16 does not hold."""
    x, one = torch.full((2, 600), 300.0, dtype=dtype), torch.ones(600, dtype=dtype)
    result = run([("v0", "rms_norm", ("x0", "x1"), {"eps": 1e-6})], x, one)
    assert result.eq(1).all()


# rounding points


@FEATURES
def test_no_contraction_across_a_rounding(features: Features | None) -> None:
    """A square of 1 + 2**-11 + 2**-24 is rounded to 1 + 2**-11: fused, its last bit would show."""
    x = torch.full((37,), 1 + 2.0**-12)
    c = torch.full((37,), 1 + 2.0**-11)
    nodes = [("v0", "mul", ("x0", "x0"), {}), ("v1", "sub", ("v0", "x1"), {})]
    assert run(nodes, x, c, features=features).eq(0).all()  # type: ignore[arg-type]


@FEATURES
def test_no_reassociation_outside_reductions(features: Features | None) -> None:
    big, one = torch.full((37,), 1e8), torch.ones(37)
    nodes = [("v0", "add", ("x0", "x1"), {}), ("v1", "sub", ("v0", "x0"), {})]
    assert run(nodes, big, one, features=features).eq(0).all()  # type: ignore[arg-type]


@FEATURES
@pytest.mark.parametrize("dtype", HALVES)
def test_casts_round_inside_a_kernel(dtype: torch.dtype, features: Features | None) -> None:
    x = torch.full((37,), 1 + 2.0**-13)
    nodes = [
        ("v0", "cast", ("x0",), {"dtype": NAMES[dtype]}),
        ("v1", "cast", ("v0",), {"dtype": "f32"}),
    ]
    assert run(nodes, x, features=features).eq(1).all()  # type: ignore[arg-type]


@FEATURES
def test_a_double_cast_to_float_rounds_once(features: Features | None) -> None:
    x = torch.tensor([1 + 2.0**-24 + 2.0**-40, 1 + 2.0**-25] * 20, dtype=torch.float64)
    result = run([("v0", "cast", ("x0",), {"dtype": "f32"})], x, features=features)
    assert torch.equal(result, x.float())


@FEATURES
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_stored_to_nearest_even(
    dtype: torch.dtype, features: Features | None
) -> None:
    """All halves, their midpoints, and both neighbours of those."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    near = every[torch.isfinite(every)].float()
    up = torch.nextafter(near, torch.tensor(INF))
    middle = (near + (near * (1 + torch.finfo(dtype).eps)).to(dtype).float()) / 2
    x = torch.cat([near, up, middle, torch.nextafter(middle, torch.tensor(INF))])
    result = run([("v0", "cast", ("x0",), {"dtype": NAMES[dtype]})], x, features=features)
    assert torch.equal(result.view(torch.int16), x.to(dtype).view(torch.int16))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_number_beside_a_half_is_float32(dtype: torch.dtype) -> None:
    """As in torch: 0.1 is not rounded to the tensor's dtype first."""
    x = torch.linspace(-30, 30, 1001).to(dtype)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 0.1

    with torch.no_grad():
        assert torch.equal(irc.compile(scaled)(x), scaled(x))


# NaN, infinity, signed zero, denormals


SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-40, -1e-40, 3e38, 0.5)
UNARY = [
    "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "erf", "relu", "silu", "gelu", "gelu_tanh",
    "abs", "neg", "floor", "ceil", "round", "trunc", "sign", "log", "log1p", "sqrt", "rsqrt",
    "reciprocal", "atan", "asinh",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "floor_div",
    "lt", "le", "gt", "ge", "eq", "ne",
]  # fmt: skip
FLOATING = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])


def meant(fn: str, *inputs: torch.Tensor) -> torch.Tensor:
    """Return what torch gives in float64, rounded once: its own vector code has slips of its own.

    (fmod of float32 by a denormal, erf of a bfloat16 denormal, gelu of the largest floats.)
    """
    names = [f"x{i}" for i in range(len(inputs))]
    text = OPS[fn].statement("r", names, {}).removeprefix("r = ")
    wide = {name: x.double() for name, x in zip(names, inputs, strict=True)}
    result = eval(text, {"torch": torch, "F": torch.nn.functional, **wide})
    return result.to(inputs[0].dtype) if result.is_floating_point() else result


def agree(result: torch.Tensor, wanted: torch.Tensor, ulps: float = 8.0) -> None:
    """Equal up to rounding (a last place of denormals, too); specials and signs of zero exactly."""
    assert result.dtype == wanted.dtype
    if not wanted.is_floating_point():
        assert torch.equal(result, wanted)
        return
    one, two = result.double(), wanted.double()
    info = torch.finfo(result.dtype)
    last = max(info.smallest_normal * info.eps, 1e-44)
    torch.testing.assert_close(one, two, rtol=ulps * info.eps, atol=last, equal_nan=True)
    zero = two == 0
    assert torch.equal(torch.signbit(one[zero]), torch.signbit(two[zero]))


@FLOATING
@pytest.mark.parametrize("fn", UNARY)
def test_special_values_of_one_operand(fn: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL * 3).to(dtype)
    # Torch's own gelu of float64 cancels: the two differ by its error.
    agree(run([("v0", fn, ("x0",), {})], x), meant(fn, x), 64.0 if "gelu" in fn else 8.0)


@FLOATING
@pytest.mark.parametrize("fn", BINARY)
def test_special_values_of_two_operands(fn: str, dtype: torch.dtype) -> None:
    values = torch.tensor(SPECIAL).to(dtype)
    x, y = values.repeat_interleave(len(values)), values.repeat(len(values))
    # A quotient of floor_div beyond 2**24 is rounded in the dtype itself.
    wanted = torch.floor_divide(x, y) if fn == "floor_div" else meant(fn, x, y)
    agree(run([("v0", fn, ("x0", "x1"), {})], x, y), wanted)


@FEATURES
@pytest.mark.parametrize("fn", ["amax", "amin", "sum"])
@pytest.mark.parametrize("at", [0, 3, 15, 16, 36])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_reductions_pass_special_values_on(
    fn: str, at: int, value: float, features: Features | None
) -> None:
    """In each lane, in the tail, and as reductions over rows and over columns."""
    x = torch.randn(37, 37)
    x[at, at] = value
    for dim in (0, 1):
        result = run([("v0", fn, ("x0",), {"dim": dim, "keep": False})], x, features=features)
        torch.testing.assert_close(result, getattr(torch, fn)(x, dim), equal_nan=True)


def test_softmax_of_masked_rows() -> None:
    x = torch.randn(5, 37)
    x[0], x[1, 3], x[2, 30:], x[3, 1] = -INF, INF, -INF, NAN
    result = run([("v0", "softmax", ("x0",), {"dim": 1})], x)
    torch.testing.assert_close(result, torch.softmax(x, 1), equal_nan=True)


@FEATURES
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_denormals_are_kept(dtype: torch.dtype, features: Features | None) -> None:
    """Products, sums, and matmuls of denormals, stored as denormals."""
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    x = (torch.arange(37, dtype=torch.float64) * least).to(dtype)
    half = run([("v0", "mul_scalar", ("x0",), {"value": 0.5})], x * 2, features=features)
    assert torch.equal(half, x)
    total = run([("v0", "sum", ("x0",), {"dim": 0, "keep": True})], x, features=features)
    assert total.double().item() == pytest.approx(36 * 37 / 2 * least)
    a, one = x[1:].reshape(9, 4), torch.ones(4, 9, dtype=dtype)
    product = run([("v0", "matmul", ("x0", "x1"), {})], a, one, features=features)
    torch.testing.assert_close(product.double(), a.double() @ one.double(), rtol=0, atol=least / 2)


# the same bits each time


def _layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.nn.functional.gelu(x @ w), -1).sum(0)


@pytest.mark.parametrize("function", [_layers])
def test_same_bits_each_time(function: Callable[..., torch.Tensor]) -> None:
    x, w = torch.randn(77, 130), torch.randn(130, 65)
    fast = irc.compile(function)
    with torch.no_grad():
        first = fast(x, w)
        assert all(torch.equal(first, fast(x, w)) for _ in range(20))
        assert torch.equal(first, irc.compile(function)(x, w))
