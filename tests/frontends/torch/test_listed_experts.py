"""Experts that are modules in a list, run in a loop on the tokens that chose them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import ExternOp, id_of, tensor
from irc.dialects.placement import Mesh, Partial
from irc.dialects.text import context
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.listed_experts import recognised
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass


class Expert(nn.Module):
    """A gated pair of matmuls."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act_fn(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """The sparse block of Mixtral as transformers had it before version 5."""

    scaled = True
    factor = 1.0

    def __init__(self, width: int = 16, inner: int = 20, count: int = 4) -> None:
        super().__init__()
        self.num_experts, self.top_k = count, 2
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(count))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = hidden_states.shape
        hidden_states = hidden_states.view(-1, width)
        logits = self.gate(hidden_states)
        weights, chosen = F.softmax(logits, 1, dtype=torch.float).topk(self.top_k, -1)
        if self.scaled:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = self.factor * weights.to(hidden_states.dtype)
        output = torch.zeros_like(hidden_states)
        mask = F.one_hot(chosen, self.num_experts).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, row = torch.where(mask[number])
            own = expert(hidden_states[None, row].reshape(-1, width)) * weights[row, place, None]
            output.index_add_(0, row, own.to(hidden_states.dtype))
        return output.reshape(batch, length, width), logits


class Unscaled(Block):
    """Weights of a token's experts as the softmax gives them (Qwen2-MoE, OLMoE)."""

    scaled = False


class Doubled(Block):
    """Looks the same, and is not."""

    factor = 2.0


class Model(nn.Module):
    """Blocks with residuals, and a loss."""

    def __init__(self, kind: type[Block] = Block, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)[0]
        return x.square().mean()


def experts(captured: Captured) -> list[ExternOp]:
    externs = [op for op in captured.program.module.walk() if isinstance(op, ExternOp)]
    return [op for op in externs if op.plain["target"] == "irc::experts"]


@pytest.mark.parametrize("kind", [Block, Unscaled])
def test_a_block_is_recognised_by_what_it_computes(kind: type[Block]) -> None:
    mixture = recognised(kind())
    assert mixture is not None
    assert (mixture.scaled, mixture.choices, mixture.scores) == (kind.scaled, 2, True)
    assert recognised(kind().to("meta")) == mixture
    assert recognised(Doubled()) is None
    shared = kind()
    shared.shared_expert = nn.Linear(16, 16)
    assert recognised(shared) is None
    biased = kind()
    biased.experts[1].w2 = nn.Linear(20, 16)
    assert recognised(biased) is None


class Clamped(Expert):
    """Numbers that are far larger than those of most models are cut."""

    def forward(self, x: Tensor) -> Tensor:
        return self.w2((self.act_fn(self.w1(x)) * self.w3(x)).clamp(-1e3, 1e3))


class Dead(Expert):
    """What is very small is dropped."""

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act_fn(self.w1(x)) * F.hardshrink(self.w3(x), 1e-4))


class Still(Expert):
    """Trains one of its matrices less than it would."""

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act_fn(self.w1(x)).detach() * self.w3(x))


@pytest.mark.parametrize("expert", [Clamped, Dead, Still])
def test_experts_that_differ_at_odd_numbers_or_in_gradients_are_not_taken(
    expert: type[Expert],
) -> None:
    block = Block()
    block.experts = nn.ModuleList(expert(16, 20) for _ in range(4))
    assert recognised(block) is None


def test_a_router_that_drops_small_weights_is_not_taken() -> None:
    class Dropping(Block):
        def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
            output, logits = super().forward(hidden_states)
            least = logits.softmax(-1).topk(2, -1)[0][:, 1].view(*output.shape[:2], 1)
            return torch.where(least < 1e-3, output * 0.5, output), logits

    assert recognised(Dropping()) is None


def test_another_mixture_is_traced_as_it_is_written() -> None:
    before = Block.forward
    assert len(experts(capture(Model(Doubled), (torch.randn(2, 8, 16),)))) == 1
    capture(Model(), (torch.randn(2, 8, 16),))
    assert Block.forward is before


@pytest.mark.parametrize(
    ("mesh", "layers"),
    [
        ("expert=4", 1),
        ("data=2,expert=2", 1),
        pytest.param("expert=4", 5, marks=pytest.mark.slow),
    ],
)
def test_experts_in_a_list_are_split_over_ranks(mesh: str, layers: int) -> None:
    torch.manual_seed(0)
    model, x = Model(layers=layers).double(), torch.randn(2, 8, 16, dtype=torch.float64)
    captured = capture(model, (x,))
    module = captured.program.module
    names = [name for _, name, _ in arguments(entry(module))]
    inputs = [captured.program.tensors.get(name, x) for name in names]
    DifferentiatePass(loss=results(entry(module))[0][1]).apply(context(), module)
    CanonicalizePass().apply(context(), module)
    split = "[expert = B], [expert = B], [expert = B], [expert = S(0)], [expert = S(0)]"
    pins = "\n".join(
        f"pin op *{id_of(op)} = {split} -> [expert = P(sum)]" for op in experts(captured)
    )
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    for op in experts(captured):
        placement = tensor(op.outputs[0]).placement
        assert placement is not None
        assert placement["expert"] == Partial("sum")
    LowerBoxingPass().apply(context(), module)
    outputs = run_spmd(module, inputs, Mesh.parse(mesh))
    loss = model(x)
    loss.backward()
    for (role, name), value in zip(results(entry(module)), outputs, strict=True):
        wanted = model.get_parameter(name).grad if role == "gradient" else loss.detach()
        if wanted is None:
            assert not value.any()
            continue
        # Weights of the router are of float32.
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-8, msg=name)
