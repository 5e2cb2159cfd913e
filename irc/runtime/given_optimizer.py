"""An optimiser object of torch that is given for a step of training: what a recipe says of it."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.parts import PIPE
from irc.runtime.eager_kinds import (
    EagerOptimizerWarning,
    check_suitable,
    eager_text,
    sees_one_parameter,
)
from irc.runtime.eager_optimizer import EagerOptimizer
from irc.runtime.join import own_rank
from irc.runtime.lion import is_lion
from irc.runtime.torch_optimizer import CLASSES, TOLD
from irc.training.recipe import Recipe, recipe_of

KINDS = {cls: kind for kind, cls in CLASSES.items() if kind != "momentum"}

OFF = ("dampening", "differentiable", "initial_accumulator_value")
"""Options that have to be off where a step computes an optimiser."""

NUMBERS = tuple(dict.fromkeys(["lr", *(option for told in TOLD.values() for option in told)]))
"""What of a group may change from step to step."""

READ = (*NUMBERS, *OFF, "cautious_factor")


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
        self._kind = kind_of(optimizer)
        self._read = self._numbers()
        self._apart = _apart(optimizer, frozenset())

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of the next step: that of the last one, where no number has changed.

        Raises:
            IrcError: ``option-value`` for what a step does not compute, and for hooks of a step.
        """
        if _has_hooks(self._optimizer):
            raise _refused(
                "the optimiser has hooks of its step, which it had not when the step was made: a "
                "compiled optimiser does not call them",
                "register hooks before irc.compile_step, which then runs the optimiser eagerly",
            )
        # Else a scheduler of torch warns that it goes on without a step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # a mark of schedulers
        now = self._numbers()
        if now == self._read:
            return recipe
        is_of_rates = _without_rates(now) == _without_rates(self._read)
        kind = self._kind if is_of_rates else kind_of(self._optimizer)
        # A scheduler may let rates be equal for a while, which is no other program.
        self._apart = _apart(self._optimizer, self._apart)
        options = _options(self._optimizer, kind, self._names, self._apart)
        following = recipe_of(options)
        if following.kind != recipe.kind:
            raise _refused(
                f"the optimiser was {recipe.kind} and is {following.kind} now, which has other "
                "states",
                "make another step, and give it the parameters by load_state_dict",
            )
        self._kind, self._read = kind, now
        return replace(
            recipe,
            numbers=following.numbers,
            no_decay=following.no_decay,
            lr=following.lr,
            groups=following.groups,
        )

    def restore(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Give groups the numbers that they had when a state was saved: schedulers go on from them.

        Args:
            groups: as torch's distributed checkpoints have them, ``params`` being names.
        """
        own_groups: list[dict[str, Any]] = self._optimizer.param_groups
        for own in own_groups:
            names = {self._names[id(p)] for p in own["params"] if id(p) in self._names}
            matching = (g for g in groups if names & set(g.get("params", ())))
            saved = next(matching, dict[str, Any]())
            for number in NUMBERS:
                if number not in own or number not in saved:
                    continue
                if isinstance(own[number], torch.Tensor):
                    own[number].fill_(float(saved[number]))
                else:
                    own[number] = saved[number]

    def _numbers(self) -> list[tuple[Any, ...]]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return [tuple(_number(group.get(name)) for name in READ) for group in groups]


def follow(
    optimizer: torch.optim.Optimizer, module: nn.Module, mesh: Mesh
) -> GivenOptimizer | EagerOptimizer:
    """Return what reads an optimiser of torch in each step, or runs it, which rank 0 warns of.

    Args:
        optimizer: that :func:`options_of` has checked.
        module: what is trained.
        mesh: of the run.

    Raises:
        IrcError: ``option-value`` for one that runs eagerly, on a mesh with stages, and may look at
            several parameters together.
    """
    if not (why := _why_eager(optimizer, kind_of(optimizer))):
        return GivenOptimizer(optimizer, module)
    if PIPE in mesh.names and not sees_one_parameter(optimizer):
        name = type(optimizer).__name__
        raise _refused(
            f"optimizer={name}(..) is not compiled ({why}), and may look at all parameters "
            f"together: with an axis '{PIPE}' a rank has those of its own stages",
            "if what it does to an element depends on that element alone, say "
            "optimizer.elementwise = True before; else choose a mesh without 'pipe', or an "
            "optimiser such as torch.optim.AdamW",
        )
    if own_rank() == 0:
        text = eager_text(optimizer, why, mesh)
        warnings.warn(text, EagerOptimizerWarning, stacklevel=3)
    return EagerOptimizer(optimizer, module)


def options_of(
    optimizer: object, module: nn.Module
) -> tuple[dict[str, object] | None, tuple[str, ...]]:
    """Return the options of a step, and names of parameters that the optimiser does not have.

    There are no options where the optimiser is not compiled, and runs eagerly.

    Args:
        optimizer: of torch, over parameters of the module.
        module: what is trained.

    Raises:
        IrcError: ``option-value`` for one that cannot run on the gradients of one pass, or has
            other tensors than the module.
    """
    names = {id(value): name for name, value in module.named_parameters()}
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _refused(f"optimizer={type(optimizer).__name__}(..) is no optimiser of torch")
    options: dict[str, object] | None = None
    kind = kind_of(optimizer)
    if _why_eager(optimizer, kind):
        check_suitable(optimizer)
    else:
        options = _options(optimizer, kind, names, _apart(optimizer, frozenset()))
    groups: list[dict[str, Any]] = optimizer.param_groups
    known = {_name(names, p) for group in groups for p in group["params"]}
    others = [n for n, p in module.named_parameters() if p.requires_grad and n not in known]
    return options, tuple(others)


def _why_eager(optimizer: torch.optim.Optimizer, kind: str) -> str:
    """Return why an optimiser of a kind (:func:`kind_of`) is not compiled; nothing where it is."""
    groups = optimizer.param_groups
    if not kind:
        return "a step has no formula for it"
    for name in OFF:
        if value := next((group[name] for group in groups if group.get(name)), None):
            return f"it has {name}={value!r}"
    if _has_hooks(optimizer):
        return "it has hooks of its step"
    if len({bool(group.get("amsgrad")) for group in groups}) > 1:
        return "its groups have different amsgrad"
    if len({bool(group.get("decoupled_weight_decay")) for group in groups}) > 1:
        return "its groups have different decoupled_weight_decay"
    if kind == "adafactor" and (why := _why_eager_factored(groups)):
        return why
    return ""


def kind_of(optimizer: object) -> str:
    """Return the kind whose formula an optimiser has; nothing for one that a step does not know."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return ""
    if (kind := KINDS.get(type(optimizer))) is not None:
        return kind
    return "lion" if is_lion(optimizer) else ""


def _why_eager_factored(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return why an Adafactor is not compiled."""
    for group in groups:
        # torch takes that of a group's first parameter for all of them.
        if group["eps"][0] is None and len({p.dtype for p in group["params"]}) > 1:
            return "it has eps=(None, ..) for parameters of several dtypes"
    return ""


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether something is called before or after each step of an optimiser, or of all."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    is_own = any(getattr(optimizer, name, None) for name in names)
    every = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    # torch.profiler's own, where a daemon profiles, only counts steps.
    return is_own or any(getattr(hook, "__module__", "") != "torch.profiler" for hook in every)


def _without_rates(numbers: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return what groups say but for their rates, by which no formula is known."""
    rate = READ.index("lr")
    return [(*each[:rate], *each[rate + 1 :]) for each in numbers]


def _apart(optimizer: object, before: frozenset[int]) -> frozenset[int]:
    """Return the numbers of groups that have had another rate than the first."""
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    rates = [_number(group["lr"]) for group in groups]
    return before | {i for i, rate in enumerate(rates) if rate != rates[0]}


def _options(
    optimizer: torch.optim.Optimizer,
    kind: str,
    names: Mapping[int, str],
    apart: frozenset[int],
) -> dict[str, object]:
    """Return the options of a step.

    Args:
        optimizer: of torch.
        kind: of its formula.
        names: of the parameters, by their identity.
        apart: numbers of the groups that have a rate of their own.
    """
    groups: list[dict[str, Any]] = optimizer.param_groups
    if any(float(state.get("step", 1)) for state in optimizer.state.values()):
        raise _refused(
            "the optimiser has taken steps: a step of training has states of its own",
            "make the step with a new optimiser, and give it the states by step.load_state_dict",
        )
    if why := _why_eager(optimizer, kind):  # a number was changed after the step was made
        raise _refused(f"the optimiser cannot go on as it began: {why}", "make another step")
    if kind == "adam" and all(group.get("decoupled_weight_decay") for group in groups):
        kind = "adamw"
    told = [{option: group[option] for option in TOLD[kind]} for group in groups]
    keeps_most = {"amsgrad": True} if told[0].get("amsgrad") else {}
    for own in told:
        own.pop("amsgrad", None)
    held = [[_name(names, p) for p in group["params"]] for group in groups]
    rates = [_number(group["lr"]) for group in groups]
    options: dict[str, object] = {"kind": kind, "lr": rates[0], **keeps_most}
    decays = {own["weight_decay"] for own in told}
    alike = [{**own, "weight_decay": 0.0} for own in told]
    if not apart and all(own == alike[0] for own in alike) and len(decays - {0.0}) <= 1:
        options |= {**told[0], "weight_decay": max(decays)}
        if max(decays):
            pairs = zip(held, told, strict=True)
            still = [params for params, own in pairs if not own["weight_decay"]]
            options["no_decay"] = [name for params in still for name in params]
        return options
    own_groups: list[dict[str, object]] = []
    for number, (params, own, rate) in enumerate(zip(held, told, rates, strict=True)):
        own_rate = {"lr": rate} if number in apart else {}
        if number and params and (own_rate or own != told[0]):
            own_groups.append({"params": params, **own_rate, **own})
    return {**options, **told[0], "groups": own_groups}


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


def _refused(message: str, advice: str = "") -> IrcError:
    return IrcError(
        "option-value",
        message,
        help=advice
        or "give an object such as torch.optim.AdamW(model.parameters()), or write "
        "optimizer={'kind': 'adamw', 'lr': 1e-3, ..}",
    )
