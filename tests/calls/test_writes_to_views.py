"""Writes to views: expanded ones, transposed ones, complex sources; numbers, strides, errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.effects import _register_effectful_op
from torch._library.effects import EffectType

import irc
from irc.errors import IrcError
from irc.torch_backend import compile_fx

WAYS = (
    irc.compile,
    lambda f: irc.compile(f, dynamic=True),
    lambda f: torch.compile(f, backend=compile_fx),
)


def expanded(x: Tensor) -> Tensor:
    return x.expand(2, *x.shape)


def filled(x: Tensor) -> Tensor:
    expanded(x).unsqueeze(0).fill_(0.5)
    return x[2:0]


def zeroed(x: Tensor) -> Tensor:
    before = expanded(x).sum(dim=2)
    expanded(x).zero_()
    return before - 3


def one_row(x: Tensor) -> Tensor:
    expanded(x)[0].add_(1)
    return x + 1


def own(x: Tensor) -> Tensor:
    y = (x + 1).expand(3, *x.shape)
    y.fill_(2)
    return y + x


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [filled, zeroed, one_row, own])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.complex64])
def test_what_eager_takes_is_right(
    way: Callable[[Any], Any], call: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    mine, theirs = (torch.arange(1, 13).reshape(4, 3).to(dtype) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(way(call)(mine), call(theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["add_", "clamp_min_", "copy_"])
def test_what_eager_refuses_is_refused(way: Callable[[Any], Any], name: str) -> None:
    torch._dynamo.reset()

    def call(x: Tensor) -> Tensor:
        getattr(expanded(x), name)(torch.ones(3))
        return x * 1

    x = torch.full((2, 3), -7.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        call(x.clone())
    with pytest.raises(RuntimeError, match="single memory location"):
        way(call)(x)


def turned(x: Tensor) -> None:
    x += x.t()


# fmt: off
REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda x: x.t().add_(x), "an operator": turned,
    "rows further on": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "out": lambda x: torch.cumsum(x, 0, out=x.t()),
    "an out that is read": lambda x: torch.gather(x, 0, torch.zeros(4, 4).long(), out=x),
}
TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "columns further on": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "columns to the front": lambda x: x.__setitem__((..., slice(None, -1)), x[:, 1:]),
    "columns apart": lambda x: x.__setitem__((..., slice(2, None)), x[:, :2]),
    "itself": lambda x: x.mul_(x),
}
# fmt: on


@pytest.mark.parametrize("way", WAYS[::2])
@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_what_is_written_may_be_read_elsewhere(way: Callable[[Any], Any], name: str) -> None:
    torch._dynamo.reset()
    write = {**REFUSED, **TAKEN}[name]

    def call(x: Tensor) -> Tensor:
        write(x)
        return x * 2

    with torch.no_grad():
        mine, theirs = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
        if name in REFUSED:
            for each in (call, way(call)):
                with pytest.raises(RuntimeError, match="single memory location"):
                    each(mine)
        else:
            assert torch.equal(way(call)(mine), call(theirs))
            assert torch.equal(mine, theirs)


def test_arguments_of_one_memory_may_start_elsewhere_in_it() -> None:
    """AOTAutograd makes views of all of the memory, and Dynamo does not guard where they start."""
    torch._dynamo.reset()

    def call(x: Tensor, y: Tensor) -> Tensor:
        y.reshape(-1).unfold(0, 1, 1).zero_()
        return x.reshape(-1).unfold(0, 1, 1)

    fast = torch.compile(call, backend=compile_fx, dynamic=False)
    with torch.no_grad():
        for start in (0, 3):
            mine, theirs = (torch.arange(40.0) + 1 for _ in range(2))
            view = mine[start : start + 24].reshape(4, 6)
            view = view if start else view.clone()
            wanted = theirs[start : start + 24].reshape(4, 6)
            assert torch.equal(fast(view, view.detach()), call(wanted, wanted.detach()))
            assert not start or torch.equal(mine, theirs)


def test_a_plan_of_its_own_names_the_line() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return own(x)

    with pytest.raises(IrcError, match="several elements of what it takes") as error:
        irc.capture(Module(), (torch.ones(2, 3),))
    assert "test_writes_to_views.py" in error.value.render()


@pytest.mark.parametrize("way", WAYS)
def test_angles_lie_as_eagers(way: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()

    def call(x: Tensor) -> Tensor:
        return x.angle().square()

    for x in (torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(2, 3, 4)):
        turned = x.transpose(1, 2)
        assert way(call)(turned).stride() == call(turned).stride()


def overwritten(x: Tensor) -> Tensor:
    y = x * x
    y[...] = y.to(torch.complex64)
    return y


def filled(x: Tensor) -> Tensor:
    y = x * x
    y[...] = y[0].to(torch.complex64)
    return y


@pytest.mark.parametrize("call", [overwritten, filled])
@pytest.mark.parametrize("way", WAYS)
def test_a_complex_source_is_written_without_a_bug(
    way: Callable[[Any], Any], call: Callable[[Tensor], Tensor]
) -> None:
    """Torch drops the imaginary part with a warning, and so does what is compiled."""
    torch._dynamo.reset()
    x = torch.tensor([1, 2])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert torch.equal(way(call)(x), call(x))
    assert not [each for each in told if "internal" in str(each.message)]


def masked(v: Tensor) -> Tensor:
    return v.masked_fill_(v == 2, 4)


def one_row_of(v: Tensor) -> Tensor:
    return v.index_fill_(0, torch.tensor([1]), 7)


def sums(v: Tensor) -> Tensor:
    return v.cumsum_(0)


def turned_about(v: Tensor) -> Tensor:
    return v.t_().add_(1)


def scattered(v: Tensor) -> Tensor:
    return v.scatter_(0, torch.zeros(1, 1, dtype=torch.long), 9.0)


def some_masked(v: Tensor) -> Tensor:
    return v.masked_scatter_(v.detach() > 0, torch.arange(15.0))


def added_at(v: Tensor) -> Tensor:
    return v.index_add_(0, torch.tensor([0]), torch.ones(1, v.shape[1]), alpha=2)


def copied_at(v: Tensor) -> Tensor:
    return v.index_copy_(0, torch.tensor([1]), torch.ones(1, v.shape[1]))


def lower(v: Tensor) -> Tensor:
    return v.tril_()


def within_norm(v: Tensor) -> Tensor:
    return v.renorm_(2, 0, 1.0)


def signed(v: Tensor) -> Tensor:
    return v.copysign_(torch.full(v.shape, -1.0))


def with_logarithm(v: Tensor) -> Tensor:
    return v.xlogy_(torch.full(v.shape, 2.0))


def floored(v: Tensor) -> Tensor:
    return v.floor_divide_(torch.full(v.shape, 0.3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "write",
    [masked, one_row_of, sums, turned_about, scattered, some_masked, added_at, copied_at, lower,
     within_norm, signed, with_logarithm, floored],
)  # fmt: skip
def test_what_is_written_stays_as_it_lies(
    write: Callable[[Tensor], Tensor], gradients: bool, way: Callable[[Any], Any]
) -> None:
    if gradients and write is floored:
        pytest.skip("torch has no derivative of it")

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        write(v.t())
        return v, v[:, :2].t()

    torch._dynamo.reset()
    one, other = (torch.ones(3, 5, requires_grad=gradients) for _ in range(2))
    mine, theirs = way(call)(one), call(other)
    for mine_one, theirs_one in zip(mine, theirs, strict=True):
        torch.testing.assert_close(mine_one, theirs_one)
        assert mine_one.stride() == theirs_one.stride()
    if gradients:
        (mine[0] * mine[0]).sum().backward()
        (theirs[0] * theirs[0]).sum().backward()
        torch.testing.assert_close(one.grad, other.grad)


def test_a_write_behind_a_look_at_memory_stays_as_it_lies() -> None:
    def call(x: Tensor, y: Tensor) -> Tensor:
        v = x + y
        v.sum(3).as_strided((2, 2), (1, 2))
        v = v * 2
        v.unsqueeze(0).masked_fill_(v.unsqueeze(0) > 0, 0.5)
        return v

    x = torch.ones(2, 3, 1, 4).to(memory_format=torch.channels_last)
    for way in WAYS:
        torch._dynamo.reset()
        assert way(call)(x, x[:, :1]).stride() == call(x, x[:, :1]).stride() == (12, 1, 12, 3)


def test_a_strided_view_of_a_part_sees_what_is_written_to_it() -> None:
    """Its places lie between those of the part, which are others' where that is no row."""

    def call(x: Tensor) -> Tensor:
        part = (x * 2).unfold(0, 1, 1).chunk(2, 2)[-1]
        strided = part.as_strided((2,), (2,))
        part.neg_()
        return strided + 0

    x = torch.arange(24.0).reshape(4, 3, 2).transpose(0, 2)
    assert torch.equal(irc.compile(call)(x), call(x))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]])
