"""Where functions have no slope, or an endless one, steps take the gradients of eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc

F: Any = nn.functional
INF, NAN = math.inf, math.nan
AT: dict[str, tuple[Callable[[Any], Tensor], list[float]]] = {
    "norm": (lambda x: x.norm(), [0, 0, 0]),
    "norm of 3": (lambda x: x.norm(p=3), [0, 0, 0]),
    "norm of a half": (lambda x: x.norm(p=0.5), [0, 1, 2]),
    "normalize": (lambda x: F.normalize(x, dim=0), [0, 0]),
    "cosine": (lambda x: F.cosine_similarity(x, x.detach() + 1, dim=0), [0, 0]),
    "distance": (lambda x: F.pairwise_distance(x, x.detach(), eps=0.0), [1, 2]),
    "renorm": (lambda x: x[None].renorm(2, 0, 1.0), [0, 0]),
    "deviation": (lambda x: x.std(), [1, 1, 1]),
    "deviation of all": (lambda x: x.std(correction=0), [2, 2]),
    "cross-entropy": (
        lambda x: F.binary_cross_entropy(x, torch.tensor([0.0, 1, 1, 0, 1, 0])),
        [0, 1, 0.5, 0.25, 0, 1],
    ),
    "log of the normal": (torch.special.log_ndtr, [0, -40, -8, 5, 40]),
    "clamp": (lambda x: x.clamp(0, 1), [0, 1, 2, -1, 0.5]),
    "clamp by tensors": (lambda x: x.clamp(x.detach(), x.detach() + 1), [0, 1]),
    "clamp_min": (lambda x: x.clamp(min=0), [0, 1, -1]),
    "hinge": (lambda x: F.hinge_embedding_loss(x, torch.tensor([1.0, -1])), [1, 1]),
    "relu6": (F.relu6, [0, 6, 3, 7, INF]),
    "hardtanh": (F.hardtanh, [-1, 1, 0.5, 2, -INF]),
    "hardsigmoid": (F.hardsigmoid, [3, -3, 0, NAN, INF]),
    "hardswish": (F.hardswish, [3, -3, 0, 5, -5, INF, -INF]),
    "softshrink": (F.softshrink, [0.5, -0.5, 1, 0, -INF]),
    "max of all": (lambda x: x.reshape(2, 2).max(), [1, 1, 0, -INF]),
    "max of all with NaN": (lambda x: x.max(), [NAN, 1, NAN, INF]),
    "min of all with NaN": (lambda x: x.min(), [NAN, 1, -INF]),
    "max of -inf": (lambda x: x.max(), [-INF, -INF]),
    "max along a dim": (lambda x: x.max(0)[0], [1, 1, 0]),
    "min along a dim": (lambda x: x[None].min(1, keepdim=True)[0], [1, 2, 1]),
    "amax": (lambda x: x.amax(), [1, 1, 0]),
    "angle": (lambda x: torch.atan2(x[:3], x[3:]), [0, 1, 0, 0, 0, 1]),
    "sinc": (torch.sinc, [0, 1, 0.5]),
    "x log y": (lambda x: torch.xlogy(x[:5], x[5:]), [0, 0, 0, 1, 2, 0, 2, -1, 0, 3]),
    "x log1p y": (lambda x: torch.special.xlog1py(x[:4], x[4:]), [0, 0, 0, 1, -1, 2, -3, 0.5]),
    "masked x log y": (
        lambda x: torch.where(x[2:].detach() > 0, torch.xlogy(x[:2], x[2:].detach()), 0.0),
        [1, 1, 0, 2],
    ),
    "masked x log1p y": (
        lambda x: torch.special.xlog1py(x[:2], x[2:].detach())[1:],
        [1, 1, -1, 2],
    ),
    "x log of a number": (lambda x: torch.xlogy(x, 2), [0, 1]),
    "entropy": (torch.special.entr, [0, 1, 0.5, -1, INF, NAN]),
    "logit": (torch.logit, [0, 1, 0.5, -1, 2, INF]),
    "logit of bounds": (lambda x: torch.logit(x, 0.1), [0, 1, 0.5, -1, 0.1]),
    "softplus": (F.softplus, [INF, 100, -INF, 1]),
    "mish": (F.mish, [100, 0, -100]),
    "selu": (F.selu, [INF, 100, 0, NAN, -1]),
    "celu": (lambda x: F.celu(x, 0.5), [INF, 100, 0, NAN, -1]),
    "norm of -1": (lambda x: torch.linalg.vector_norm(x, -1), [0, 1, 2]),
    "norm of -2 at infinity": (lambda x: torch.linalg.vector_norm(x, -2), [INF, 1, -INF]),
    "norm of -1 of infinities": (lambda x: torch.linalg.vector_norm(x, -1), [INF, -INF]),
    "norm of -0.5": (lambda x: torch.linalg.vector_norm(x, -0.5), [1, -2, 4]),
    "largest size": (lambda x: torch.linalg.vector_norm(x, INF), [NAN, 1]),
    "deviation and mean": (lambda x: sum(torch.std_mean(x), x[0] * 0), [1, 1, 1]),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, x.detach() * 0), [INF, -INF, 1, 0.5]),
    "huber": (lambda x: F.huber_loss(x, x.detach() * 0, delta=2.0), [INF, -INF, 2, NAN]),
    "relu of NaN": (F.relu, [NAN, 0, 1]),
    "clamp of NaN": (lambda x: x.clamp(0, 1), [NAN, 0.5]),
    "maximum of NaN": (lambda x: torch.maximum(x[:3], x[3:]), [NAN, 0, 1, 0, NAN, 1]),
    "minimum of NaN": (lambda x: torch.minimum(x[:3], x[3:]), [NAN, 0, 1, 0, NAN, 1]),
    "amax of NaN": (lambda x: x.amax(), [NAN, 1]),
}


class Parts(nn.Module):
    """All functions, each of numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.ParameterList(torch.zeros(len(at)) for _, at in AT.values())

    def forward(self) -> Any:
        return sum(
            function(off + torch.tensor(at, dtype=off.dtype)).sum()
            for off, (function, at) in zip(self.off, AT.values(), strict=True)
        )


