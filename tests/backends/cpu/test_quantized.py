"""Packed integer weights: every form and machine against ``flow.packed_contract`` in torch."""

from typing import Any

import pytest

from irc.dialects.flow import TransposeOp
from tests.backends.cpu.quantized_cases import Case


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 25])
@pytest.mark.parametrize("bits", [4, 8])
def test_floats(run: Any, features: Any, bits: int, rows: int, threads: int) -> None:
    depth, panels, groups = 96, 6 if rows < 4 else 3, 3
    words = (panels, depth // 8, 16) if bits == 4 else (panels, depth, 16)
    case = Case(
        ((rows, depth), "f32"), (words, "i32" if bits == 4 else "i8"),
        ((panels, groups, 16), "f32"), ((panels * 16,), "f32"),
    )  # fmt: skip
    value = case.b.pointwise("add", case.product(3, bits=bits, zero=8.0), case.block.args[3])
    value = case.b.pointwise("relu", value)
    case.check(run, features, value, "skinny" if rows <= 8 else "widened", threads)


@pytest.mark.parametrize(("bits", "dtype"), [(4, "i32"), (8, "u8"), (8, "i8")])
@pytest.mark.parametrize("rows", [1, 11])
def test_zeros_of_their_own(run: Any, features: Any, bits: int, dtype: str, rows: int) -> None:
    words = (2, 8, 16) if bits == 4 else (2, 64, 16)
    scales = ((2, 2, 16), "f32")
    case = Case(((rows, 64), "f32"), (words, dtype), scales, scales)
    case.check(run, features, case.product(4, bits=bits), "skinny" if rows == 1 else "widened")


def test_half_rows_are_converted_once(run: Any, features: Any) -> None:
    case = Case(((3, 64), "bf16"), ((2, 8, 16), "i32"), ((2, 1, 16), "f32"))
    case.check(run, features, case.product(3, bits=4), "skinny")


@pytest.mark.parametrize("rows", [1, 3, 14, 15, 29])
@pytest.mark.parametrize(("panels", "depth"), [(1, 4), (2, 36), (3, 128), (20, 8)])
def test_bytes(run: Any, features: Any, rows: int, panels: int, depth: int) -> None:
    case = Case(((rows, depth), "u8"), ((panels, depth // 4, 16, 4), "i8"), ((panels * 16,), "i32"))
    value = case.b.pointwise("add", case.product(2, bits=8), case.block.args[2])
    case.check(run, features, value, "dot", threads=2)


@pytest.mark.parametrize(
    ("image", "panels", "window"),
    [
        ((1, 5, 5, 4), 1, (3, 3, 1, 1, 1, 1)),
        ((2, 14, 14, 16), 2, (1, 1, 2, 2, 1, 1)),
        ((2, 9, 12, 8), 3, (3, 2, 1, 2, 2, 1)),
        ((1, 7, 7, 4), 1, (1, 7, 1, 1, 1, 1)),
        ((1, 31, 33, 4), 4, (2, 2, 1, 1, 1, 3)),
    ],
)
def test_windows(run: Any, features: Any, image: Any, panels: int, window: Any) -> None:
    kernel, channels = window[:2], image[3]
    case = Case(
        (image, "u8"), ((panels, *kernel, channels // 4, 16, 4), "i8"), ((16 * panels,), "i32")
    )
    value = case.product(2, bits=8, window=window)
    value = case.b.pointwise("sub", value, case.block.args[2])
    case.check(run, features, value, "dot", threads=2)


@pytest.mark.parametrize(
    ("image", "window"),
    [
        ((1, 7, 7, 16), (3, 3, 1, 1, 1, 1)),
        ((2, 12, 9, 33), (3, 3, 2, 1, 1, 2)),
        ((1, 31, 29, 24), (5, 5, 1, 2, 1, 1)),
        ((1, 5, 5, 3), (2, 2, 1, 1, 1, 1)),
        ((3, 1, 23, 144), (1, 7, 1, 1, 1, 1)),
        ((1, 14, 15, 64), (3, 3, 1, 1, 3, 2)),
        ((1, 4, 4, 2), (4, 4, 1, 1, 1, 1)),
    ],
)
def test_a_weight_for_each_channel(run: Any, features: Any, image: Any, window: Any) -> None:
    channels = image[3]
    case = Case((image, "u8"), ((*window[:2], channels), "i8"), ((channels,), "i32"))
    value = case.product(2, bits=8, window=window)
    value = case.b.pointwise("sub", value, case.block.args[2])
    case.check(run, features, value, "taps", threads=2)


@pytest.mark.parametrize(
    ("groups", "own", "depth"),
    [(32, 4, 4), (8, 8, 8), (4, 32, 20), (16, 1, 3), (8, 2, 5), (16, 4, 1), (2, 8, 24)],
)
def test_groups(run: Any, features: Any, groups: int, own: int, depth: int) -> None:
    """Groups of channels that share panels, have one, or have several; of odd depths."""
    quads, panels = -(-depth // 4), groups * own // 16
    channels, window = (groups - 1) * depth + 4 * quads, (3, 2, 1, 2, 1, 1)
    case = Case(
        ((2, 5, 18, channels), "u8"),
        ((panels, *window[:2], quads, 16, 4), "i8"),
        ((16 * panels,), "i32"),
    )
    value = case.product(2, bits=8, window=window, groups=(groups, depth))
    value = case.b.pointwise("sub", value, case.block.args[2])
    case.check(run, features, value, "dot", threads=2)


def test_extreme_bytes_of_taps_do_not_saturate(run: Any, features: Any) -> None:
    case = Case(((1, 8, 8, 32), "u8"), ((5, 5, 32), "i8"))
    case.operands[0].fill_(255)
    case.operands[1].fill_(-128)
    case.check(run, features, case.product(2, bits=8, window=(5, 5, 1, 1, 1, 1)), "taps")


def test_heads_and_turned_results(run: Any, features: Any) -> None:
    """A result that is split and transposed is stored so by the kernel."""
    case = Case(((6, 64), "f32"), ((4, 8, 16), "i32"), ((4, 1, 16), "f32"))
    value = case.b.reshape(case.product(3, bits=4), (2, 3, 2, 32))
    value = case.b.pointwise("relu", case.b.op(TransposeOp, [value], perm=(0, 2, 1, 3)))
    case.check(run, features, value, "skinny")


def test_extreme_bytes_do_not_saturate(run: Any, features: Any) -> None:
    """Pairs of 255 * -128 would saturate the 16 bits of older instructions (VPMADDUBSW)."""
    case = Case(((2, 1024), "u8"), ((1, 256, 16, 4), "i8"))
    case.operands[0].fill_(255)
    case.operands[1].fill_(-128)
    case.check(run, features, case.product(2, bits=8), "dot")
