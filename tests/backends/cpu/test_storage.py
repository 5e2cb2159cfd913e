"""Conversions between all dtypes, rounding of halves, in hardware and without it."""

from typing import Any

import pytest
import torch

NAMES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_cast(source: str, target: str, make: Any, run: Any) -> None:
    low = 0 if "u8" in (source, target) or source == "i1" else -100
    x = (torch.rand(91) * (100 - low) + low).to(NAMES[source])
    k = make((91,), 1, [(91, source)], [(91, target)])
    k.store(k.fn("cast", k.load(0, (1,)), dtype=target), 0, (1,))
    assert torch.equal(run(k.kernel(), [x])[0], x.to(NAMES[target]))


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_rounding_to_halves(target: str, make: Any, run: Any, features: Any) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (40001,)).to(torch.int32)
    near = torch.randn(20000) * torch.logspace(-9, 5, 20000)
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, 65504, 65519.9, 65520, 1e-45, 5.96e-8, 2.98e-8, 6.1e-5]
    )
    x = torch.cat([bits.view(torch.float32), near, special])
    n = x.numel()
    k = make((n,), 1, [(n, "f32")], [(n, target)])
    k.store(k.fn("cast", k.load(0, (1,)), dtype=target), 0, (1,))
    got, want = run(k.kernel(), [x], 1, features)[0], x.to(NAMES[target])
    nan = want.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got[~nan].view(torch.int16), want[~nan].view(torch.int16))


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_every_half_loads_exactly(source: str, make: Any, run: Any, features: Any) -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(NAMES[source])
    n = x.numel()
    k = make((n,), 1, [(n, source)], [(n, "f32")])
    k.store(k.fn("cast", k.load(0, (1,)), dtype="f32"), 0, (1,))
    got = run(k.kernel(), [x], 1, features)[0]
    assert torch.equal(got.nan_to_num(), x.float().nan_to_num())
    assert torch.equal(got.isnan(), x.isnan())


def test_a_cast_rounds_where_it_stands(make: Any, run: Any) -> None:
    x = torch.randn(65)
    k = make((65,), 1, [(65, "f32")], [(65, "f32")])
    half = k.fn("cast", k.load(0, (1,)), dtype="bf16")
    k.store(k.fn("cast", half, dtype="f32"), 0, (1,))
    assert torch.equal(run(k.kernel(), [x])[0], x.bfloat16().float())
