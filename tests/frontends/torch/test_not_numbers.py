"""Functions of what is no number, or infinite, with their gradients, against eager.

One program holds all of them: its results are told by name.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import irc

# fmt: off
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "threshold": lambda x: F.threshold(x, 0.0, 1.0), "relu": F.relu, "relu6": F.relu6,
    "hardtanh": F.hardtanh, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
    "celu": F.celu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "softshrink": F.softshrink, "hardshrink": F.hardshrink, "softplus": F.softplus,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid,
    "silu": F.silu, "mish": F.mish, "clamp": lambda x: x.clamp(-1, 1), "abs": torch.abs,
    "clamp_min": lambda x: x.clamp(min=0.5), "clamp_max": lambda x: x.clamp(max=0.5),
    "sign": torch.sign, "maximum": lambda x: torch.maximum(x, x.flip(0)), "amax": torch.amax,
    "minimum": lambda x: torch.minimum(x, x.flip(0)), "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)), "where": lambda x: torch.where(x > 0, x, -x),
    "nan_to_num": torch.nan_to_num, "masked": lambda x: x.masked_fill(x.isnan(), 0.0).exp(),
    "sqrt": torch.sqrt, "cumsum": lambda x: x.cumsum(0), "nansum": torch.nansum,
    "max": lambda x: x.max(0)[0], "huber": lambda x: F.huber_loss(x, x * 2, reduction="none"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2, reduction="none"),
}
# fmt: on

# What eager gives there depends on whether an element is one of a vector.
BY_PLACE = ("relu6", "hardtanh", "elu", "selu", "celu", "hardswish", "hardshrink")


def numbers(dtype: torch.dtype) -> Tensor:
    inf, nan = float("inf"), float("nan")
    values = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 0.25, 2.5, nan, -7.0]
    return torch.tensor(values * 2, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nan_and_infinity_go_where_they_go_in_eager(dtype: torch.dtype) -> None:
    def run(*xs: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(FUNCTIONS.values(), xs, strict=True)]

    def gradients(program: Callable[..., list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        xs = [numbers(dtype).requires_grad_() for _ in FUNCTIONS]
        values = program(*xs)
        slopes = torch.autograd.grad([value.sum() for value in values], xs)
        return [value.detach() for value in values], list(slopes)

    # Between half numbers a kernel rounds where eager does not, and the other way round.
    near = {"rtol": 2e-2, "atol": 2e-3} if dtype == torch.bfloat16 else {}
    both = zip(FUNCTIONS, *gradients(irc.compile(run)), *gradients(run), strict=True)
    for name, *pairs in both:
        value, slope, eager, expected = pairs
        if name in BY_PLACE:
            slope, expected = (g[~numbers(dtype).isnan()] for g in (slope, expected))
        for what, got, want in (("value", value, eager), ("gradient", slope, expected)):
            message = f"{what} of {name}: {got.tolist()}, in eager {want.tolist()}"
            torch.testing.assert_close(got, want, equal_nan=True, **near, msg=message)
