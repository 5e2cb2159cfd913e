"""Packed integer weights: every form and machine against ``flow.packed_contract`` in torch."""

from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.backends.cpu import emit, info_of
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import PackedContractOp, TransposeOp
from irc.dialects.task import KernelOp, LaunchOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.levels import execute as interpret
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.runtime.library import dtypes


def random(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    kind = dtypes()[dtype]
    if kind.is_floating_point:
        return torch.randn(shape).to(kind)
    info = torch.iinfo(kind)
    return torch.randint(info.min, info.max + 1, shape, dtype=torch.int64).to(kind)


class Case:
    """A function of one packed product; the first kernel of template packed is run."""

    def __init__(self, *shapes: tuple[tuple[int, ...], str]) -> None:
        self.shapes = shapes
        self.block = Block(arg_types=[TensorType.of(s, d) for s, d in shapes])
        self.b = FlowBuilder(self.block)
        self.given = [random(s, d) for s, d in shapes]

    def product(self, count: int, **attrs: Any) -> SSAValue:
        return self.b.op(PackedContractOp, list(self.block.args[:count]), **attrs)

    def check(self, run: Any, features: Any, value: SSAValue, form: str, threads: int = 1) -> None:
        module = ModuleOp([finish_function("forward", self.block, [value])])
        module.verify()
        wide = [x.double() if x.dtype in (torch.float32, torch.bfloat16) else x for x in self.given]
        (expected,) = interpret(module, wide)
        for each in (FusePass(), MapTasksPass()):
            each.apply(context(), module)
        module.verify()
        (mapped,) = interpret(module, wide)
        kernels = [op for op in module.ops if isinstance(op, KernelOp)]
        (kernel,) = [op for op in kernels if op.template.data == "packed"]
        assert len(kernels) == 1, "what follows is part of the kernel"
        assert info_of(emit(kernel, features)).template == f"packed {form}"
        (launch,) = (op for op in module.walk() if isinstance(op, LaunchOp))
        func = launch.parent_op()
        assert func is not None
        places = [func.regions[0].block.args.index(value) for value in launch.inputs]  # type: ignore[arg-type]
        (found,) = run(kernel, [self.given[i] for i in places], threads, features)
        scale = float(expected.abs().max())
        error = 0.0 if expected.dtype is torch.int32 else 4e-6 * scale
        assert float((mapped - expected).abs().max()) <= error
        assert float((found.reshape(expected.shape) - expected).abs().max()) <= error


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
    case.given[0].fill_(255)
    case.given[1].fill_(-128)
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
    case.given[0].fill_(255)
    case.given[1].fill_(-128)
    case.check(run, features, case.product(2, bits=8), "dot")
