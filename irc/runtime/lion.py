"""Lion (Chen et al. 2023, arXiv:2302.06675), which torch does not have: by the signs of means.

The package ``lion-pytorch`` has the class that people use, and others copy it. An optimiser is
taken for it by its name, by holding nothing that may mean more, and by what it does: some numbers
that it computes are compared.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

TOLD = frozenset({"lr", "betas", "weight_decay"})
"""What each group of a Lion is told."""

KEYS = TOLD | {
    *("params", "param_names", "name"),
    # Of torch's schedulers and averages.
    *("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"),
    # Of lion-pytorch, timm and torch: what they do to a parameter is tried.
    *("cautious_factor", "caution", "corrected_weight_decay", "maximize"),
    *("foreach", "fused", "capturable", "differentiable"),
}
"""What a group may have; of anything else nobody knows when it counts."""

ATTRIBUTES = frozenset({
    *("step", "_opt_called"),  # a scheduler's
    *("_init_lr", "decoupled_wd", "update_fn"),  # lion-pytorch's
    "elementwise",
})  # fmt: skip
"""What an object may have beside torch's own attributes."""

SCALES = (1e-6, 1.0, 1e3)
"""Of the gradients that are tried, which some would clip or take for zero."""


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
    its groups and states stay as they are, and its hooks are not called.
    """
    cls = type(optimizer)
    if cls is Lion:
        return True
    groups = optimizer.param_groups
    if cls.__name__ != "Lion" or not all(TOLD <= group.keys() <= KEYS for group in groups):
        return False
    plain = Lion([torch.zeros(1)])
    if optimizer.__dict__.keys() - plain.__dict__.keys() - ATTRIBUTES:
        return False
    return all(_is_alike(optimizer, group) for group in groups)


def _is_alike(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    matrix = torch.tensor([[0.5, -2.0, 0.25], [1.0, 3.0, -1.0]], dtype=torch.float64)
    starts = matrix, (matrix[:, :2] * 0.7).reshape(2, 1, 2, 1)
    own, want = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    told = {"lr": 0.1, "betas": (0.8, 0.7), "weight_decay": 0.3}
    right = Lion([{"params": want, **told}])
    # A twin with what else the object holds: its constructor may take anything.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__["state"] = defaultdict(dict)
    # A step that calls its parent's calls torch's around that one.
    twin.__dict__.update({"_optimizer_step_pre_hooks": {}, "_optimizer_step_post_hooks": {}})
    twin.__dict__["param_groups"] = [{**group, **told, "params": own}]
    step = _own_step(type(optimizer))
    for number, (rate, scale) in enumerate(zip((0.1, 0.05, 0.2), SCALES, strict=True)):
        twin.param_groups[0]["lr"] = right.param_groups[0]["lr"] = rate
        for mine, other, start in zip(own, want, starts, strict=True):
            mine.grad = (start * (1 - number) + number % 2 * 0.3).sin() * scale
            other.grad = mine.grad.clone()
        try:
            step(twin)
        except Exception:  # a class of the user's may raise anything: it is another one then
            return False
        _own_step(Lion)(right)
    return all(
        torch.allclose(mine, other, 1e-12, 1e-12)
        and twin.state[mine].keys() == {"exp_avg"}
        and torch.allclose(twin.state[mine]["exp_avg"], right.state[other]["exp_avg"], 1e-12, 0)
        for mine, other in zip(own, want, strict=True)
    )


def _own_step(cls: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the step that a class has written: not torch's around it, which calls hooks.

    Nor is it what a scheduler has put in the place of an object's own.
    """
    return inspect.unwrap(cls.step, stop=lambda step: not getattr(step, "hooked", False))
