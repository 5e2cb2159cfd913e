"""Loops over experts that are written out, whatever their modules and their routers are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import ExternOp, id_of, tensor
from irc.dialects.placement import Mesh, Partial
from irc.dialects.text import context
from irc.errors import IrcError, IrcErrors
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.inline_blocks import InlineBlocksPass
from irc.passes.lower_boxing import LowerBoxingPass

COUNT, CHOICES, WIDTH, INNER = 4, 2, 16, 24


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


def bare() -> nn.Module:
    first, last = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
    return nn.Sequential(first, nn.ReLU(inplace=True), nn.Dropout(0.0), last)


class Gated(nn.Module):
    """A gate with a bias, and a product without."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, INNER)
        self.b = nn.Linear(WIDTH, INNER, bias=False)
        self.c = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(x) * F.silu(self.a(x)))


class Joined(nn.Module):
    """Gate and product from one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * INNER)
        self.last = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.last(F.gelu(gate, approximate="tanh") * up)


class Loop(nn.Module):
    """A router and experts; the loop is one of those below."""

    def __init__(
        self,
        loop: Callable[[Loop, Tensor, Tensor, Tensor], Tensor],
        expert: Callable[[], nn.Module] = plain,
    ) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, COUNT)
        self.mlps = nn.ModuleList(expert() for _ in range(COUNT))
        self.loop = loop

    def forward(self, x: Tensor) -> Tensor:
        weights, index = self.router(x).softmax(-1).topk(CHOICES, -1)
        return self.loop(self, x, weights, index)


def by_where(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
    return out


def skipping(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.ones_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        if rows.numel() == 0:
            continue
        out[rows] += expert(x[rows]) * w[rows, slot].unsqueeze(-1)
    return out


def by_one_hot(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out, mask = torch.zeros_like(x), F.one_hot(i, COUNT).permute(2, 1, 0)
    for e in range(COUNT):
        slot, rows = torch.where(mask[e])
        if rows.shape[0] == 0:
            continue
        own = m.mlps[e](x[None, rows].reshape(-1, WIDTH)) * w[rows, slot, None]
        out.index_add_(0, rows, own.to(x.dtype))
    return out


def by_nonzero(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        pairs = (i == e).nonzero()
        rows, slot = pairs[:, 0], pairs[:, 1]
        if len(rows) > 0:
            out = out.index_add(0, rows, expert(x[rows]) * w[rows, slot][:, None])
    return out


def by_nonzero_tuple(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = (i == e).nonzero(as_tuple=True)
        out.index_put_((rows,), w[rows, slot, None] * expert(x[rows]), accumulate=True)
    return out


def by_mask(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        mask = (i == e).any(-1)
        if mask.any():
            out[mask] += expert(x[mask]) * (w * (i == e)).sum(-1)[mask].unsqueeze(-1)
    return out


def by_dense_weights(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    dense, out = torch.zeros(len(x), COUNT, dtype=x.dtype).scatter(1, i, w), torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows = torch.nonzero(dense[:, e], as_tuple=True)[0]
        out.index_add_(0, rows, expert(x[rows]) * dense[rows, e, None])
    return out


def slot_by_slot(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for k in range(CHOICES):
        for e, expert in enumerate(m.mlps):
            mask = i[:, k] == e
            if mask.any():
                out[mask] += w[mask, k : k + 1] * expert(x[mask])
    return out


def of_copies(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    flat, copies = i.view(-1), x.repeat_interleave(CHOICES, dim=0)
    outputs = torch.empty_like(copies)
    for e, expert in enumerate(m.mlps):
        outputs[flat == e] = expert(copies[flat == e])
    return (outputs.view(*w.shape, -1) * w.unsqueeze(-1)).sum(1)


LOOPS = (
    by_where, skipping, by_one_hot, by_nonzero, by_nonzero_tuple, by_mask, by_dense_weights,
    slot_by_slot, of_copies,
)  # fmt: skip


def layers(captured: Captured) -> list[ExternOp]:
    externs = [op for op in captured.program.module.walk() if isinstance(op, ExternOp)]
    return [op for op in externs if op.target == "irc::experts"]


def agrees(model: nn.Module, x: Tensor, mesh: str, count: int) -> None:
    """Check a model's loss and gradients over a mesh, its experts split over axis ``expert``."""
    captured = capture(model, (x,))
    module = captured.program.module
    assert len(layers(captured)) == count
    names = [name for _, name, _ in arguments(entry(module))]
    inputs = [captured.program.tensors.get(name, x) for name in names]
    DifferentiatePass(loss=results(entry(module))[0][1]).apply(context(), module)
    CanonicalizePass().apply(context(), module)
    split = "[expert = B], [expert = B], [expert = B], [expert = S(0)], [expert = S(0)]"
    pins = [f"pin op *{id_of(op)} = {split} -> [expert = P(sum)]" for op in layers(captured)]
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins="\n".join(pins)).apply(context(), module)
    for op in layers(captured):
        placement = tensor(op.outputs[0]).placement
        assert placement is not None
        assert placement["expert"] == Partial("sum")
    LowerBoxingPass().apply(context(), module)
    loss = model(x)
    loss.backward()
    values = run_spmd(module, inputs, Mesh.parse(mesh))
    for (role, name), value in zip(results(entry(module)), values, strict=True):
        wanted = model.get_parameter(name).grad if role == "gradient" else loss.detach()
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-12, msg=name)