def test_writes_to_one_of_two_arguments_in_one_memory_are_counted(way: Any) -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.contiguous(memory_format=torch.channels_last)
        y += 1
        return x * 2

    torch._dynamo.reset()
    fast = way(run)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such calls run uncompiled
        for _ in range(2):
            x = torch.zeros(2, 2, 3, 2)
            y = x.detach()
            assert torch.equal(fast(x, y), torch.full_like(x, 2))
            assert (x._version, y._version) == (1, 1)
    w = torch.ones(2, 2, 3, 2, requires_grad=True)
    kept = (w * 1).detach()
    product = w * kept
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(kept, kept.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def windows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    v = x * 2
    part = v.unfold(0, 1, 1)[None].permute((3, 0, 1, 2))
    part.copy_(part.flip(1))
    return v, v.t()[0], v.t().as_strided((2,), (2,))


def with_gaps(x: Tensor) -> Tensor:
    v = x * 2
    v.unfold(0, 1, 2)[None].add_(7)
    return v


def pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x * 2
    w = v.unfold(1, 2, 2)
    w *= 3
    v.unfold(1, 3, 4)[..., 1].zero_()
    return v, w


def beyond(x: Tensor) -> Tensor:
    v = x * 2
    v.unfold(0, 2, 3).add_(7)
    v.unfold(1, 3, 3).mul_(2)
    return v


def within(x: Tensor) -> Tensor:
    v = x * 2
    v.unfold(0, 2, 1)[0].add_(7)
    return v


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [windows, with_gaps, pieces, beyond, within])
def test_windows_are_written_to_where_they_lie(
    way: Callable[[Any], Any], call: Callable[[Tensor], Any], grad: bool
) -> None:
    """What torch makes of such a write has zeros between windows, and lies row by row."""
    torch._dynamo.reset()
    fast = way(call)

    def seen(run: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_(grad)
        results = run(x)
        results = [*results] if isinstance(results, tuple) else [results]
        gradients = torch.autograd.grad(sum((y * y).sum() for y in results), x) if grad else ()
        return [*results, *gradients]

    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        for x in (torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(4, 3).t(),
                  torch.arange(40.0).reshape(5, 8)):  # fmt: skip
            for mine, theirs in zip(seen(fast, x), seen(call, x), strict=True):
                assert torch.equal(mine, theirs)
                assert lies_as(mine, theirs)


def lies_as(one: Tensor, other: Tensor) -> bool:
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_window_of_one_element_has_the_stride_of_its_dim(
    way: Callable[[Any], Any], step: int
) -> None:
    """Where memory is written to, too: of windows in a stack it decides how that lies."""

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        part = v[:1].unfold(2, 1, step)
        v.neg_()
        return torch.stack([part, part]), part.clone(memory_format=torch.preserve_format)

    torch._dynamo.reset()
    x = torch.randn(2, 4, 3).transpose(1, 2)
    for mine, theirs in zip(way(call)(x), call(x), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_a_copy_of_an_argument_or_itself_beside_a_write() -> None:
    """The trace that is made functional has a copy, where its argument was none row by row."""

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        v.copy_(x)
        return x.contiguous(), v

    fast, memory = irc.compile(call), torch.arange(30.0)
    for x in (memory[:12].view(4, 3).t(), memory.view(3, 10)[:, :4], memory[3:15].view(3, 4)):
        is_itself = fast(x)[0].data_ptr() == x.data_ptr()
        assert is_itself is x.is_contiguous()
        assert torch.equal(fast(x)[0], x)


def negated(v: Tensor) -> Tensor:
    return v.logical_not_()


def parted(v: Tensor) -> Tensor:
    return v.logical_xor_(torch.ones(1))


def drawn(v: Tensor) -> Tensor:
    return v.bernoulli_(0.5) * 0


def masked_and_turned(v: Tensor) -> Tensor:
    # A trace knows how `v` lies after the last line, and not before it.
    w = v * 1
    w.masked_fill_(torch.ones(1, v.shape[1]) > 0, 2.0)
    return w.t_()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("write", [negated, parted, drawn, masked_and_turned])
def test_the_derivative_is_that_of_the_write(
    write: Callable[[Tensor], Tensor], way: Callable[[Any], Any]
) -> None:
    """Of some writes the op that returns a new value has none, or another."""

    def call(x: Tensor) -> Tensor:
        return write((x * 2).t()).sum() + (x * 3).sum()

    torch._dynamo.reset()
    one, other = (torch.ones(3, 5, requires_grad=True) for _ in range(2))
    mine, theirs = way(call)(one), call(other)
    torch.testing.assert_close(mine, theirs)
    mine.backward()
    theirs.backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("way", WAYS)
def test_a_write_after_a_turn_stays_as_it_lies(way: Callable[[Any], Any]) -> None:
    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        v.t_()
        v.cumsum_(0)
        return v, v.as_strided((15,), (1,))

    torch._dynamo.reset()
    x = torch.rand(3, 5)
    for mine, theirs in zip(way(call)(x), call(x), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_a_write_before_a_turn_is_compiled_whole() -> None:
    def call(x: Tensor) -> Tensor:
        return masked_and_turned(x.t().contiguous().t())

    torch._dynamo.reset()
    x = torch.rand(4, 6)
    run = torch.compile(call, backend="irc", fullgraph=True, options={"strict": True})
    torch.testing.assert_close(run(x), call(x))


def through_a_view(mask: Tensor, rows: Tensor) -> None:
    mask.fill_(True)
    rows[0].add_(1.0)


def through_data(mask: Tensor, rows: Tensor) -> None:
    mask.data.fill_(True)
    rows.data.add_(1.0)


def in_lists(mask: Tensor, rows: Tensor) -> None:
    mask.logical_or_(torch.tensor(True))
    torch._foreach_add_([rows], 1.0)


def said(x: Tensor) -> Tensor:
    return x.clone()


@pytest.fixture(scope="module", autouse=True)
def _effects() -> Iterator[None]:
    with torch.library._scoped_library("irc_written", "FRAGMENT") as library:
        library.define("said(Tensor x) -> Tensor")
        library.impl("said", said, "CPU")
        library.impl("said", torch.empty_like, "Meta")
        handle = _register_effectful_op("irc_written::said", EffectType.ORDERED)
        yield
        handle.destroy()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("write", [through_a_view, through_data, in_lists])
def test_backward_keeps_what_an_argument_was(
    write: Callable[[Tensor, Tensor], None], effect: bool, way: Callable[[Any], Any]
) -> None:
    """What is cheap is computed again in backward, from arguments that the call has written to."""
    if write is through_data and way is WAYS[1]:
        pytest.skip("with open sizes nothing tells of writes by way of .data: torch raises")

    def call(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        if effect:
            torch.ops.irc_written.said(rows)
        y = torch.where(mask == mask, mask, x) + x * (rows > 0.5)
        write(mask, rows)
        return y

    torch._dynamo.reset()
    torch.manual_seed(0)
    one, other = (torch.ones(5, requires_grad=True) for _ in range(2))
    mine, theirs = ([torch.arange(15).view(3, 5) % 2 > 0, torch.rand(3, 5)] for _ in range(2))
    theirs[1].copy_(mine[1])
    result, wanted = way(call)(one, *mine), call(other, *theirs)
    torch.testing.assert_close(result, wanted)
    result.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(one.grad, other.grad)
    for left, right in zip(mine, theirs, strict=True):
        assert torch.equal(left, right)
