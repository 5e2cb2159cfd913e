"""The programs of the micro benchmark: what they compute, and the work that they cannot avoid.

Tensors are larger than the caches, and results smaller than 32 MiB: above, the C library maps fresh
memory for each, and the kernel of the operating system clears it page by page, which takes four
times as long as computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        make: returns the module and its inputs.
        flops: multiply-adds count two; only what a matmul engine could do.
        kind: what the row is about: the table groups by it.
    """

    kind: str
    make: Callable[[], tuple[nn.Module, Tensors]]
    flops: float = 0.0


class Fn(nn.Module):
    """A function with parameters that irc may prepare once."""

    def __init__(self, fn: Callable[..., Any], *weights: torch.Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the function with the inputs, then the weights."""
        return self.fn(*inputs, *self.weights)


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _of(
    kind: str, fn: Callable[..., Any], inputs: tuple[tuple[int, ...], ...],
    weights: tuple[tuple[int, ...], ...] = (), flops: float = 0.0,
) -> Case:  # fmt: skip
    def make() -> tuple[nn.Module, Tensors]:
        return Fn(fn, *(_randn(*s) for s in weights)), tuple(_randn(*s) for s in inputs)

    return Case(kind, make, flops)


def triad(b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """STREAM triad."""
    return b + 3.0 * c


def rms_residual(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, give it on, and normalise it: Llama's way between blocks."""
    total = x + r
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, total * scale * w


def _cross_entropy(rows: int, classes: int) -> Case:
    def make() -> tuple[nn.Module, Tensors]:
        targets = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(0))
        return Fn(F.cross_entropy), (_randn(rows, classes), targets)

    return Case("cross-entropy", make)


def _attention(batch: int, heads: int, tokens: int, width: int, *, causal: bool) -> Case:
    shape = (batch, heads, tokens, width)
    flops = 4.0 * batch * heads * tokens * tokens * width * (0.5 if causal else 1.0)
    return _of(
        "attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        (shape, shape, shape), flops=flops,
    )  # fmt: skip


def _attention_backward(heads: int, tokens: int, width: int, *, causal: bool) -> Case:
    """The gradients of attention by torch's flash kernel, given what its forward has saved."""

    def make() -> tuple[nn.Module, Tensors]:
        g, q, k, v = (
            _randn(1, heads, tokens, width + i)[..., :width].contiguous() for i in range(4)
        )
        aten = torch.ops.aten
        forward = aten._scaled_dot_product_flash_attention_for_cpu
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        y, sums = (x.contiguous() for x in forward(q, k, v, 0.0, causal))
        return Fn(lambda *operands: backward(*operands, 0.0, causal)), (g, q, k, v, y, sums)

    # Five products where forward has two.
    flops = 10.0 * heads * tokens * tokens * width * (0.5 if causal else 1.0)
    return Case("attention backward", make, flops)


def _linear(m: int, n: int, k: int) -> Case:
    return _of("skinny matmul", F.linear, ((m, k),), ((n, k), (n,)), flops=2.0 * m * n * k)


def _turned(shape: tuple[int, ...], *order: int) -> Case:
    return _of("transpose", lambda x: x.permute(order).contiguous(), (shape,))


def _gelu(rows: int, width: int) -> Case:
    return _of("gelu-bias", lambda x, b: F.gelu(x + b), ((rows, width),), ((width,),))


def _norm(rows: int, width: int) -> Case:
    return _of(
        "layer norm", lambda x, w, b: F.layer_norm(x, (width,), w, b), ((rows, width),),
        ((width,), (width,)),
    )  # fmt: skip


# fmt: off
CASES: Mapping[str, Case] = {
    "triad 6M": _of("triad", triad, ((6 << 20,), (6 << 20,))),
    "triad 5999993": _of("triad", triad, ((5999993,), (5999993,))),
    "softmax 6144x1024": _of("softmax", lambda x: F.softmax(x, -1), ((6144, 1024),)),
    "softmax 5987x1021": _of("softmax", lambda x: F.softmax(x, -1), ((5987, 1021),)),
    "softmax 199999x31": _of("softmax", lambda x: F.softmax(x, -1), ((199999, 31),)),
    "layer norm 6144x1024": _norm(6144, 1024),
    "layer norm 5987x1021": _norm(5987, 1021),
    "rms+residual 4096x1024": _of("rms norm", rms_residual, ((4096, 1024),) * 2, ((1024,),)),
    "rms+residual 4999x1021": _of("rms norm", rms_residual, ((4999, 1021),) * 2, ((1021,),)),
    "gelu-bias 2048x3072": _gelu(2048, 3072),
    "gelu-bias 1999x3071": _gelu(1999, 3071),
    "cross-entropy 512x32000": _cross_entropy(512, 32000),
    "cross-entropy 509x31999": _cross_entropy(509, 31999),
    "attention 12x512x64": _attention(1, 12, 512, 64, causal=False),
    "attention 12x512x64 causal": _attention(1, 12, 512, 64, causal=True),
    "attention 12x509x64 causal": _attention(1, 12, 509, 64, causal=True),
    "backward 12x512x64": _attention_backward(12, 512, 64, causal=False),
    "backward 12x512x64 causal": _attention_backward(12, 512, 64, causal=True),
    "backward 12x509x64 causal": _attention_backward(12, 509, 64, causal=True),
    **{f"linear {m}x4096x4096": _linear(m, 4096, 4096) for m in (1, 2, 4, 8, 16, 32)},
    "linear 7x4099x4093": _linear(7, 4099, 4093),
    "transpose 2560x2560": _turned((2560, 2560), 1, 0),
    "transpose 2557x2549": _turned((2557, 2549), 1, 0),
    "transpose heads": _turned((3, 2048, 16, 64), 0, 2, 1, 3),
    "transpose to NHWC": _turned((16, 64, 79, 81), 0, 2, 3, 1),
}
# fmt: on

QUICK = ("triad 5999993", "softmax 5987x1021", "linear 1x4096x4096", "transpose 2557x2549")
assert set(QUICK) <= set(CASES)
