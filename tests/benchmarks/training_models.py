"""Models that are trained under many plans: those of the pipelines, and more."""

# pyright: basic
from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from tests.benchmarks import pipeline_models
from tests.benchmarks.pipeline_models import VOCABULARY, Attention, Chain, Layer

SAMPLES, TOKENS, SIDE = 8, 16, 16
TABLES, BAG, ROWS, FEATURES = 4, 3, 512, 13
"""Of the DLRM: tables, indices of a bag, rows of a table, numbers beside them."""


class Patches(nn.Module):
    """Sixteen patches of an image, and their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.randn(16, width) / 50)

    def forward(self, image: Tensor) -> Tensor:
        return self.cut(image).flatten(2).transpose(1, 2) + self.places


class Look(Layer):
    """A layer of a ViT: each patch sees all."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attention = Attention(width, 4, causal=False)


class Pooled(nn.Module):
    """Logits of the mean of the patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x).mean(1))


class Tables(nn.Module):
    """The features of a DLRM: a network of the numbers, and a bag of rows of each table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        self.up, self.down = nn.Linear(FEATURES, 64), nn.Linear(64, width)

    def forward(self, numbers: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        dense = self.down(torch.relu(self.up(numbers)))
        rows = [table(index[:, i]) for i, table in enumerate(self.tables)]
        return dense, torch.stack([dense, *rows], 1)


class Products(nn.Module):
    """Products of a DLRM's features in pairs, beside the dense ones."""

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        pairs = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        return torch.cat([dense, pairs[:, i, j]], 1)


class Top(nn.Module):
    """A layer of the network on top of a DLRM."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inner, 64), nn.Linear(64, outer)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Mixtral(nn.Module):
    """The logits of transformers' Mixtral, four layers of four experts."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.MixtralConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=VOCABULARY, num_local_experts=4, use_cache=False,
            max_position_embeddings=64,
        )  # fmt: skip
        self.net = transformers.MixtralForCausalLM(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(ids).logits.flatten(0, 1)


class Placed(nn.Module):
    """A chain whose sequences a pin divides between layers.

    Args:
        layers: of the chain.
        placement: of what a layer gives, where that has samples, tokens and features.
    """

    def __init__(self, layers: nn.ModuleList, placement: str) -> None:
        super().__init__()
        self.layers, self.placement = layers, placement

    def forward(self, *values: Any) -> Any:
        import irc

        for layer in self.layers:
            values = layer(*values)
            values = values if isinstance(values, tuple) else (values,)
            values = tuple(irc.place(x, self.placement) if x.ndim == 3 else x for x in values)
        return values[0]


class WithLoss(nn.Module):
    """A model that gives its loss, as a training loop calls it.

    Args:
        net: the model; what it gives and targets make the loss.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *batch: Tensor) -> Tensor:
        return pipeline_models.loss(self.net(*batch[:-1]), batch[-1])


def _tokens(draw: torch.Generator) -> tuple[Tensor, ...]:
    ids = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=draw)
    return ids, (3 * ids + 1) % VOCABULARY


def _images(draw: torch.Generator) -> tuple[Tensor, ...]:
    image = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=draw)
    return image, torch.randint(12, (SAMPLES,), generator=draw)


def _clicks(draw: torch.Generator) -> tuple[Tensor, ...]:
    index = torch.randint(ROWS, (SAMPLES, TABLES, BAG), generator=draw)
    numbers = torch.randn(SAMPLES, FEATURES, generator=draw)
    return numbers, index, index.sum((1, 2)) % 2


def _vit(width: int = 128) -> Chain:
    return Chain([Patches(width), *(Look(width) for _ in range(4)), Pooled(width)])


def _dlrm(width: int = 64) -> Chain:
    pairs = TABLES * (TABLES + 1) // 2
    return Chain([Tables(width), Products(), Top(width + pairs, 64), Top(64, 2)])


def _chain(name: str) -> Callable[[], nn.Module]:
    return pipeline_models.MODELS[name]


COLUMNS = ("*.q.weight", "*.k.weight", "*.v.weight", "*.up.weight", "*.up.bias")
ROWS_OF = ("*.o.weight", "*.down.weight")


@dataclass(frozen=True)
class Model:
    """A model of the table.

    Attributes:
        build: makes it, with random weights.
        batch: draws a batch, targets last.
        columns: globs of what tensor parallelism divides by columns of products (dim 0).
        rows: and by rows (dim 1).
        tables: what else is divided there, by dim 0.
        experts: globs of the weights of experts, whose dim 0 these are.
        inputs: what the step calls a batch, targets last.
        is_chain: it can be cut into stages, and pinned between layers.
        has_sequence: there are tokens or patches.
        is_double: it computes in float64 where its weights are.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, ...]] = _tokens
    columns: tuple[str, ...] = COLUMNS
    rows: tuple[str, ...] = ROWS_OF
    tables: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("values_0", "target")
    is_chain: bool = True
    has_sequence: bool = True
    is_double: bool = True


