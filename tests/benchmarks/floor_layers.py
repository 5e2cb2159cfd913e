"""Layers and parts of training: norms, graphs, recurrent nets, losses, updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.benchmarks.floor_case import Case, ints, module, of, randn

# Norms, and weights that have one.

NORMS: Mapping[str, Case] = {
    "spectral norm linear 64": module(
        lambda: parametrizations.spectral_norm(nn.Linear(64, 64)), randn(8, 64)
    ),
    "spectral norm conv 16": module(
        lambda: parametrizations.spectral_norm(nn.Conv2d(16, 16, 3)), randn(1, 16, 16, 16)
    ),
    "spectral norm eval 64": module(
        lambda: parametrizations.spectral_norm(nn.Linear(64, 64)).eval(), randn(8, 64)
    ),
    "weight norm linear 64": module(
        lambda: parametrizations.weight_norm(nn.Linear(64, 64)), randn(8, 64)
    ),
    "weight norm conv 16": module(
        lambda: parametrizations.weight_norm(nn.Conv1d(16, 16, 3)), randn(2, 16, 64)
    ),
    "orthogonal linear 32": module(
        lambda: parametrizations.orthogonal(nn.Linear(32, 32)), randn(8, 32)
    ),
    "layer norm 16x64": module(lambda: nn.LayerNorm(64), randn(16, 64)),
    "layer norm 256x768": module(lambda: nn.LayerNorm(768), randn(256, 768)),
    "rms norm 16x64": module(lambda: nn.RMSNorm(64), randn(16, 64)),
    "group norm 8x16": module(lambda: nn.GroupNorm(4, 8), randn(2, 8, 16, 16)),
    "instance norm 8x16": module(lambda: nn.InstanceNorm2d(8, affine=True), randn(2, 8, 16, 16)),
    "batch norm train 16x16": module(lambda: nn.BatchNorm2d(16), randn(4, 16, 16, 16)),
    "batch norm eval 16x16": module(lambda: nn.BatchNorm2d(16).eval(), randn(4, 16, 16, 16)),
    "batch norm 1d 32x64": module(lambda: nn.BatchNorm1d(64), randn(32, 64)),
    "local response norm": module(lambda: nn.LocalResponseNorm(3), randn(2, 8, 16, 16)),
    "normalize rows 64x32": of(F.normalize, randn(64, 32)),
    "clip by norm": of(lambda x: x * (1.0 / (x.norm() + 1e-6)).clamp(max=1.0), randn(64, 64)),
    "standardise 64x32": of(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5), randn(64, 32)),
}


# Graphs: gathers and scatters.

_EDGES = ints(200, 2, 1000)
_FEW = ints(40, 2, 120)


def _conv_graph(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    source, target = _EDGES
    h = x @ w
    return torch.zeros_like(h).index_add(0, target, h[source]).relu()


def _conv_graph_few(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    source, target = _FEW
    h = x @ w
    return torch.zeros_like(h).index_add(0, target, h[source]).relu()


def _normed_graph(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    source, target = _EDGES
    degree = torch.zeros(200).scatter_add(0, target, torch.ones(1000)).clamp(min=1).rsqrt()
    weight = degree[source] * degree[target]
    h = x @ w
    return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])


def _attention_graph(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    source, target = _EDGES
    h = x @ w
    score = F.leaky_relu((torch.cat([h[source], h[target]], -1) * a).sum(-1), 0.2)
    top = torch.full((200,), -1e9).scatter_reduce(0, target, score, "amax")
    e = (score - top[target]).exp()
    total = torch.zeros(200).index_add(0, target, e)
    return torch.zeros_like(h).index_add(0, target, h[source] * (e / total[target])[:, None])


def _scatter(reduce: str) -> Callable[..., Any]:
    index = ints(50, 400)[:, None].expand(-1, 16).contiguous()
    return lambda x: torch.zeros(50, 16).scatter_reduce(0, index, x, reduce, include_self=False)


GRAPHS: Mapping[str, Case] = {
    "graph convolution 200x32": of(_conv_graph, randn(200, 32), randn(32, 32)),
    "graph convolution 40x16": of(_conv_graph_few, randn(40, 16), randn(16, 16)),
    "graph convolution normed": of(_normed_graph, randn(200, 32), randn(32, 32)),
    "graph attention 200x16": of(_attention_graph, randn(200, 16), randn(16, 16), randn(32)),
    "scatter sum 400x16": of(_scatter("sum"), randn(400, 16)),
    "scatter mean 400x16": of(_scatter("mean"), randn(400, 16)),
    "scatter max 400x16": of(_scatter("amax"), randn(400, 16)),
    "scatter add 1000": of(lambda x: torch.zeros(200).scatter_add(0, _EDGES[0], x), randn(1000)),
    "index add 1000x32": of(
        lambda x: torch.zeros(200, 32).index_add(0, _EDGES[0], x), randn(1000, 32)
    ),
    "index put accumulate": of(
        lambda x: torch.zeros(200, 16).index_put((_EDGES[0],), x, accumulate=True), randn(1000, 16)
    ),
    "index select 1000x32": of(lambda x: x.index_select(0, _EDGES[0]), randn(200, 32)),
    "gather 64x32": of(lambda x: x.gather(1, _COLUMNS), randn(64, 32)),
    "take along 64x32": of(lambda x: torch.take_along_dim(x, x.argsort(-1), -1), randn(64, 32)),
    "bincount 1000": of(lambda x: torch.bincount(x, minlength=200), _EDGES[0], trains=False),
    "masked mean 16x32x64": of(
        lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True),
        randn(16, 32, 64),
        randn(16, 32).sigmoid(),
    ),
    "segment by cumsum": of(lambda x: torch.diff(x.cumsum(0)[::10], dim=0), randn(1000, 8)),
}
_COLUMNS = ints(32, 64, 8)


# Recurrent nets.


class Cells(nn.Module):
    """A cell in a loop of Python."""

    def __init__(self, cell: nn.Module, steps: int) -> None:
        super().__init__()
        self.cell, self.steps = cell, steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the steps; the state starts at zero."""
        state: Any = None
        for t in range(self.steps):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