class Loss(nn.Module):
    """A residual, and a loss."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.loop = loop

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.loop(x)).square().mean()


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_over_experts_is_one_layer_with_the_gradients_of_eager(
    loop: Callable[..., Tensor],
) -> None:
    torch.manual_seed(0)
    x = torch.randn(10, WIDTH, dtype=torch.float64)
    agrees(Loss(Loop(loop)).double(), x, "expert=2", 2 if loop is slot_by_slot else 1)


@pytest.mark.parametrize("expert", [bare, Gated, Joined], ids=lambda expert: expert.__name__)
def test_experts_are_known_by_what_they_compute(expert: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(10, WIDTH, dtype=torch.float64)
    agrees(Loss(Loop(skipping, expert)).double(), x, "data=1,expert=2", 1)


def test_layers_of_a_model_and_sizes_that_vary() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Loop(skipping) for _ in range(5))).double()
    x = torch.randn(6, WIDTH, dtype=torch.float64)
    captured = capture(model, (x,))
    assert len(layers(captured)) == 1  # of the function that all five call
    module = captured.program.module
    InlineBlocksPass().apply(context(), module)
    inputs = [captured.program.tensors.get(name, x) for _, name, _ in arguments(entry(module))]
    torch.testing.assert_close(run_spmd(module, inputs, Mesh.parse("a=1"))[0], model(x))
    open_ = capture(Loop(by_mask), (torch.randn(6, WIDTH),), dynamic_shapes=({0: "n"},))
    assert len(layers(open_)) == 1


def otherwise(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        if rows.numel() == 0:
            out = out + 1
            continue
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
    return out


def by_length(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None] / len(rows))
    return out


def set_twice(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        mask = (i == e).any(-1)
        out[mask] = expert(x[mask])
    return out


def repeating(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    i, out = torch.cat([i[:, :1], i[:, :1]], 1), torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out[rows] += expert(x[rows]) * w[rows, slot, None]
    return out


def reading_the_result(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows] + out[rows]) * w[rows, slot, None])
    return out


def asking_of_others(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    if (x > 3).any():
        w = w * 2
    return by_where(m, x, w, i)


@pytest.mark.parametrize(
    "loop",
    [otherwise, by_length, set_twice, repeating, reading_the_result, asking_of_others],
    ids=lambda loop: loop.__name__,
)
def test_a_loop_that_computes_something_else_is_refused(loop: Callable[..., Tensor]) -> None:
    with pytest.raises((IrcError, IrcErrors), match="depends on the values"):
        capture(Loop(loop), (torch.randn(10, WIDTH),))


def skipping_one_by_length(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        if len(rows) <= 1:
            continue
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
    return out


def skipping_one_by_count(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        mask = (i == e).any(-1)
        if mask.sum().item() > 1:
            out[mask] += expert(x[mask])
    return out


def another_for_one(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        if rows.numel() == 0:
            continue
        own = expert if rows.numel() > 1 else m.mlps[0]
        out.index_add_(0, rows, own(x[rows]) * w[rows, slot, None])
    return out


def detached_weights(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None].detach())
    return out


def longer(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros(len(x) + 3, WIDTH, dtype=x.dtype)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
    return out


def by_two_names(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    h = x * 2
    a, b = h.view(-1, WIDTH), h.view(-1, WIDTH)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        b.index_add_(0, rows, expert(a[rows]) * w[rows, slot, None])
    return h


def seen_between(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    part, sums = out[:, :4], list[Tensor]()
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
        sums.append(part.sum())
    return out + torch.stack(sums).sum()


def first_in_place(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    start = x * 1
    other, out = start.view(-1, WIDTH), start
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        add = out.index_add if e else out.index_add_
        out = add(0, rows, expert(x[rows]) * w[rows, slot, None])
    return out + other


def of_whole_numbers(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, (expert(x[rows]) * w[rows, slot, None]).int().to(x.dtype))
    return out


def by_whole_weights(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out, w = torch.zeros_like(x), w * 3
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None].long())
    return out


def by_real_index(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    return by_where(m, x, w, i.to(x.dtype) * 0.5)


def by_written_index(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    i = i.clone()
    i[:, 1] = i[:, 0]
    return skipping(m, x, w, i)


def of_draws(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        noisy = x + torch.randn_like(x)
        out.index_add_(0, rows, expert(noisy[rows]) * w[rows, slot, None])
    return out


@pytest.mark.parametrize(
    "loop",
    [
        of_whole_numbers, by_whole_weights, by_written_index,
        skipping_one_by_length, skipping_one_by_count, another_for_one, detached_weights,
        longer, by_two_names, seen_between, first_in_place,
    ],
    ids=lambda loop: loop.__name__,
)  # fmt: skip
def test_a_loop_that_one_layer_would_not_equal_is_left_alone(loop: Callable[..., Tensor]) -> None:
    with pytest.raises((IrcError, IrcErrors)):
        capture(Loop(loop), (torch.randn(10, WIDTH),))


class Narrow(nn.Sequential):
    """Its column would be spread over those of the result."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, 1))


