"""Operands of all pairs of dtypes: eager's answer, or eager's error.

Torch's fakes and decompositions take mixtures that its kernels refuse. What eager answers of one op
is computed in one graph; each pair that it refuses is compiled by itself, and has to be refused.
"""

# pyright: basic
from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import irc

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
FEW = (torch.bool, torch.int64, torch.float32)
MASK = [True, False, True]

NAMES = (
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum",
    "fmax", "atan2", "hypot", "bitwise_and", "bitwise_xor", "bitwise_left_shift", "logical_and",
    "eq", "lt", "logaddexp", "xlogy", "heaviside", "copysign", "nextafter", "gcd", "lcm", "rsub",
    "float_power", "ldexp", "isclose", "subtract", "clamp_min",
)  # fmt: skip

OPS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    **{name: getattr(torch, name) for name in NAMES},
    "div, floor": partial(torch.div, rounding_mode="floor"),
    "div, trunc": partial(torch.div, rounding_mode="trunc"),
    "pow, turned": lambda a, b: b**a,
    "add, alpha": lambda a, b: torch.add(a, b, alpha=2),
    "where": lambda a, b: torch.where(torch.tensor(MASK), a, b),
    "masked_fill": lambda a, b: torch.masked_fill(a, torch.tensor(MASK), b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "lerp by": lambda a, b: torch.lerp(a, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "clamp": lambda a, b: torch.clamp(a, b, b),
}

WRITES = (
    "add_", "sub_", "mul_", "div_", "floor_divide_", "remainder_", "pow_", "atan2_", "hypot_",
    "bitwise_and_", "logical_or_", "lt_", "xlogy_", "heaviside_", "copysign_", "gcd_", "copy_",
    "fill_", "clamp_", "float_power_",
)  # fmt: skip

IN_PLACE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    **{name: lambda a, b, name=name: getattr(a, name)(b) for name in WRITES},
    **{
        name: getattr(operator, name)
        for name in (
            "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ixor",
            "ilshift",
        )
    },
    "masked_fill_": lambda a, b: a.masked_fill_(torch.tensor(MASK), b),
    "addcmul_": lambda a, b: a.addcmul_(b, b),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
    "out=": lambda a, b: torch.mul(a, b, out=a),
}  # fmt: skip

WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}


@dataclass(frozen=True)
class Case:
    """Two operands, and what eager says of them."""

    one: Tensor
    other: Any
    answer: Tensor | None
    refusal: Exception | None

    @staticmethod
    def of(op: Callable[[Tensor, Any], Tensor], one: torch.dtype, other: Any, kind: str) -> Case:
        """Ask eager; the second operand is a tensor, one without dims, or a number."""
        first, second = torch.tensor([3, 1, 2]).to(one), torch.tensor([1, 2, 3]).to(other)
        last = {"tensor": second, "rank 0": second[1].clone(), "number": second[1].item()}[kind]
        try:
            answer = op(first.clone(), last)
        except Exception as error:
            return Case(first, last, None, error)
        return Case(first, last, answer, None)

    def __str__(self) -> str:
        other = self.other.dtype if isinstance(self.other, Tensor) else self.other
        return f"{self.one.dtype} and {other}"


def cases(
    op: Callable[..., Tensor], dtypes: Sequence[torch.dtype], kinds: Sequence[str]
) -> list[Case]:
    """Return all pairs of operands."""
    numbers = (torch.bool, torch.int64, torch.float64, torch.complex128)
    return [
        Case.of(op, one, other, kind)
        for kind in kinds
        for one, other in itertools.product(dtypes, dtypes)
        if (kind != "number" or other in numbers)
        # Eager's power of booleans by True is boolean; torch's fake tensors count it (2.13).
        and not (op is torch.pow and kind == "number" and one == other == torch.bool)
    ]


