"""Conversions between all dtypes, rounding of halves, in hardware and without it."""

# pyright: basic

from typing import Any

import llvmlite.binding as llvm
import pytest
import torch

from irc.backends.cpu import emit
from irc.backends.cpu.features import host
from irc.backends.cpu.native import machine
from irc.backends.cpu.variants import VARIANTS
from irc.backends.cpu.vector import storage

has_rounding = pytest.mark.skipif(
    not host().tiles, reason="this machine rounds to bfloat16 by integers"
)

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


def every_upper_half() -> torch.Tensor:
    """Floats with each upper half, and lower halves around zero, a half and one ulp of bfloat16."""
    low = torch.tensor([0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF])
    bits = (torch.arange(-(1 << 15), 1 << 15)[:, None] << 16 | low).flatten()
    return bits.to(torch.int32).view(torch.float32)


def rounded_by_integers(x: torch.Tensor) -> torch.Tensor:
    """To nearest even; a NaN keeps its sign and high bits and becomes quiet."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return torch.where(x.isnan(), bits >> 16 | 0x40, nearest).to(torch.int16)


@pytest.mark.parametrize("extra", [0, 5])
def test_each_upper_half_rounds_to_bfloat16(extra: int, make: Any, run: Any) -> None:
    """Denormals and NaN too, bit by bit; ``extra`` elements are a tail of the last vector."""
    x = torch.cat([every_upper_half(), every_upper_half()[:extra]])
    n = x.numel()
    k = make((n,), 1, [(n, "f32")], [(n, "bf16")])
    k.store(k.load(0, (1,)), 0, (1,))
    assert torch.equal(run(k.kernel(), [x])[0].view(torch.int16), rounded_by_integers(x))


@has_rounding
def test_denormals_taken_for_zeros_are_caught(
    make: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_DENORMAL", 0)
    x = every_upper_half()
    n = x.numel()
    k = make((n,), 1, [(n, "f32")], [(n, "bf16")])
    k.store(k.load(0, (1,)), 0, (1,))
    wrong = run(k.kernel(), [x])[0].view(torch.int16) != rounded_by_integers(x)
    assert wrong.any() and bool((x[wrong].abs() < torch.finfo(torch.float32).smallest_normal).all())


def test_machines_without_tiles_round_by_integers(make: Any) -> None:
    texts: dict[str, str] = {}
    for name, variant in VARIANTS.items():
        k = make((64,), 1, [(64, "f32")], [(64, "bf16")])
        k.store(k.load(0, (1,)), 0, (1,))
        texts[name] = emit(k.kernel(), variant.features)
    assert {name for name, text in texts.items() if "cvtneps2bf16" in text} == {"x86-64-v4-amx"}
    module = llvm.parse_assembly(texts["x86-64-v4-amx"])
    module.verify()
    assembly = machine(VARIANTS["x86-64-v4-amx"].features).emit_assembly(module)
    assert "vcvtneps2bf16" in assembly and "vfpclassps" in assembly


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


@pytest.mark.parametrize("fn", ["tanh", "erf", "erfinv", "gelu"])
@pytest.mark.parametrize("size", [1, 17, 65])
def test_signs_of_doubles_that_became_halves(
    fn: str, size: int, make: Any, run: Any, features: Any
) -> None:
    """LLVM reads a sign from before a rounding; of a double it called what is not there."""
    x = torch.linspace(-0.9, 0.9, size, dtype=torch.float64)
    k = make((size,), 1, [(size, "f64")], [(size, "f16")])
    k.store(k.fn(fn, k.fn("cast", k.load(0, (1,)), dtype="f16")), 0, (1,))
    got = run(k.kernel(), [x], 1, features)[0]
    plain = {"gelu": torch.nn.functional.gelu}.get(fn) or getattr(torch, fn)
    wanted = plain(x.half().float())
    assert torch.allclose(got.float(), wanted, rtol=1e-3, atol=1e-4)


def test_the_sign_of_a_double_that_became_a_half(make: Any, run: Any, features: Any) -> None:
    x, size = torch.linspace(-0.9, 0.9, 17, dtype=torch.float64), torch.full((17,), 2.0).half()
    k = make((17,), 1, [(17, "f64"), (17, "f16")], [(17, "f16")])
    half = k.fn("cast", k.load(0, (1,)), dtype="f16")
    k.store(k.fn("copysign", k.load(1, (1,)), half), 0, (1,))
    got = run(k.kernel(), [x, size], 1, features)[0]
    assert torch.equal(got, torch.copysign(size, x.half()))