class Overwritten(Gated):
    """A view of what the activation overwrites is read."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        v = h.view(-1, INNER)
        return self.c(F.silu(h, inplace=True) * v)


def adding_to_its_rows(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        x = x.index_add(0, rows, expert(x[rows]) * w[rows, slot, None])
    return x


def adding_to_all_rows(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out = out.index_add(0, rows, expert(x[rows]) * w[rows, slot, None])
        x = x + out
    return out


def in_place(m: Loop, x: Tensor, w: Tensor, i: Tensor) -> Tensor:
    out = x.clone()
    for e, expert in enumerate(m.mlps):
        rows, slot = torch.where(i == e)
        out.index_add_(0, rows, expert(out[rows]) * w[rows, slot, None])
    return out


@pytest.mark.parametrize("loop", [adding_to_its_rows, adding_to_all_rows, in_place])
def test_experts_that_take_turns_give_what_eager_gives(loop: Callable[..., Tensor]) -> None:
    model, x = Loop(loop).double(), torch.randn(12, WIDTH, dtype=torch.float64)
    captured = capture(model, (x,))
    assert len(layers(captured)) == COUNT
    module = captured.program.module
    names = [name for _, name, _ in arguments(entry(module))]
    inputs = [captured.program.tensors.get(name, x) for name in names]
    (value,) = run_spmd(module, inputs, Mesh.parse("data=1"))
    torch.testing.assert_close(value, model(x).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("expert", [Narrow, Overwritten], ids=lambda expert: expert.__name__)
def test_experts_that_one_layer_would_not_equal_are_left_alone(
    expert: Callable[[], nn.Module],
) -> None:
    with pytest.raises((IrcError, IrcErrors)):
        capture(Loop(skipping, expert), (torch.randn(10, WIDTH),))


def test_other_experts_are_refused_with_what_is_supported() -> None:
    def expert() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, INNER), nn.LayerNorm(INNER), nn.Linear(INNER, WIDTH))

    for loop in (by_where, skipping):
        with pytest.raises((IrcError, IrcErrors), match="two Linear layers with SiLU, GELU or"):
            capture(Loop(loop, expert), (torch.randn(10, WIDTH),))


def test_each_expert_of_a_loop_has_its_own_draw() -> None:
    program = capture(Loop(of_draws), (torch.randn(10, WIDTH),)).program
    ops = [op.name for op in entry(program.module).body.block.ops]
    assert ops.count("flow.random") == COUNT


def test_an_index_of_real_numbers_is_read_as_it_is() -> None:
    """Half of an odd number is no expert's."""
    torch.manual_seed(0)
    module, x = Loop(by_real_index).double(), torch.randn(10, WIDTH, dtype=torch.float64)
    program = capture(module, (x,)).program
    held = [program.tensors.get(name, x) for _, name, _ in arguments(entry(program.module))]
    (result,) = run_function(program.module, held)
    torch.testing.assert_close(result, module(x), rtol=1e-12, atol=1e-12)
