"""Passes that add up, return or leave out gradients: ``MESH[/LAYOUT] DTYPE CASE [CASE ..]``.

Each case makes several passes over a module compiled for the mesh and over one as it is, and what
autograd returns and leaves in ``.grad`` is compared. A pass with ``flag=False`` reads no batch: its
gradients are whole on every rank, where those of the others are sums of the ranks' parts.
"""

# pyright: basic
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed.loop_program import Run, both, full


class Scaled(nn.Module):
    """Two layers behind a scale, or a function of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        """Return [batch, 4], or [8] that depends on no batch."""
        if not flag:
            return (self.scale * 3).sin() + self.down.weight.sum() * 0.1
        return self.down(torch.tanh(self.up(x * self.scale)))


def later(module: Any) -> Any:
    """Leave gradients as sums to be made."""
    return module.no_sync() if hasattr(module, "no_sync") else nullcontext()


def kept(module: nn.Module) -> list[Tensor | None]:
    """Return what is in ``.grad``."""
    return [None if p.grad is None else full(p.grad).clone() for p in module.parameters()]


def of_input(module: Any, x: Tensor) -> list[Tensor | None]:
    """An input's gradient is whole under no_sync() too."""
    x = x.clone().requires_grad_()
    with later(module):
        (returned,) = torch.autograd.grad(module(x).square().mean(), x)
        module(x).square().mean().backward()
    module(x).sin().mean().backward()
    return [returned, x.grad, *kept(module)]


def returned_between(module: Any, x: Tensor) -> list[Tensor | None]:
    """torch.autograd.grad leaves alone what is pending."""
    with later(module):
        module(x).square().mean().backward()
    y = x.clone().requires_grad_()
    (returned,) = torch.autograd.grad(module(y).pow(3).mean(), y)
    module(x).cos().mean().backward()
    return [returned, *kept(module)]


def of_parameters(module: Any, x: Tensor) -> list[Tensor | None]:
    """What torch.autograd.grad returns is whole, under no_sync() too."""
    with later(module):
        module(x).square().mean().backward()
    parameters = list(module.parameters())
    synced = torch.autograd.grad(module(x).sin().mean(), parameters)
    with later(module):
        other = torch.autograd.grad(module(x).pow(3).mean(), parameters)
    module(x).cos().mean().backward()
    return [*map(full, synced), *map(full, other), *kept(module)]


def of_some(module: Any, x: Tensor) -> list[Tensor | None]:
    """backward(inputs=) leaves alone what is pending of others."""
    with later(module):
        module(x).square().mean().backward()
    module(x).cos().mean().backward(inputs=[module.up.weight])
    module(x).sin().mean().backward()
    return kept(module)


def kinds(module: Any, x: Tensor) -> list[Tensor | None]:
    """Sums of parts and whole gradients of several kinds of calls, in either order."""
    with later(module):
        module(x).square().mean().backward()
    module(x, flag=False).square().mean().backward()
    module(x).cos().mean().backward()
    with later(module):
        (module(x, flag=False).square().mean() + module(x).sin().mean()).backward()
        (module(x).square().mean() + module(x, flag=False).sin().mean()).backward()
    module(x, flag=False).cos().mean().backward()
    module(x).cos().mean().backward()
    with later(module):
        module(x, flag=False).square().mean().backward()
    module(x).sin().mean().backward()
    return kept(module)


def whole_before(module: Any, x: Tensor) -> list[Tensor | None]:
    """A sum that was made before becomes part of one to be made."""
    module(x).square().mean().backward()
    with later(module):
        module(x).sin().mean().backward()
    module(x).cos().mean().backward()
    return kept(module)


def emptied(module: Any, x: Tensor) -> list[Tensor | None]:
    """zero_grad() takes away what is pending."""
    for to_none in (False, True):
        with later(module):
            module(x).square().mean().backward()
        module.zero_grad(set_to_none=to_none)
        module(x).cos().mean().backward()
    return kept(module)


CASES: dict[str, Callable[[Any, Tensor], list[Tensor | None]]] = {
    function.__name__: function
    for function in (
        *(of_input, returned_between, of_parameters, of_some, kinds, whole_before, emptied),
    )
}


def error(case: Callable[[Any, Tensor], list[Tensor | None]], run: Run) -> float:
    """Return the largest relative error of what a case gives."""
    mine, theirs = both(Scaled, run)
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(run.dtype)
    worst = 0.0
    for got, wanted in zip(case(mine, x), case(theirs, x), strict=True):
        assert (got is None) is (wanted is None)
        if got is not None and wanted is not None:
            worst = max(worst, float((got - wanted).norm() / wanted.norm()))
    return worst


if __name__ == "__main__":
    words = Run(*sys.argv[1:3])
    print(json.dumps({name: error(CASES[name], words) for name in sys.argv[3:]}))
