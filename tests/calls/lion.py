"""Lion as the package ``lion-pytorch`` has it, which is not installed: what users give a step."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Its arguments, attributes, groups and states."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        self._init_lr, self.decoupled_wd = lr, decoupled_weight_decay
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move by signs."""
        for group in self.param_groups:
            lr, decay, (first, second) = group["lr"], group["weight_decay"], group["betas"]
            decay = decay / self._init_lr if self.decoupled_wd else decay
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                mean = state["exp_avg"]
                p.data.mul_(1.0 - lr * decay)
                update = mean.clone().mul_(first).add(p.grad, alpha=1.0 - first).sgn_()
                p.add_(update, alpha=-lr)
                mean.mul_(second).add_(p.grad, alpha=1.0 - second)
