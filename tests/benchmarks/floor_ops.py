"""Single ops, small chains, and writes into views."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.floor_case import Case, ints, module, of, randn

# Writes into views.


def _write_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[:, 0] = y[:, 0]
    z[:, 1:3] += y[:, 1:3]
    return z


def _fill_mask(x: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[z < 0] = 0.0
    return z


def _diagonal(x: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.diagonal().mul_(2.0)
    return z


def _zero_borders(x: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[..., 0, :] = 0
    z[..., -1, :] = 0
    z[..., :, 0] = 0
    z[..., :, -1] = 0
    return z


def _stencil(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    z[1:-1, 1:-1] = (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]) / 4
    return z


def _halves(x: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    z[..., ::2] = x[..., 1::2]
    z[..., 1::2] = -x[..., ::2]
    return z


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[:16].mul_(0.99)
    return x.sum()


def _in_place_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[2].copy_(y)
    x[:, 1].add_(1.0)
    return x


def _in_place_transposed(x: torch.Tensor) -> torch.Tensor:
    x.t().mul_(0.999)
    x[0].zero_()
    return x


def _in_place_buffer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.roll(1, 0)
    x[:-1] = x[1:].clone()
    x[-1] = y
    return x.mean(0)


class Counter(nn.Module):
    """A running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Update the mean, and take it off."""
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


class Cache(nn.Module):
    """Keys in a buffer, written one token at a time."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.keys: torch.Tensor
        self.register_buffer("keys", torch.zeros(1, 4, tokens, 32))

    def forward(self, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Write a key and give the sum of all."""
        self.keys.index_copy_(2, at, k)
        return self.keys.sum(2)


VIEWS: Mapping[str, Case] = {
    "view write columns 32x32": of(_write_row, randn(32, 32), randn(32, 32)),
    "view write columns 256x256": of(_write_row, randn(256, 256), randn(256, 256)),
    "view masked fill 64x64": of(_fill_mask, randn(64, 64)),
    "view diagonal 64x64": of(_diagonal, randn(64, 64)),
    "view borders 3x32x32": of(_zero_borders, randn(3, 32, 32)),
    "view stencil 64x64": of(_stencil, randn(64, 64)),
    "view stencil 256x256": of(_stencil, randn(256, 256)),
    "view halves 32x64": of(_halves, randn(32, 64)),
    "in-place slice of input": of(_in_place, randn(16, 16), trains=False),
    "in-place rows of input": of(_in_place_rows, randn(16, 16), randn(16), trains=False),
    "in-place rows of 256x256": of(_in_place_rows, randn(256, 256), randn(256), trains=False),
    "in-place transposed": of(_in_place_transposed, randn(32, 32), trains=False),
    "in-place ring buffer": of(_in_place_buffer, randn(32, 64), randn(64), trains=False),
    "buffer running mean": module(Counter, randn(32, 64), trains=False),
    "buffer key cache": module(
        lambda: Cache(64), randn(1, 4, 1, 32), torch.tensor([5]), trains=False
    ),
}


# Single ops and small chains.

_BITS = randn(32, 32) > 0

OPS: Mapping[str, Case] = {
    "add 16": of(lambda a, b: a + b, randn(16), randn(16)),
    "gelu 32x64": of(F.gelu, randn(32, 64)),
    "swiglu 32x64": of(lambda x: F.silu(x[..., :32]) * x[..., 32:], randn(32, 64)),
    "softmax 32x32": of(lambda x: x.softmax(-1), randn(32, 32)),
    "log softmax 4x1000": of(lambda x: x.log_softmax(-1), randn(4, 1000)),
    "where 32x32": of(lambda x: torch.where(_BITS, x, -x), randn(32, 32)),
    "masked select sum": of(lambda x: (x * _BITS).sum(), randn(32, 32)),
    "cat 4x32": of(lambda *x: torch.cat(x, -1), *(randn(8, 32) for _ in range(4))),
    "stack 4x32": of(lambda *x: torch.stack(x), *(randn(8, 32) for _ in range(4))),
    "transpose 64x64": of(lambda x: x.t().contiguous(), randn(64, 64)),
    "permute 4x8x16": of(lambda x: x.permute(2, 0, 1).contiguous(), randn(4, 8, 16)),
    "roll 32x32": of(lambda x: x.roll((1, 2), (0, 1)), randn(32, 32)),
    "flip 32x32": of(lambda x: x.flip(0, 1), randn(32, 32)),
    "pad reflect 3x16": of(lambda x: F.pad(x, (2, 2, 2, 2), "reflect"), randn(1, 3, 16, 16)),
    "triu 64x64": of(lambda x: x.triu(1), randn(64, 64)),
    "cumsum 32x64": of(lambda x: x.cumsum(-1), randn(32, 64)),
    "cumprod 32x64": of(lambda x: x.cumprod(-1), randn(32, 64).abs() + 0.5),
    "logcumsumexp 32x64": of(lambda x: x.logcumsumexp(-1), randn(32, 64)),
    "sort 32x64": of(lambda x: x.sort(-1)[0], randn(32, 64)),
    "topk 32x64": of(lambda x: x.topk(5, -1)[0], randn(32, 64)),
    "argmax 32x64": of(lambda x: x.argmax(-1), randn(32, 64), trains=False),
    "median 32x64": of(lambda x: x.median(-1)[0], randn(32, 64)),
    "quantile 32x64": of(lambda x: x.quantile(0.9, -1), randn(32, 64)),
    "var mean 32x64": of(lambda x: torch.var_mean(x, -1), randn(32, 64)),
    "logsumexp 32x64": of(lambda x: x.logsumexp(-1), randn(32, 64)),
    "searchsorted 64": of(
        lambda a, x: torch.searchsorted(a.sort()[0], x), randn(64), randn(256), trains=False
    ),
    "unique-free histogram": of(lambda x: torch.histc(x, 16, -3, 3), randn(1000), trains=False),
    "erf chain 64x64": of(lambda x: torch.erf(x).exp().log1p().sqrt(), randn(64, 64)),
    "gamma functions 32x32": of(
        lambda x: torch.lgamma(x.abs() + 1) + torch.digamma(x.abs() + 1), randn(32, 32)
    ),
    "int floor divide": of(lambda x: x // 7 + x % 7, ints(1000, 64, 64), trains=False),
    "bits 64x64": of(lambda x: (x ^ (x >> 3)) & 255, ints(1000, 64, 64), trains=False),
    "bf16 gelu 64x64": of(F.gelu, randn(64, 64, dtype=torch.bfloat16)),
    "f16 scale 64x64": of(lambda x: x * 2 + 1, randn(64, 64, dtype=torch.float16)),
    "linear 1x64": module(lambda: nn.Linear(64, 64), randn(1, 64)),
    "linear 32x256": module(lambda: nn.Linear(256, 256), randn(32, 256)),
    "conv1d 16x64": module(lambda: nn.Conv1d(16, 16, 3, padding=1), randn(1, 16, 64)),
    "conv2d 3x32": module(lambda: nn.Conv2d(3, 16, 3, padding=1), randn(1, 3, 32, 32)),
    "conv2d depthwise 32x16": module(
        lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), randn(1, 32, 16, 16)
    ),
    "conv3d 2x8": module(lambda: nn.Conv3d(2, 4, 3, padding=1), randn(1, 2, 8, 8, 8)),
    "conv transposed 8x16": module(lambda: nn.ConvTranspose2d(8, 8, 4, 2, 1), randn(1, 8, 16, 16)),
    "attention 4x32x16": of(
        F.scaled_dot_product_attention, *(randn(1, 4, 32, 16) for _ in range(3))
    ),
    "attention by hand": of(
        lambda q, k, v: (q @ k.transpose(-1, -2) / math.sqrt(16)).softmax(-1) @ v,
        *(randn(1, 4, 32, 16) for _ in range(3)),
    ),
    "multihead 64 1x16": module(lambda: _Attention(64, 4), randn(1, 16, 64)),
    "bilinear 16": module(lambda: nn.Bilinear(16, 16, 8), randn(8, 16), randn(8, 16)),
    "prelu 8x16": module(lambda: nn.PReLU(8), randn(1, 8, 16, 16)),
    "glu 32x64": of(F.glu, randn(32, 64)),
    "dropout eval": module(lambda: nn.Dropout(0.5).eval(), randn(32, 64)),
    "dropout train": module(lambda: nn.Dropout(0.5), randn(32, 64)),
    "random normal": of(lambda x: x + torch.randn_like(x) * 0.1, randn(32, 64)),
}


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]
