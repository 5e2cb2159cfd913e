"""Guards: every change that matters has a named reason; what does not matter passes."""

# ruff: noqa: E501 - a case is a line
from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from irc.frontends.torch.guards import Guards


class Model(nn.Module):
    """Reads an attribute, a flag and its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.linear = nn.Linear(5, 3)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor, factor: float = 1.0, mask: Tensor | None = None) -> Tensor:
        return self.drop(self.linear(x)) * self.scale * factor


X = torch.randn(2, 5)
CHANGES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "training": (lambda m: m.drop.eval(), (X,), {}, "'drop.training' is False, compiled for True"),
    "attribute": (lambda m: setattr(m, "scale", 3.0), (X,), {}, "'scale' is 3.0, compiled for 2.0"),
    "parameter": (lambda m: setattr(m.linear, "bias", nn.Parameter(torch.zeros(3))), (X,), {}, "'linear.bias' is another tensor"),
    "shape": (None, (torch.randn(3, 5),), {}, "'x' has shape [3, 5], compiled for [2, 5]"),
    "dtype": (None, (X.double(),), {}, "'x' has dtype torch.float64, compiled for torch.float32"),
    "device": (None, (X.to("meta"),), {}, "'x' is on meta, compiled for cpu"),
    "gradient": (None, (X.clone().requires_grad_(),), {}, "'x' has requires_grad=True, compiled for False"),
    "structure": (None, (X,), {"mask": X}, "structure"),
    "kind": (None, (2.0,), {}, "'x' is float, compiled for a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_a_reason(change: str) -> None:
    model = Model()
    guards = Guards.of(model, (X,), {})
    assert guards.check((torch.randn(2, 5),)) is None
    apply, args, kwargs, reason = CHANGES[change]
    if apply is not None:
        apply(model)
    assert reason in str(guards.check(args, kwargs))


def test_grad_mode_and_autocast() -> None:
    guards = Guards.of(Model(), (X,), {})
    with torch.no_grad():
        assert guards.check((X,)) == "gradients are off, compiled with them on"
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in str(guards.check((X,)))


def test_numbers_are_compared_by_value_and_type() -> None:
    guards = Guards.of(Model(), (X,), {"factor": 2.0})
    assert guards.check((X,), {"factor": 2.0}) is None
    assert guards.check((X,), {"factor": 3.0}) == "'factor' is 3.0, compiled for 2.0"
    assert guards.check((X,), {"factor": 2}) == "'factor' is 2, compiled for 2.0"


def test_the_order_of_keywords_does_not_matter() -> None:
    guards = Guards.of(Model(), (), {"x": X, "factor": 2.0})
    assert guards.check((), {"factor": 2.0, "x": X}) is None


def test_writes_to_weights_are_allowed_other_objects_are_not() -> None:
    model = Model()
    guards = Guards.of(model, (X,), {})
    with torch.no_grad():
        model.linear.weight.add_(1)
    assert guards.check((X,)) is None
    kept = model.linear
    model.linear = nn.Linear(kept.in_features, kept.out_features)
    assert guards.check((X,)) == "'linear' is another layer than at compile time"
    model.linear = kept
    assert guards.check((X,)) is None
    kept.weight = nn.Parameter(kept.weight.detach().clone())
    assert guards.check((X,)) == "'linear.weight' is another tensor than at compile time"


def test_checking_is_cheap() -> None:
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(10)))
    guards = Guards.of(model, (X,), {})

    def microseconds() -> float:
        start = time.perf_counter()
        for _ in range(100):
            guards.check((X,))
        return (time.perf_counter() - start) * 1e4

    assert min(microseconds() for _ in range(10)) < 40
