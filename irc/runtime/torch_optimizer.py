"""torch's optimiser for a recipe: what steps are compared with, and whose names they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from irc.runtime.lion import Lion
from irc.training.entry import globs, matches
from irc.training.groups import group_of, numbered
from irc.training.optimizers import OPTIMIZERS, REMAINDER
from irc.training.recipe import Recipe
from irc.training.settings import OF_DTYPE

STEP = "optimizer.step"

CLASSES: Mapping[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "lion": Lion,
}
"""What torch calls a kind, by its first word."""

_ANY: Mapping[str, Any] = {"weight_decay": 0.0, "maximize": False}
_ADAM: Mapping[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, **_ANY}
TOLD: Mapping[str, Mapping[str, Any]] = {
    "adamw": {**_ADAM, "amsgrad": False},
    "adam": {**_ADAM, "amsgrad": False},
    "sgd": {"momentum": 0.0, "nesterov": False, **_ANY},
    "momentum": {"momentum": 0.9, "nesterov": False, **_ANY},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, **_ANY},
    "adagrad": {"lr_decay": 0.0, "eps": 1e-10, **_ANY},
    "adamax": _ADAM,
    "adadelta": {"rho": 0.9, "eps": 1e-6, **_ANY},
    "adafactor": {"beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, **_ANY},
    "lion": {"betas": (0.9, 0.99), "weight_decay": 0.0},
}
"""What a kind is told of each group beside its rate, and irc's defaults."""


def torch_optimizer(
    recipe: Recipe,
    named: Mapping[str, torch.Tensor],
    stored: Mapping[str, torch.dtype] | None = None,
) -> torch.optim.Optimizer:
    """Return the optimiser that torch has for a recipe.

    Args:
        recipe: the kind and its numbers.
        named: the trained tensors by name; those that are told the same numbers are a group.
        stored: the dtypes whose epsilon an Adafactor takes that is told none; by default those of
            the tensors.
    """
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for name, value in named.items():
        told, _ = told_of(recipe, name)
        if stored is not None and "d" in told and told["eps"][0] is None:
            told["eps"] = torch.finfo(stored[name]).eps, told["eps"][1]
        groups.setdefault(tuple(told.items()), {"params": [], **told})["params"].append(value)
    cls: Any = CLASSES[recipe.kind.partition("-")[0]]
    return cls(list(groups.values()), lr=recipe.lr)


def told_of(recipe: Recipe, name: str) -> tuple[dict[str, Any], int]:
    """Return what torch's optimiser is told of a parameter, and the number of its rate."""
    group = group_of(name, numbered(recipe.groups))
    numbers = {"weight_decay": OPTIMIZERS[recipe.kind].weight_decay, **recipe.numbers}
    if matches(name, globs(recipe.no_decay)):
        numbers["weight_decay"] = 0.0
    numbers |= {} if group is None else group.numbers
    rate = 0 if group is None else group.rate
    base, *more = recipe.kind.split("-")
    told: dict[str, Any] = {"lr": recipe.rates[rate]}
    for option, default in TOLD[base].items():
        told[option] = numbers.get(option, default)
        if isinstance(default, bool):
            told[option] = bool(told[option])
    if "betas" in told:
        told["betas"] = numbers.get("beta1", 0.9), numbers.get("beta2", OPTIMIZERS[base].beta2)
    if base == "adafactor":
        first = numbers.get("eps1", OF_DTYPE)
        told["eps"] = None if first < 0 else first, numbers.get("eps2", 1e-3)
    if "amsgrad" in told:
        told["amsgrad"] = "amsgrad" in more
    return told, rate


def set_rates(
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    named: Mapping[str, torch.Tensor],
    rates: torch.Tensor,
) -> None:
    """Give the groups of :func:`torch_optimizer` other learning rates.

    Args:
        optimizer: of the recipe.
        recipe: says which rate a parameter has.
        named: the trained tensors by name.
        rates: one number, or one for each of the recipe's.
    """
    names = {id(value): name for name, value in named.items()}
    for group in optimizer.param_groups:
        _, rate = told_of(recipe, names[id(group["params"][0])])
        group["lr"] = float(rates[rate] if rates.ndim else rates)


def rates_tensor(rates: Sequence[float]) -> torch.Tensor:
    """Return learning rates as a step takes them: float64, of shape [] where there is one."""
    return torch.tensor(rates[0] if len(rates) == 1 else rates, dtype=torch.float64)


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
    optimizer = torch_optimizer(recipe, named)
    groups = [
        {**group, "params": [number[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    moments = (*OPTIMIZERS[recipe.kind].names, REMAINDER)
    state: dict[str, dict[str, torch.Tensor]] = {}
    for name in trained:
        own = {m: states[state_name(m, name)] for m in moments if state_name(m, name) in states}
        if STEP in states and own:
            own = {"step": states[STEP].to(torch.float32), **own}
        if own:
            state[name] = own
    return {"state": state, "param_groups": [g for g in groups if g["params"]]}


def from_torch(recipe: Recipe, state_dict: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return states under irc's names from an optimiser's state dict with parameters by name."""
    states: dict[str, torch.Tensor] = {}
    for name, own in state_dict["state"].items():
        for key, value in own.items():
            if key == "step":
                states[STEP] = torch.as_tensor(value).to(torch.int64)
            elif value is not None:
                states[state_name(key, name)] = value
    return states


def state_name(moment: str, parameter: str) -> str:
    """Return what irc calls an optimiser's state of a parameter.

    >>> state_name("exp_avg", "head.weight")
    'optimizer.exp_avg.head.weight'
    """
    return f"optimizer.{moment}.{parameter}"
