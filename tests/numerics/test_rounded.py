"""Functions that are rounded to bfloat16: every argument there is, and a wrong coefficient."""

from __future__ import annotations

import pytest
import torch

from irc.backends.cpu.features import AVX2, Features, host
from irc.backends.cpu.vector import rounded
from tests.numerics.ulps import WIDE, evaluate

LIMIT = 0.55
"""In ulp of bfloat16; the nearest number is 0.5 from the exact result at most."""
VANISHING = 2e-36
EVERY = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
# Half an ulp above the largest number, from where infinity is the nearest.
ENDLESS = torch.finfo(torch.bfloat16).max * (1 + 2.0**-9)


def error(name: str, features: Features | None = None) -> float:
    """Return the largest error over all arguments, in ulp; specials are as they are exactly."""
    result = evaluate([name], EVERY, "bf16", features)[name].double()
    exact = WIDE[name](EVERY.double())
    assert torch.equal(result.isnan(), exact.isnan())
    assert torch.equal(result.isinf(), exact.abs() > ENDLESS)
    seen = result.isfinite() & (exact.abs() > VANISHING)
    ulp = 2.0 ** (exact[seen].abs().log2().floor() - 7)
    return float(((result - exact)[seen].abs() / ulp).max())


@pytest.mark.parametrize("features", [None, AVX2], ids=["host", "avx2"])
@pytest.mark.parametrize("name", rounded.FORMS)
def test_every_argument(name: str, features: Features | None) -> None:
    assert error(name, features) <= LIMIT


@pytest.mark.skipif(not host().masked, reason="computed in full without AVX-512")
@pytest.mark.parametrize("name", ["TAIL", "EXP2_HALF"])
def test_a_wrong_coefficient_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest = getattr(rounded, name)
    monkeypatch.setattr(rounded, name, (first + 0.01, *rest))
    assert error("gelu") > LIMIT