def test_gradients_at_kinks() -> None:
    mine, theirs = Parts(), Parts()
    irc.compile_step(mine, optimizer="sgd")(lr=1.0)
    theirs().backward()
    for name, got, wanted in zip(AT, mine.off, theirs.off, strict=True):
        assert wanted.grad is not None
        message = f"{name}: {(-got).tolist()}, in eager {wanted.grad.tolist()}"
        torch.testing.assert_close(
            -got.detach(), wanted.grad, rtol=1e-4, atol=1e-6, equal_nan=True, msg=message
        )


class Variances(nn.Module):
    """Trains variances, of which some count as the least that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.Parameter(torch.zeros(3))

    def forward(self, at: Tensor) -> Tensor:
        return F.gaussian_nll_loss(torch.tensor([1e-3, 2.0, 3]), torch.zeros(3), self.off + at)


@pytest.mark.filterwarnings("ignore::irc.frontends.torch.tensor_checks.CheckLeftOutWarning")
def test_least_variances() -> None:
    model = Variances()
    step = irc.compile_step(model, optimizer="sgd")
    low, infinite = (step(torch.tensor([x, 1.0, 2.0]), lr=0.0) for x in (-1.0, -INF))
    assert math.isfinite(low) and float(low) == float(infinite)


class NoAlpha(nn.Module):
    """Trains a CELU that eager refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(self.off + x, 0.0).sum()


def test_a_celu_without_alpha_is_refused_as_in_eager() -> None:
    with pytest.raises(irc.errors.IrcError, match="alpha cannot be 0 for CELU") as refused:
        irc.compile_step(NoAlpha(), optimizer="sgd")(torch.ones(3), lr=1.0)
    assert refused.value.code == "capture-failed"
