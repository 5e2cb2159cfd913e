"""Attention of bfloat16 on tile registers (AMX) against torch in float64: every tail there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from irc.backends.cpu.attention.amx_lanes import AmxWriter
from irc.backends.cpu.emit import emit, info_of
from irc.backends.cpu.features import Features, host
from irc.backends.cpu.native import shared_codes
from irc.backends.cpu.variants import VARIANTS
from irc.dialects.size import symbol
from tests.backends.attention_kernels import Attend
from tests.backends.attention_kernels import kernel_of as open_kernel_of
from tests.backends.cpu.attention_cases import Case
from tests.backends.cpu.test_attention import close
from tests.backends.cpu.test_sizes import attend_at

AMX = VARIANTS["x86-64-v4-amx"].features
DOTS = VARIANTS["x86-64-v4-dots"].features
TOLERANCE = 1.5e-2
needs_tiles = pytest.mark.skipif(not host().tiles, reason="no tile registers (AMX) here")
BASE = Case(heads=3, groups=3, rows=97, keys=131, depth=64, width=64, dtype="bf16", scale=0.12)
CASES = {
    "one block": replace(BASE, rows=128, keys=128),
    "features that end inside a tile": replace(BASE, depth=40, width=40),
    "few features": replace(BASE, depth=2, width=3),
    "features of odd halves": replace(BASE, depth=34, width=17),
    "a step and a tile of features": replace(BASE, depth=80, width=80),
    "many features": replace(BASE, depth=128, width=128, rows=33),
    "four tiles of rows": replace(BASE, heads=12, groups=12, rows=300, keys=197),
    "fewer rows than a tile": replace(BASE, rows=9, keys=197),
    "fewer keys than a tile": replace(BASE, rows=40, keys=5),
    "a key more than a step": replace(BASE, rows=40, keys=33),
    "a key more than a block": replace(BASE, rows=40, keys=257, sums=True),
    "causal": replace(BASE, causal=True, start=34, sums=True),
    "causal, rows that see nothing": replace(BASE, causal=True, start=-50, sums=True),
    "grouped heads": replace(BASE, heads=4, groups=2),
    "heads of one key as rows": replace(BASE, heads=32, groups=1, rows=1, keys=77),
    "bool mask": replace(BASE, mask=(1, 3, 97, 131), sums=True),
    "padding mask": replace(BASE, batch=2, mask=(2, 1, 1, 131)),
    "additive mask": replace(BASE, mask=(97, 131), mask_dtype="bf16", causal=True),
    "goes on": replace(BASE, before=True, sums=True),
    "heads first": replace(BASE, turned=False, stored=False, depth=40, width=40),
}


@pytest.mark.parametrize("features", [AMX, DOTS], ids=["amx", "dots"])
@pytest.mark.parametrize("name", ["one block", "few features", "four tiles of rows", "causal"])
def test_the_text_becomes_code_on_every_machine(name: str, features: Features) -> None:
    kernel, _ = CASES[name].kernel()
    text = emit(kernel, features)
    assert ("tdpbf16ps" in text) == features.tiles
    wanted = "attention tiles" if features.tiles else "attention lanes"
    assert info_of(text).template == wanted
    assert shared_codes([([text], features)])[0]


SLOW = {
    "one block", "few features", "a step and a tile of features", "fewer rows than a tile",
    "a key more than a step", "causal, rows that see nothing", "heads of one key as rows",
    "padding mask", "additive mask", "grouped heads",
}  # fmt: skip
MARKED = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, case in CASES.items()
]


@needs_tiles
@pytest.mark.parametrize("case", MARKED)
def test_kernels_equal_torch(case: Case) -> None:
    assert info_of(emit(case.kernel()[0])).template == "attention tiles"
    one, two = case.executed(num_threads=1), case.executed(num_threads=2)
    close(case, one, TOLERANCE)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


S, T, B = symbol("S"), symbol("T"), symbol("B")
OPEN = {
    "any length": Attend(batch=B, rows=S, keys=T, dtype="bf16", depth=40, width=24),
    "causal": Attend(rows=S, keys=S, dtype="bf16", depth=64, width=64, causal=True, sums=True),
    "masked": Attend(rows=S, keys=T, dtype="bf16", mask="bool", repeats=2),
}
LENGTHS = ((9, 15), (65, 129))


@pytest.mark.parametrize("name", OPEN)
def test_the_text_for_open_lengths_becomes_code(name: str) -> None:
    text = emit(open_kernel_of(OPEN[name]), AMX)
    assert info_of(text).template == "attention tiles"
    assert shared_codes([([text], AMX)])[0]


@needs_tiles
@pytest.mark.parametrize("name", OPEN)
def test_any_length(name: str) -> None:
    attend_at(LENGTHS, OPEN[name], None)


@needs_tiles
@pytest.mark.slow
@pytest.mark.parametrize("rows", [9, 15, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 160, 257])
def test_sizes_around_tiles(rows: int, keys: int) -> None:
    case = replace(
        BASE, rows=rows, keys=keys, depth=50, width=29, causal=True, start=keys // 2, sums=True
    )
    close(case, case.executed(num_threads=2), TOLERANCE)


@needs_tiles
def test_nan_reaches_its_row_alone() -> None:
    case = replace(BASE, depth=40)
    case.tensors["q"][0, 1, 2, 3] = torch.nan
    (y,) = case.executed()
    rows = torch.isnan(y).all(-1)
    assert bool(rows[0, 1, 2]) and int(torch.isnan(y).any(-1).sum()) == 1


@needs_tiles
def test_what_lies_behind_a_row_is_not_read() -> None:
    """NaN in the next head's features, and in keys beyond the last one, stay out of sums."""
    case = replace(BASE, depth=40, width=24, keys=37)
    for name in ("k", "v"):
        case.tensors[name][:, 2] = torch.nan
    (y,) = case.executed()
    assert not bool(torch.isnan(y[:, :2]).any()) and bool(torch.isnan(y[:, 2]).all())


@needs_tiles
def test_powers_left_from_other_keys_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a block's tail that is not cleared adds keys that nobody sees."""
    case = replace(BASE, causal=True, rows=50, keys=200)
    close(case, case.executed(), TOLERANCE)

    def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(AmxWriter, "_zeros", nothing)
    with pytest.raises(AssertionError):
        close(case, case.executed(), TOLERANCE)