def hold(op: Callable[..., Tensor], way: str, pairs: Sequence[Case]) -> None:
    """Hold a compiled op against eager."""
    answered = [each for each in pairs if each.refusal is None]

    def every(firsts: list[Tensor], others: list[Any]) -> list[Tensor]:
        return [op(a.clone(), b) for a, b in zip(firsts, others, strict=True)]

    torch._dynamo.reset()
    others = [each.other for each in answered]
    results = WAYS[way](every)([each.one for each in answered], others) if answered else []
    for case, tensor in zip(answered, results, strict=True):
        assert case.answer is not None
        is_half = tensor.dtype in (torch.float16, torch.bfloat16)
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if is_half else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(tensor, case.answer, equal_nan=True, msg=str(case), **tolerance)
    for case in pairs:
        if case.refusal is None:
            continue
        torch._dynamo.reset()
        # Dynamo's own error stands for those that it meets, and is a RuntimeError.
        wanted = (
            (type(case.refusal), RuntimeError) if way == "torch.compile" else type(case.refusal)
        )
        try:
            tensor = WAYS[way](op)(case.one.clone(), case.other)
        except wanted:
            continue
        raise AssertionError(f"{case}: {tensor}, where eager raises {case.refusal}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["sub", "lerp"])
def test_some_mixtures(name: str, way: str) -> None:
    with torch.no_grad():
        hold(OPS[name], way, cases(OPS[name], FEW, ["tensor"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["isub"])
def test_some_writes(name: str, way: str) -> None:
    with torch.no_grad():
        hold(IN_PLACE[name], way, cases(IN_PLACE[name], FEW, ["tensor"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["heaviside", "lerp by", "isclose"])
def test_a_decomposition_takes_no_more_than_eager(name: str, way: str) -> None:
    pair = Case.of(OPS[name], torch.float32, torch.int64, "tensor")
    assert pair.refusal is not None
    with torch.no_grad():
        hold(OPS[name], way, [pair])


@pytest.mark.parametrize("way", WAYS)
def test_a_complex_number_is_no_real_one(way: str) -> None:
    x, turned = torch.ones(3), torch.full((3,), 1j)
    for write in (Tensor.add_, Tensor.mul_, operator.iadd):
        torch._dynamo.reset()
        with torch.no_grad(), pytest.raises(RuntimeError):
            WAYS[way](write)(x.clone(), turned)
        torch._dynamo.reset()
        with pytest.raises(RuntimeError):
            WAYS[way](lambda x, y, write=write: write(x * 1, y))(x.clone().requires_grad_(), turned)


DIVISIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "fmod": torch.fmod,
    "trunc": OPS["div, trunc"],
    "//=": lambda a, b: operator.ifloordiv(a.clone(), b),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_are_not_divided_by_zero(name: str, way: str) -> None:
    x, divisor = torch.tensor([7, -7, 5]), torch.tensor([2, 3, -4])
    torch._dynamo.reset()
    fast = WAYS[way](DIVISIONS[name])
    with torch.no_grad():
        assert torch.equal(fast(x, divisor), DIVISIONS[name](x, divisor))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fast(x, torch.tensor([2, 0, -4]))
        assert torch.equal(fast(x, divisor), DIVISIONS[name](x, divisor))
        assert torch.equal(WAYS[way](lambda a: DIVISIONS[name](a, 3))(x), DIVISIONS[name](x, 3))


def test_a_known_divisor_is_divided_by_in_a_kernel() -> None:
    x = torch.arange(8)
    with torch.no_grad():
        captured = irc.capture(lambda a: (a + 1) // 3 % torch.full((8,), 5), [x])
    assert not captured.externs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grad", [False, True])
def test_nothing_is_printed_beside_eagers_error(
    way: str, grad: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    torch._dynamo.reset()
    run = WAYS[way](lambda a, b: a.mm(b))
    one, other = torch.ones(2, 2, requires_grad=grad), torch.ones(2, 2, dtype=torch.bfloat16)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same dtype"):
            run(one, other)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPS)
def test_all_mixtures(name: str, way: str) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hold(OPS[name], way, cases(OPS[name], DTYPES, ["tensor", "rank 0", "number"]))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_all_writes(name: str, way: str) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hold(IN_PLACE[name], way, cases(IN_PLACE[name], DTYPES, ["tensor", "number"]))
