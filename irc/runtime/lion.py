"""Lion (Chen et al. 2023, arXiv:2302.06675), which torch does not have: by the signs of means.

The package ``lion-pytorch`` has the class that people use, and others copy it. An optimiser is
taken for it by its name and by what it does: some numbers that it computes are compared.
"""

# pyright: basic
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

TOLD = frozenset({"lr", "betas", "weight_decay"})
"""What each group of a Lion is told."""


class Lion(torch.optim.Optimizer):
    """Moves parameters by the sign of a mean of gradients; weight decay is apart from it.

    Args:
        params: parameters, or groups of them.
        lr: the learning rate.
        betas: decay of the mean that gives the sign, and of the one that is kept.
        weight_decay: times the rate, how much of a parameter goes.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the parameters by their gradients."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                mean = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_((mean * first + p.grad * (1 - first)).sign() * group["lr"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)


def is_lion(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser of a class called Lion computes what :class:`Lion` does.

    Each group is tried on a few numbers, with rates, betas and a decay of its own; the optimiser,
    its groups and states stay as they are.
    """
    cls = type(optimizer)
    if cls is Lion:
        return True
    groups = optimizer.param_groups
    if cls.__name__ != "Lion" or not all(group.keys() >= TOLD for group in groups):
        return False
    return all(_is_alike(optimizer, group) for group in groups)


def _is_alike(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    start = torch.tensor([[0.5, -2.0, 0.25], [1.0, 3.0, -1.0]], dtype=torch.float64)
    own, want = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    told = {"lr": 0.1, "betas": (0.8, 0.7), "weight_decay": 0.3}
    right = Lion([{"params": [want], **told}])
    # A twin with what else the object holds: its constructor may take anything.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__["state"] = defaultdict(dict)
    twin.__dict__["param_groups"] = [{**group, **told, "params": [own]}]
    for number, rate in enumerate((0.1, 0.05, 0.2)):
        twin.param_groups[0]["lr"] = right.param_groups[0]["lr"] = rate
        own.grad = (start * (1 - number) + number % 2 * 0.3).sin()
        want.grad = own.grad.clone()
        try:
            # Not what a scheduler has put in the place of the object's own.
            type(optimizer).step(twin)
        except Exception:  # a class of the user's may raise anything: it is another one then
            return False
        right.step()
    kept = twin.state[own]
    if not torch.allclose(own, want, 1e-12, 1e-12) or kept.keys() != {"exp_avg"}:
        return False
    return torch.allclose(kept["exp_avg"], right.state[want]["exp_avg"], 1e-12, 1e-12)
