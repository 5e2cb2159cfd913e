"""An optimiser object of torch that is given for a step of training: what a recipe says of it."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from irc.errors import IrcError
from irc.training.recipe import Recipe, recipe_of

KINDS = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
SHARED = {
    "adamw": ("lr", "betas", "eps"),
    "adam": ("lr", "betas", "eps"),
    "sgd": ("lr", "momentum"),
}
"""What all parameters have in common."""

OFF = ("amsgrad", "maximize", "nesterov", "dampening", "differentiable")
"""Options that have to be off."""


READ = ("lr", "betas", "eps", "momentum", "weight_decay", *OFF)
"""What of a group may change from step to step."""


class GivenOptimizer:
    """An optimiser of torch whose groups say the numbers of each step.

    Args:
        optimizer: of torch, over parameters of the module.
        module: what is trained.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self._optimizer = optimizer
        # The module's parameters may become others; the optimiser keeps these.
        self._names = {id(value): name for name, value in module.named_parameters()}
        self._read = self._numbers()

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of the next step: that of the last one, where no number has changed.

        Raises:
            IrcError: ``option-value`` for what a step does not compute.
        """
        now = self._numbers()
        if now == self._read:
            return recipe
        found = recipe_of(_options(self._optimizer, self._names))
        if found.kind != recipe.kind:
            raise _refused(
                f"the optimiser was {recipe.kind} and is {found.kind} now, which has other states",
                "make another step, and give it the parameters by load_state_dict",
            )
        self._read = now
        return replace(recipe, numbers=found.numbers, no_decay=found.no_decay, lr=found.lr)

    def _numbers(self) -> list[tuple[Any, ...]]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return [tuple(_number(group.get(name)) for name in READ) for group in groups]


def options_of(optimizer: object, module: nn.Module) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the options of a step, and names of parameters that the optimiser does not have.

    Args:
        optimizer: of torch, over parameters of the module.
        module: what is trained.

    Raises:
        IrcError: ``option-value`` for what a step does not compute.
    """
    names = {id(value): name for name, value in module.named_parameters()}
    found = _options(optimizer, names)
    assert isinstance(optimizer, torch.optim.Optimizer)
    groups: list[dict[str, Any]] = optimizer.param_groups
    known = {_name(names, p) for group in groups for p in group["params"]}
    others = [n for n, p in module.named_parameters() if p.requires_grad and n not in known]
    return found, tuple(others)


def _options(optimizer: object, names: Mapping[int, str]) -> dict[str, object]:
    """Return the options of a step.

    Args:
        optimizer: of torch.
        names: of the parameters, by their identity.
    """
    kind = KINDS.get(type(optimizer))  # type: ignore[arg-type]  # any class may be looked up
    if kind is None or not isinstance(optimizer, torch.optim.Optimizer):
        raise _refused(f"optimizer={type(optimizer).__name__}(..) is none that a step computes")
    groups: list[dict[str, Any]] = optimizer.param_groups
    if optimizer.state:
        raise _refused(
            "the optimiser has taken steps: a step of training has states of its own",
            "make the step with a new optimiser, and give it the states by step.load_state_dict",
        )
    for name in OFF:
        if any(group.get(name) for group in groups):
            raise _refused(f"the optimiser has {name}={groups[0].get(name)!r}")
    if kind == "adam" and all(group.get("decoupled_weight_decay") for group in groups):
        kind = "adamw"
    found: dict[str, object] = {"kind": kind}
    for option in SHARED[kind]:
        values = [_number(group[option]) for group in groups]
        if any(value != values[0] for value in values):
            raise _refused(
                f"the optimiser's groups have different {option}: {_list(values)}",
                "one step has one; parameters differ in weight decay alone, which is 0 or one "
                "number",
            )
        found[option] = values[0]
    held = [[_name(names, p) for p in group["params"]] for group in groups]
    decays = [float(group["weight_decay"]) for group in groups]
    used = sorted({decay for decay in decays if decay})
    if len(used) > 1:
        raise _refused(
            f"the optimiser's groups have different weight_decay: {_list(used)}",
            "weight decay is 0 or one number",
        )
    found["weight_decay"] = used[0] if used else 0.0
    if used:
        pairs = zip(held, decays, strict=True)
        found["no_decay"] = [name for each, decay in pairs for name in each if not decay]
    return found


def _name(names: Mapping[int, str], parameter: torch.Tensor) -> str:
    if id(parameter) not in names:
        raise _refused(
            f"the optimiser has a tensor of {list(parameter.shape)} that is no parameter of the "
            "module",
            "make it of model.parameters()",
        )
    return names[id(parameter)]


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def _refused(message: str, advice: str = "") -> IrcError:
    return IrcError(
        "option-value",
        message,
        because="a step computes AdamW, Adam and SGD of torch.optim, without amsgrad, nesterov, "
        "dampening and maximize",
        help=advice or "write optimizer={'kind': 'adamw', 'lr': 1e-3, ..}, or one of those",
    )