def _net(kind: type[nn.RNNBase], width: int, hidden: int, *shape: int, **options: Any) -> Case:
    return module(lambda: kind(width, hidden, batch_first=True, **options), randn(*shape, width))


RECURRENT: Mapping[str, Case] = {
    "lstm 16 1x10": _net(nn.LSTM, 16, 16, 1, 10),
    "lstm 64 4x20": _net(nn.LSTM, 64, 64, 4, 20),
    "lstm 128 1x50": _net(nn.LSTM, 128, 128, 1, 50),
    "lstm 128 16x32": _net(nn.LSTM, 128, 128, 16, 32),
    "lstm 2 layers 64 4x20": _net(nn.LSTM, 64, 64, 4, 20, num_layers=2),
    "lstm both ways 64 4x20": _net(nn.LSTM, 64, 64, 4, 20, bidirectional=True),
    "lstm one step 64": _net(nn.LSTM, 64, 64, 1, 1),
    "gru 16 1x10": _net(nn.GRU, 16, 16, 1, 10),
    "gru 64 4x20": _net(nn.GRU, 64, 64, 4, 20),
    "gru 128 1x50": _net(nn.GRU, 128, 128, 1, 50),
    "gru both ways 64 4x20": _net(nn.GRU, 64, 64, 4, 20, bidirectional=True),
    "rnn 64 4x20": _net(nn.RNN, 64, 64, 4, 20),
    "rnn 128 1x50": _net(nn.RNN, 128, 128, 1, 50),
    "lstm cells 32 8x8": module(lambda: Cells(nn.LSTMCell(32, 32), 8), randn(8, 8, 32)),
    "gru cells 32 8x8": module(lambda: Cells(nn.GRUCell(32, 32), 8), randn(8, 8, 32)),
    "lstm cell 64": module(lambda: Cells(nn.LSTMCell(64, 64), 1), randn(4, 1, 64)),
    "gru cell 64": module(lambda: Cells(nn.GRUCell(64, 64), 1), randn(4, 1, 64)),
}


