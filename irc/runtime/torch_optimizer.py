"""torch's optimiser for a recipe: what steps are compared with, and whose names they use."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from irc.training.entry import globs, matches
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe

STEP = "optimizer.step"


def torch_optimizer(recipe: Recipe, named: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimiser that torch has for a recipe.

    Args:
        recipe: the kind and its numbers.
        named: the trained tensors by name; those without weight decay are a group of their own.
    """
    numbers = dict(recipe.numbers)
    decay = numbers.get("weight_decay", OPTIMIZERS[recipe.kind].weight_decay)
    still = [name for name in named if matches(name, globs(recipe.no_decay))]
    groups = [{"params": [t for n, t in named.items() if n not in still], "weight_decay": decay}]
    if still:
        groups.append({"params": [named[name] for name in still], "weight_decay": 0.0})
    if recipe.kind in ("adam", "adamw"):
        betas = numbers.get("beta1", 0.9), numbers.get("beta2", 0.999)
        cls = torch.optim.AdamW if recipe.kind == "adamw" else torch.optim.Adam
        return cls(groups, lr=recipe.lr, betas=betas, eps=numbers.get("eps", 1e-8))
    momentum = numbers.get("momentum", 0.9) if recipe.kind == "momentum" else 0.0
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=momentum)


def to_torch(recipe: Recipe, states: Mapping[str, torch.Tensor], trained: list[str]) -> Any:
    """Return an optimiser's state dict with parameters by name.

    It is what ``torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`` gives, and
    ``set_optimizer_state_dict`` takes.

    Args:
        recipe: what the states are of.
        states: whole, under irc's names (``optimizer.exp_avg.NAME``).
        trained: the names of the parameters that have them.
    """
    named = {name: torch.empty(0, device="meta") for name in trained}
    number = {id(t): name for name, t in named.items()}
    made = torch_optimizer(recipe, named)
    groups = [
        {**group, "params": [number[id(p)] for p in group["params"]]} for group in made.param_groups
    ]
    moments = OPTIMIZERS[recipe.kind].moments
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name in trained:
        own = {m: states[state_name(m, name)] for m in moments if state_name(m, name) in states}
        if STEP in states and own:
            own = {"step": states[STEP].to(torch.float32), **own}
        if own:
            found[name] = own
    return {"state": found, "param_groups": [g for g in groups if g["params"]]}


def from_torch(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return states under irc's names from an optimiser's state dict with parameters by name."""
    found: dict[str, torch.Tensor] = {}
    for name, own in given["state"].items():
        for key, value in own.items():
            if key == "step":
                found[STEP] = torch.as_tensor(value).to(torch.int64)
            elif value is not None:
                found[state_name(key, name)] = value
    return found


def state_name(moment: str, parameter: str) -> str:
    """Return what irc calls an optimiser's state of a parameter.

    >>> state_name("exp_avg", "head.weight")
    'optimizer.exp_avg.head.weight'
    """
    return f"optimizer.{moment}.{parameter}"