MODELS: dict[str, Model] = {
    "gpt": Model(_chain("gpt")),
    "llama": Model(_chain("llama"), columns=(*COLUMNS, "*.gate.weight", "*.gate.bias")),
    "vit": Model(_vit, _images),
    "t5": Model(_chain("t5")),
    "experts": Model(
        _chain("experts"),
        columns=(*COLUMNS[:3], "*.up.weight"),
        experts=("*.{2,4,6}.up", "*.{2,4,6}.down"),
    ),
    "dlrm": Model(
        _dlrm, _clicks, ("*.up.weight", "*.up.bias"), ("*.down.weight",), ("*.tables.*.weight",),
        inputs=("values_0", "values_1", "target"),
        has_sequence=False,
    ),
    "mixtral": Model(
        Mixtral,
        columns=("*_proj.weight",),
        rows=("*.o_proj.weight",),
        experts=("*.experts.gate_up_proj", "*.experts.down_proj"),
        inputs=("ids", "target"),
        is_chain=False,
        is_double=False,
    ),
}  # fmt: skip
"""Transformers' Mixtral norms, rotates and routes in float32 whatever its weights are."""


def model(name: str, dtype: str) -> nn.Module:
    """Return a model with the same weights in every process, in training mode."""
    torch.manual_seed(0)
    return MODELS[name].build().to(getattr(torch, dtype)).train()


def batch(name: str, number: int, dtype: str) -> tuple[Tensor, ...]:
    """Return a batch and its targets, the same in every process."""
    # From 0 on, one token of 384 is as near to two experts as float32 can tell.
    values = MODELS[name].batch(torch.Generator().manual_seed(100 + number))
    kind = getattr(torch, dtype)
    return tuple(x.to(kind) if x.is_floating_point() else x for x in values)


def stored(dtype: str) -> str:
    """Return the dtype of the weights of a model that is trained in a dtype."""
    return "float32" if dtype == "bfloat16" else dtype


def settings(dtype: str) -> dict[str, Any]:
    """Return the numbers of AdamW.

    With torch's eps what is zero but for rounding moves a full step in any direction, and at 1e-3
    eager training of the experts is 2e-4 from float64: at 1e-4 the losses say something of a plan.
    """
    rate = 1e-3 if dtype == "bfloat16" else 1e-4
    return {"lr": rate, "eps": 1e-4, "betas": (0.9, 0.999), "weight_decay": 0.01}


def eager(name: str, dtype: str, steps: int) -> dict[str, Any]:
    """Return what one process makes of a model.

    ``losses`` are those of each step, ``gradients`` those of the first, ``parameter bytes`` the
    size of all. For bfloat16 losses are those of float32, and ``spread`` says how far eager
    bfloat16 may be from these: the root of the mean square, by :func:`next_at_most`.
    """
    losses, gradients, size = _trained(name, dtype, steps)
    reference = {"losses": losses, "gradients": gradients, "parameter bytes": size}
    if dtype == "bfloat16":
        others = (_trained(name, dtype, steps, *own, cast=True)[0] for own in SUMS)
        errors = [float((other - losses).square().mean().sqrt()) for other in others]
        reference["spread"] = next_at_most(errors)
    return reference


def next_at_most(draws: Sequence[float]) -> float:
    """Return what one more draw of the same kind exceeds once in a thousand times.

    The farthest of nine would be exceeded by one of seven more in seven of sixteen times. This is
    the prediction interval of one observation (Hahn and Meeker 1991, Statistical Intervals, 4.7),
    by Student's t.

    >>> round(next_at_most([1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1, 0.9]), 2)
    1.41
    """
    times = STUDENT * math.sqrt(1 + 1 / len(draws))
    return statistics.mean(draws) + times * statistics.stdev(draws)


SUMS = ((1, 0), *product((2, 4), range(4)))
"""In how many parts eager adds up a batch, and in which order it takes the samples.

What ranks add up is another sum of the same gradients, and so is each of these: of the DLRM the
errors of 200 steps differ by a third from one to another (0.0115 to 0.0151), as much as plans do.
"""


STUDENT = 4.501
"""Student's t at 0.999, of eight degrees of freedom: one less than :data:`SUMS` has."""


def _ordered(values: tuple[Tensor, ...], order: int) -> tuple[Tensor, ...]:
    """Return a batch with its samples in another order; 0: as they are."""
    if not order:
        return values
    places = torch.randperm(len(values[0]), generator=torch.Generator().manual_seed(order))
    return tuple(x[places] for x in values)


def _trained(
    name: str, dtype: str, steps: int, parts: int = 1, order: int = 0, *, cast: bool = False
) -> tuple[Tensor, dict[str, Tensor], int]:
    net = model(name, stored(dtype))
    optimizer = torch.optim.AdamW(net.parameters(), **settings(dtype))
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for number in range(steps):
        whole = [x.chunk(parts) for x in _ordered(batch(name, number, stored(dtype)), order)]
        losses.append(0.0)
        for *inputs, target in zip(*whole, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                value = pipeline_models.loss(net(*inputs), target) / parts
            value.backward()
            losses[-1] += value.item()
        if not number:
            gradients = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    return torch.tensor(losses, dtype=torch.float64), gradients, size