# Losses.

_CLASSES, _SIGNS = ints(10, 32), torch.sign(randn(32))
_WORDS = ints(1000, 128)

LOSSES: Mapping[str, Case] = {
    "cross entropy 32x10": of(lambda x: F.cross_entropy(x, _CLASSES), randn(32, 10)),
    "cross entropy smoothed": of(
        lambda x: F.cross_entropy(x, _CLASSES, label_smoothing=0.1), randn(32, 10)
    ),
    "cross entropy 128x1000": of(lambda x: F.cross_entropy(x, _WORDS), randn(128, 1000)),
    "nll 32x10": of(lambda x: F.nll_loss(F.log_softmax(x, -1), _CLASSES), randn(32, 10)),
    "bce logits 32x10": of(
        F.binary_cross_entropy_with_logits, randn(32, 10), randn(32, 10).sigmoid()
    ),
    "mse 64x64": of(F.mse_loss, randn(64, 64), randn(64, 64)),
    "smooth l1 64x64": of(F.smooth_l1_loss, randn(64, 64), randn(64, 64).flip(0)),
    "huber 64x64": of(F.huber_loss, randn(64, 64), randn(64, 64).flip(0)),
    "kl 32x10": of(
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        randn(32, 10),
        randn(32, 10).flip(0),
    ),
    "cosine embedding 32x64": of(
        lambda x, y: F.cosine_embedding_loss(x, y, _SIGNS), randn(32, 64), randn(32, 64).flip(0)
    ),
    "triplet 32x64": of(
        F.triplet_margin_loss, randn(32, 64), randn(32, 64).flip(0), randn(32, 64).flip(1)
    ),
    "hinge 32": of(lambda x: F.soft_margin_loss(x, _SIGNS), randn(32)),
    "focal 64x10": of(lambda x: ((1 - x.sigmoid()) ** 2 * F.softplus(-x)).mean(), randn(64, 10)),
    "dice 4x64": of(
        lambda x, y: 1 - 2 * (x.sigmoid() * y).sum() / (x.sigmoid().sum() + y.sum()),
        randn(4, 64),
        randn(4, 64).sigmoid(),
    ),
    "ctc 20x4x10": of(
        lambda x: F.ctc_loss(x.log_softmax(-1), _TARGETS, (20,) * 4, (5,) * 4), randn(20, 4, 10)
    ),
    "contrastive 32x64": of(
        lambda a, b: F.cross_entropy(F.normalize(a) @ F.normalize(b).T / 0.1, _EACH),
        randn(32, 64),
        randn(32, 64).flip(0),
    ),
}
_TARGETS = ints(9, 4, 5) + 1
_EACH = torch.arange(32)


# Updates of parameters, written in place.


@torch.no_grad()
def _sgd(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    m.mul_(0.9).add_(g)
    p.add_(m, alpha=-1e-4)
    return p


@torch.no_grad()
def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-4)
    return p


def _ema(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.lerp(p, q, 0.01)


@torch.no_grad()
def _rmsprop(p: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(g, v.sqrt() + 1e-8, value=-1e-4)
    return p


UPDATES: Mapping[str, Case] = {
    "sgd 64x64": of(_sgd, randn(64, 64), randn(64, 64), randn(64, 64), trains=False),
    "sgd 512x512": of(_sgd, *(randn(512, 512) for _ in range(3)), trains=False),
    "adam 64x64": of(_adam, *(randn(64, 64).abs() for _ in range(4)), trains=False),
    "adam 512x512": of(_adam, *(randn(512, 512).abs() for _ in range(4)), trains=False),
    "rmsprop 64x64": of(_rmsprop, *(randn(64, 64).abs() for _ in range(3)), trains=False),
    "ema 64x64": of(_ema, randn(64, 64), randn(64, 64)),
    "total norm of 8": of(
        lambda *g: torch.stack([x.norm() for x in g]).norm(), *(randn(32, 32) for _ in range(8))
    ),
}
