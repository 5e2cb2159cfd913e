"""Windows on level task: bounds of loads, orders of results, packed weights, and their verifier."""

import pytest
import torch
from torch import nn
from xdsl.utils.exceptions import VerifyException

import irc
from irc.dialects.attributes import to_attribute
from irc.dialects.launches import ViewOp
from irc.dialects.task import KernelOp, LoadOp, bound_rows
from irc.dialects.text import dump, load
from irc.errors import InternalError
from irc.interpret.task import run_kernel
from irc.kernels.orders import channels_last, has_channels_last, ordered_view, taps_first
from irc.kernels.view import View
from irc.pipeline import Options, default_pipeline, run_passes
from tests.backends.cpu.maker import Maker


def lowered(module: nn.Module, *shape: int) -> tuple[list[KernelOp], str]:
    program = irc.capture(module.eval(), (torch.randn(shape),)).program
    run_passes(program.module, default_pipeline(Options()))
    program.module.verify()
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    return kernels, dump(program.module)


def padded(low: int, high: int, size: int = 5) -> KernelOp:
    """A kernel that pads a vector with 7."""
    maker = Maker((low + size + high,), 1, [(size, "f32")], [(low + size + high, "f32")])
    value = maker.load(0, (1,), offset=-low) if low == 0 else _bounded(maker, low, size)
    maker.store(value, 0, (1,))
    return maker.kernel()


def _bounded(maker: Maker, low: int, size: int):
    return maker._add(  # type: ignore[attr-defined]
        LoadOp, [maker.block.args[0]], "f32", True, offset=-low, strides=(1,),
        bounds=(size, -low, 1), fill=(7.0,),
    )  # fmt: skip


@pytest.mark.parametrize(("low", "high"), [(1, 0), (2, 3), (5, 40)])
def test_outside_its_bounds_a_load_gives_the_fill(low: int, high: int) -> None:
    kernel, x = padded(low, high), torch.randn(5)
    out = torch.empty(low + 5 + high)
    run_kernel(kernel, [x], [out])
    assert torch.equal(out, nn.functional.pad(x, (low, high), value=7.0))


@pytest.mark.parametrize(("low", "high"), [(1, 0), (2, 3), (5, 40)])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_cpu_does_the_same(low: int, high: int, threads: int) -> None:
    from tests.backends.cpu.conftest import execute

    x = torch.randn(5)
    (out,) = execute(padded(low, high), [x], threads)
    assert torch.equal(out, nn.functional.pad(x, (low, high), value=7.0))


def test_bounds_that_let_an_address_escape_are_found() -> None:
    kernel = padded(2, 3)
    (load,) = [op for op in kernel.body.ops if isinstance(op, LoadOp)]
    load.properties["bounds"] = to_attribute((6, -2, 1))
    with pytest.raises(InternalError, match="reads elements"):
        run_kernel(kernel, [torch.randn(5)], [torch.empty(10)])


@pytest.mark.parametrize("bounds", [(5, -2), (5, -2, 1, 9)])
def test_bounds_come_in_rows(bounds: tuple[int, ...]) -> None:
    kernel = padded(2, 3)
    (load,) = [op for op in kernel.body.ops if isinstance(op, LoadOp)]
    load.properties["bounds"] = to_attribute(bounds)
    with pytest.raises(VerifyException, match="rows of 3"):
        kernel.verify()


def test_bounds_need_a_fill() -> None:
    kernel = padded(2, 3)
    (load,) = [op for op in kernel.body.ops if isinstance(op, LoadOp)]
    del load.properties["fill"]
    with pytest.raises(VerifyException, match="fill"):
        kernel.verify()


def test_the_text_round_trips() -> None:
    _, text = lowered(
        nn.Sequential(nn.Conv2d(3, 40, 3, padding=1), nn.MaxPool2d(2, 2, 1)), 1, 3, 6, 6
    )
    assert "bounds = array<i64: 6, -1" in text
    assert dump(load(text)) == text


def test_windows_that_stay_inside_have_no_bounds() -> None:
    kernels, text = lowered(nn.Conv2d(8, 40, 3), 1, 8, 6, 6)
    assert "bounds" not in text
    assert [k.template.data for k in kernels].count("convolution") == 1


def test_one_tap_of_stride_one_is_a_matmul() -> None:
    kernels, _ = lowered(nn.Conv2d(8, 40, 1), 2, 8, 6, 7)
    assert "matmul" in {k.template.data for k in kernels}
    assert "convolution" not in {k.template.data for k in kernels}


def test_results_lie_channels_last_and_are_seen_as_they_are_named() -> None:
    program = irc.capture(nn.Conv2d(3, 40, 3).eval(), (torch.randn(1, 3, 6, 7),)).program
    run_passes(program.module, default_pipeline(Options()))
    (view,) = [op for op in program.module.walk() if isinstance(op, ViewOp) and "40" in str(op)]
    assert view.plain["strides"] == (0, 1, 200, 40) or view.plain["strides"][1:] == (1, 200, 40)


class Joined(nn.Module):
    """Images that are enlarged along a dim, side by side, as feature pyramids join them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(8, 24, 3, stride=2), nn.Conv2d(8, 24, 3, stride=2)
        self.last = nn.Conv2d(48, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(10) // 2
        parts = [f(x).index_select(3, at) * 3 for f in (self.left, self.right)]
        return self.last(torch.cat(parts, 1))


def test_what_joins_computed_channels_is_stored_channels_last() -> None:
    module, x = Joined(), torch.randn(1, 8, 13, 11)
    kernels, _ = lowered(module, *x.shape)
    (joined,) = [k for k in kernels if "lt_where" in k.sym_name.data]
    # Places, then the parts, then the channels of one.
    assert joined.space_extents == (6, 10, 2, 24)
    with torch.no_grad():
        torch.testing.assert_close(irc.compile(module)(x), module(x), atol=1e-5, rtol=1e-5)


def test_orders() -> None:
    shape = (2, 3, 4, 5)
    assert channels_last(3) == (0, 2, 1)
    assert taps_first(5) == (2, 3, 4, 1, 0)
    view = ordered_view(shape, channels_last(4))
    assert (view.shape, view.strides) == (shape, (60, 1, 15, 3))
    assert has_channels_last(view)
    assert not has_channels_last(View.contiguous(shape))
    assert has_channels_last(View.contiguous((2, 1, 4, 5)))


def test_rows_of_bounds() -> None:
    assert bound_rows((56, -1, 1, 0, 1, 9, 0, 0, 2, 0), 3) == [
        (56, -1, (1, 0, 1)),
        (9, 0, (0, 2, 0)),
    ]
