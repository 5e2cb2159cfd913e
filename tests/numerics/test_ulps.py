"""No function of the CPU backend is less exact than its record states."""

import pytest

from irc.backends.cpu.features import AVX2, BASELINE, Features
from irc.ops.functions import POINTWISE
from tests.numerics.ulps import (
    ACCURACY,
    FEW,
    MANY,
    doubles,
    error_of_doubles,
    error_of_singles,
    evaluate,
    singles,
)

EXACT_OR_BINARY = {
    "neg", "abs", "sign", "relu", "floor", "ceil", "round", "trunc", "is_nan", "is_inf",
    "logical_not", "bit_not", "copy", "detach", "cast",
}  # fmt: skip


def test_every_function_that_rounds_has_a_bound() -> None:
    unary = {name for name, row in POINTWISE.items() if row.arity == 1}
    assert unary - EXACT_OR_BINARY == set(ACCURACY)


def check_singles(name: str, features: Features | None, count: int) -> None:
    stated = ACCURACY[name]
    x = singles(stated.low, stated.high, count)
    assert len(x) > count // 2
    error = error_of_singles(name, x, evaluate([name], x, "f32", features)[name])
    limit = stated.f32 * (stated.without_fma if features is BASELINE else 1.0)
    assert error.ulps <= limit, f"{error.ulps:.2f} ulp at {error.at!r}"


@pytest.mark.parametrize("name", ACCURACY)
def test_float32(name: str) -> None:
    check_singles(name, None, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCURACY)
@pytest.mark.parametrize("features", [None, AVX2, BASELINE], ids=["host", "avx2", "generic"])
def test_float32_densely(name: str, features: Features | None) -> None:
    check_singles(name, features, MANY)


@pytest.mark.parametrize("name", ACCURACY)
def test_float64(name: str) -> None:
    stated = ACCURACY[name]
    x = doubles(stated.low, stated.high)
    assert len(x) > 300
    error = error_of_doubles(name, x, evaluate([name], x, "f64")[name])
    assert error.ulps <= stated.f64, f"{error.ulps:.2f} ulp at {error.at!r}"


def test_an_error_would_be_found() -> None:
    x = singles(0.5, 2.0)
    right = evaluate(["exp"], x, "f32")["exp"]
    wrong = right.clone()
    wrong[777] *= 1 + 2.0**-21
    assert error_of_singles("exp", x, wrong).ulps > 2.0
    assert error_of_singles("exp", x, right).ulps <= 1.0
