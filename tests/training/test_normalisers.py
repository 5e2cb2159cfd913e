"""Losses over a varying number of tokens: a step in micro-batches is the step of the batch."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.program import Program
from irc.train import training_program
from irc.training.batch_sums import SHARE, SHARES, SUMS, take_batch_sums
from tests.training.models import program_of

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Run = Callable[[ModuleOp, list[Tensor]], list[Tensor]]
Sums = Mapping[str, ModuleOp]
CLASSES = 5
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 4.0, 3.0])


def masked(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    each = F.cross_entropy(logits, y.clamp_min(0), reduction="none")
    return (each * mask).sum() / mask.sum()


def clamped(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    each = F.cross_entropy(logits, y, reduction="none")
    return each.sum() / (y != -100).sum().clamp(min=1)


def times_reciprocal(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return (logits.square().sum(1) * mask).sum() * (1.0 / (mask.sum() + 1e-3))


def shares_of_two(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """A mean over the batch times the fraction of it that counts."""
    return logits.square().mean() * (mask.sum() / torch.ones_like(mask).sum())


def if_any(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    total = mask.sum()
    return torch.where(total > 0, (logits.logsumexp(1) * mask).sum() / total.clamp(min=1e-6), 0.0)


LOSSES: dict[str, Loss] = {
    "ignored": lambda z, y, m: F.cross_entropy(z, y),
    "class weights": lambda z, y, m: F.cross_entropy(z, y, weight=WEIGHT.to(z.dtype)),
    "smoothed": lambda z, y, m: F.cross_entropy(z, y, label_smoothing=0.1),
    "weights, smoothed, another index": lambda z, y, m: F.cross_entropy(
        z, y.clamp_min(2), weight=WEIGHT.to(z.dtype), label_smoothing=0.2, ignore_index=2
    ),
    "nll": lambda z, y, m: F.nll_loss(F.log_softmax(z, 1), y),
    "masked": masked,
    "clamped": clamped,
    "times a reciprocal": times_reciprocal,
    "two terms": lambda z, y, m: F.cross_entropy(z, y) + 0.1 * F.mse_loss(z, z * 0 + m[:, None]),
    "two counts": lambda z, y, m: 2 * F.cross_entropy(z, y) + 0.5 * masked(z, y, m),
    "a fraction": shares_of_two,
    "if any": if_any,
    "quotients": lambda z, y, m: (z.square().sum(1) * (m / m.sum())).sum(),
    "roots": lambda z, y, m: (z.square().sum(1) * m).sum() / m.sum().sqrt() * m.sum().rsqrt(),
    "mean squares": lambda z, y, m: F.mse_loss(z, z.detach() * 0 + 1),
    "binary": lambda z, y, m: F.binary_cross_entropy_with_logits(z.sum(1), m),
    "divergence": lambda z, y, m: F.kl_div(
        z.log_softmax(1), m[:, None].expand(-1, CLASSES) + 1, reduction="batchmean"
    ),
}  # fmt: skip


class Classifier(nn.Module):
    """A layer and a loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.loss = nn.Linear(6, CLASSES), loss

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.layer(x), y, mask)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Rows of very different numbers of tokens that count; the first two samples have none."""
    draw = torch.Generator().manual_seed(2)
    y = torch.randint(0, CLASSES, (8,), generator=draw)
    mask = (torch.rand(8, generator=draw) > 0.3).float()
    y[[0, 1, 6]], mask[[0, 1]], mask[2] = -100, 0.0, 2.5
    return torch.randn(8, 6, generator=draw), y, mask


def step(loss: Loss, count: int) -> tuple[Program, Sums]:
    """Return the program of a micro-batch, and what gives its share of sums over the batch."""
    parts = [part[: 8 // count] for part in batch()]
    program = program_of(Classifier(loss), *parts)
    training_program(program, optimizer=None)
    return program, take_batch_sums(program.module, ("x", "y", "mask"), 1 / count)


def mean_of(program: Program, sums: Sums, count: int, run: Run) -> list[Tensor]:
    """Return the mean of the loss and the gradients of all micro-batches."""
    names = ("x", "y", "mask")
    chunks = [value.chunk(count) for value in batch()]
    parts = [dict(zip(names, each, strict=True)) for each in zip(*chunks, strict=True)]
    shares: dict[str, Tensor] = {}
    if sums:
        own = [call(sums[SUMS], {**program.tensors, **part}, in_float64) for part in parts]
        totals = {
            f"sum.{i}": torch.stack(each).sum(0) for i, each in enumerate(zip(*own, strict=True))
        }
        share_values = call(sums[SHARES], {**program.tensors, **totals}, in_float64)
        shares = {f"{SHARE}{i}": share for i, share in enumerate(share_values)}
    each = [call(program.module, {**program.tensors, **part, **shares}, run) for part in parts]
    return [torch.stack(values).mean(0) for values in zip(*each, strict=True)]


def call(module: ModuleOp, tensors: Mapping[str, Tensor], run: Run) -> list[Tensor]:
    return run(module, [tensors[name] for _, name, _ in arguments(entry(module))])


def in_float64(module: ModuleOp, tensors: list[Tensor]) -> list[Tensor]:
    return run_function(module, tensors, dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_give_the_loss_and_gradients_of_the_batch(name: str) -> None:
    """As eager PyTorch has them for the whole batch."""
    theirs = Classifier(LOSSES[name]).double()
    x, y, mask = batch()
    want = theirs(x.double(), y, mask.double())
    want.backward()
    wanted = [want.detach(), theirs.layer.weight.grad, theirs.layer.bias.grad]
    for count in (1, 2, 4, 8):
        program, sums = step(LOSSES[name], count)
        means = mean_of(program, sums, count, in_float64)
        for value, each in zip(means, wanted, strict=True):
            torch.testing.assert_close(value, each, rtol=1e-6, atol=1e-9, msg=f"{name} / {count}")


@pytest.mark.parametrize("mesh", ["data=2", "data=2,tensor=2"])
@pytest.mark.parametrize("name", ["ignored", "weights, smoothed, another index", "masked"])
def test_the_same_on_a_mesh(name: str, mesh: str) -> None:
    """Whatever lies where; samples are split, so that ranks count different numbers of tokens."""
    wanted = mean_of(*step(LOSSES[name], 1), 1, in_float64)
    for pins in ("", "y = [data = S(0)]; mask = [data = S(0)]; x = [data = S(0)]"):
        program, sums = step(LOSSES[name], 4)
        shard = (
            f'auto-shard{{mesh="{mesh}" cluster=demo-gpus report=false inputs=any pins="{pins}"}}'
        )
        run_passes(program.module, parse_passes(f"canonicalize,{shard},lower-boxing"))
        means = mean_of(
            program,
            sums,
            4,
            lambda module, tensors: run_spmd(
                module, tensors, Mesh.parse(mesh), dtype=torch.float64
            ),
        )
        for value, want in zip(means, wanted, strict=True):
            torch.testing.assert_close(value, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y, m: (z.square().sum(1) * m).sum() * torch.log(m.sum()),
        lambda z, y, m: z.square().sum() * (m / m.sum()).square().sum(),
    ],
    ids=["log of a sum", "a sum of quotients"],
)
def test_what_has_no_share_is_refused_by_name(loss: Loss) -> None:
    assert step(loss, 1)
    with pytest.raises(IrcError, match=r"micro-batches: ('log'|a sum)") as raised:
        step(loss, 2)
    assert raised.value.code == "op-unsupported"
