"""Every scalar function against torch in float64: error in ulp, special values, integers, bools."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from irc.backends.cpu.features import BASELINE
from irc.ops.functions import POINTWISE

SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-39, 3e38, -3e38]
TORCH_FN: dict[str, Any] = {
    "written": lambda _, value: value,
    "gelu": lambda x: x * 0.5 * torch.special.erfc(-x * 0.5**0.5),
    "gelu_tanh": lambda x: x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "silu": lambda x: x * torch.sigmoid(x),
    "is_nan": torch.isnan,
    "is_inf": torch.isinf,
    "floor_div": torch.floor_divide,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "bit_not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "copy": torch.clone,
    "cast": None,
}
BOOL = ("eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf", "logical_and", "logical_or",
        "logical_xor", "logical_not")  # fmt: skip
INTEGER_ONLY = ("bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right")
# The largest error in ulp that the modules' docstrings promise.
ULP = {
    "exp": 1, "exp2": 1.1, "expm1": 1.5, "log": 1.1, "log2": 2.1, "log10": 3, "log1p": 1.6,
    "sin": 1.5, "cos": 1.5, "tan": 3, "tanh": 2.6, "erf": 1.2, "sigmoid": 2.2, "pow": 1.1,
    "rsqrt": 1.5, "div": 0.51, "reciprocal": 0.51, "sqrt": 0.51, "atan2": 1.5,
    "hypot": 2.5,
}  # fmt: skip
LIBM = 2
# Where the result's exponent is an argument's product, rounding of that argument shows.
LOOSE = {"silu": (3, -80.0), "gelu": (9, -10.0), "gelu_tanh": (6, -2.0)}
UNARY = [fn for fn, row in POINTWISE.items() if row.arity == 1 and fn not in INTEGER_ONLY]
BINARY = [fn for fn, row in POINTWISE.items() if row.arity == 2 and fn not in INTEGER_ONLY]


def torch_fn(name: str) -> Any:
    return TORCH_FN.get(name) or getattr(torch, name)


@pytest.fixture
def apply(make: Any, run: Any) -> Callable[..., torch.Tensor]:
    names = {torch.float32: "f32", torch.float64: "f64", torch.bool: "i1", torch.int64: "i64",
             torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
             torch.bfloat16: "bf16", torch.float16: "f16"}  # fmt: skip

    def call(fn: str, *args: torch.Tensor, features: Any = None) -> torch.Tensor:
        n = args[0].numel()
        out = "i1" if fn in BOOL else names[args[-1].dtype]
        k = make((n,), 1, [(n, names[t.dtype]) for t in args], [(n, out)])
        k.store(k.fn(fn, *(k.load(i, (1,)) for i in range(len(args)))), 0, (1,))
        return run(k.kernel(), args, 1, features)[0]

    return call


def numbers() -> torch.Tensor:
    grid = torch.logspace(-44, 38, 3001)
    wide, narrow = torch.linspace(-110, 110, 6001), torch.linspace(-2, 2, 6001)
    drawn = torch.randn(3000)
    return torch.cat([torch.tensor(SPECIAL), drawn * 3, drawn * 40, grid, -grid, wide, narrow])


def ulp_error(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """|got - want| in units of the last place of float32 at want; inf where kinds differ."""
    near = want.float()
    infinity = torch.tensor(torch.inf)
    unit = (torch.nextafter(near.abs(), infinity) - near.abs()).double()
    unit = torch.where(unit.isfinite(), unit, torch.tensor(2.0**104, dtype=torch.float64))
    error = (got.double() - want).abs() / unit
    same = (got == near) | (got.isnan() & want.isnan())
    return torch.where(same, 0.0, torch.where(near.isfinite(), error, torch.inf))


@pytest.mark.parametrize("fn", [f for f in UNARY if f not in ("cast",)])
def test_unary_float(fn: str, apply: Any, features: Any) -> None:
    x = numbers()
    got, want = apply(fn, x, features=features), torch_fn(fn)(x.double())
    if fn in BOOL:
        assert torch.equal(got, want)
        return
    error = ulp_error(got, want)
    if fn in LOOSE:
        limit, low = LOOSE[fn]
        if features is not None and not features.fma:
            low = max(low, -4.0)
        inside = (x > low) | x.isnan()
        assert error[inside].max() <= limit
        # Beyond, relative to the argument of the exponential inside.
        assert torch.allclose(
            got[~inside].double(), want[~inside], rtol=3e-5, atol=2e-43, equal_nan=True
        )
        return
    if features is not None and not features.fma:
        error *= 0.7  # without FMA each step of a polynomial rounds twice
    stated = POINTWISE[fn].accuracy
    if fn in ("erfc", "erfinv", "lgamma", "digamma") and stated is not None:
        # Outside of the stated range are roots and poles, near which a bound in ulp says nothing.
        inside = (x >= stated.low) & (x <= stated.high)
        assert error[inside].max() <= stated.f32
        assert torch.allclose(got, want.float(), rtol=1e-4, atol=1e-5, equal_nan=True)
        return
    assert error.max() <= ULP.get(fn, LIBM), f"at {x[error.argmax()]}"


@pytest.mark.parametrize(
    "fn", ["neg", "abs", "sin", "tan", "tanh", "expm1", "log1p", "erf", "trunc"]
)
def test_negative_zero_stays(fn: str, apply: Any) -> None:
    x = torch.tensor([-0.0] * 17)
    assert torch.equal(torch.signbit(apply(fn, x)), torch.signbit(torch_fn(fn)(x)))


@pytest.mark.parametrize("fn", BINARY)
@pytest.mark.parametrize("features", [None, BASELINE])
def test_binary_float(fn: str, apply: Any, features: Any) -> None:
    values = torch.tensor([*SPECIAL, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -7.0, 2.5, 1e-3, 100.25])
    a, b = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    a, b = torch.cat([a, torch.randn(5000) * 4]), torch.cat([b, torch.randn(5000) * 4])
    if fn == "pow":
        a, b = torch.cat([a, torch.rand(9000) * 50]), torch.cat([b, torch.randn(9000) * 20])
    got = apply(fn, a, b, features=features)
    if fn in BOOL:
        assert torch.equal(got, torch_fn(fn)(a, b))
        return
    if fn in ("floor_div", "trunc_div"):
        # Quotients round: the reference is torch in float32.
        want = torch_fn(fn)(a, b)
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True)
        return
    assert ulp_error(got, torch_fn(fn)(a.double(), b.double())).max() <= ULP.get(fn, 0.51)


def test_power_of_constants(make: Any, run: Any) -> None:
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(50) * 3])
    for exponent in (0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 0.0, 1.5):
        k = make((60,), 1, [(60, "f32")], [(60, "f32")])
        k.store(k.fn("pow", k.load(0, (1,)), k.constant(exponent)), 0, (1,))
        got = run(k.kernel(), [x])[0]
        assert torch.allclose(got, x**exponent, rtol=3e-7, equal_nan=True), exponent


@pytest.mark.parametrize("fn", [f for f in UNARY if f not in ("cast",)])
def test_unary_double(fn: str, apply: Any) -> None:
    x = torch.cat([torch.tensor(SPECIAL).double(), torch.randn(200).double() * 5])
    got, want = apply(fn, x), torch_fn(fn)(x)
    assert torch.allclose(got.double(), want.double(), rtol=1e-12, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("fn", BINARY)
def test_binary_double(fn: str, apply: Any) -> None:
    x, y = torch.randn(333).double() * 9, torch.randn(333).double() * 3
    want = torch_fn(fn)(x, y)
    assert torch.allclose(apply(fn, x, y).double(), want.double(), rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", ["add", "mul", "exp", "gelu", "maximum", "lt"])
def test_halves_compute_in_float(dtype: torch.dtype, fn: str, apply: Any, features: Any) -> None:
    args = [(torch.randn(301) * 3).to(dtype) for _ in range(POINTWISE[fn].arity)]
    got = apply(fn, *args, features=features)
    want = torch_fn(fn)(*(a.double() for a in args))
    step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    tolerance = step * want.double().abs() * 1.001 + 1e-7
    assert ((got.double() - want.double()).abs() <= tolerance).all()


INTEGERS = ["add", "sub", "mul", "floor_div", "trunc_div", "remainder", "fmod", "maximum",
            "minimum", "neg", "abs", "sign", "eq", "lt", "ge", "ne", "logical_and", "logical_xor",
            "logical_not", "relu", "copy", "pow", *INTEGER_ONLY]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("fn", INTEGERS)
def test_integers(fn: str, dtype: torch.dtype, apply: Any) -> None:
    edge = torch.iinfo(dtype)
    x = torch.randint(max(edge.min, -(1 << 40)), min(edge.max, 1 << 40), (187,)).to(dtype)
    y = torch.randint(max(edge.min, -9), 11, (187,)).to(dtype)
    y[::3] = torch.randint(max(edge.min, -(1 << 40)), min(edge.max, 1 << 40), (63,)).to(dtype)
    if fn in ("floor_div", "trunc_div", "remainder", "fmod"):
        y[y == 0] = 3
    if fn.startswith("shift"):
        y = torch.randint(0, edge.bits, (187,)).to(dtype)
    if fn == "pow":
        y = y.abs() % 20
    args = [x, y][: POINTWISE[fn].arity]
    want = torch.relu(x) if fn == "relu" else torch_fn(fn)(*args)
    assert torch.equal(apply(fn, *args), want)


def test_integer_division_never_traps(apply: Any) -> None:
    for dtype in (torch.int64, torch.int32, torch.int8):
        low = torch.iinfo(dtype).min
        x = torch.tensor([5, low, low, 0, -7] * 7, dtype=dtype)
        y = torch.tensor([0, -1, 0, 0, -1] * 7, dtype=dtype)
        for fn in ("floor_div", "trunc_div", "remainder", "fmod"):
            got = apply(fn, x, y)
            assert got[y == 0].eq(0).all()
            if fn.endswith("div"):
                assert torch.equal(got[y == -1], torch.tensor([low, 7] * 7, dtype=dtype))


def test_negative_integer_powers(apply: Any) -> None:
    x = torch.tensor([1, -1, -1, 2, -3, 0, 7] * 5)
    y = torch.tensor([-3, -3, -4, -1, -2, -2, -1] * 5)
    assert apply("pow", x, y)[:7].tolist() == [1, -1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "fn", ["add", "mul", "maximum", "minimum", "eq", "ne", "bit_xor", "bit_not", "logical_or"]
)
def test_bools(fn: str, apply: Any) -> None:
    x, y = torch.rand(75) < 0.5, torch.rand(75) < 0.5
    args = [x, y][: POINTWISE[fn].arity]
    assert torch.equal(apply(fn, *args), torch_fn(fn)(*args))


def test_where(make: Any, run: Any) -> None:
    c, x, y = torch.rand(77) < 0.5, torch.randn(77), torch.randn(77)
    k = make((77,), 1, [(77, "i1"), (77, "f32"), (77, "f32")], [(77, "f32")])
    k.store(k.fn("where", k.load(0, (1,)), k.load(1, (1,)), k.load(2, (1,))), 0, (1,))
    assert torch.equal(run(k.kernel(), [c, x, y])[0], torch.where(c, x, y))
