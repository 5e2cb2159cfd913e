"""The recipe of a training step: loss, optimiser, what is trained, how batches are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from irc.errors import IrcError, did_you_mean
from irc.training.groups import FLAGS, OWN, Group, groups_text
from irc.training.optimizers import OPTIMIZERS
from irc.training.precision import AS_IS, Precision
from irc.training.settings import OF_DTYPE

OptimizerOption: TypeAlias = "str | Mapping[str, object]"
"""A kind, ``adamw``, or ``{"kind": "adamw", "lr": 3e-4, "betas": (0.9, 0.95), ...}``."""

KINDS = tuple(kind for kind, optimizer in OPTIMIZERS.items() if optimizer.moves)
NUMBERS = (*OWN, "clip_norm")
DEFAULT_LR = 1e-3


@dataclass(frozen=True)
class Recipe:
    """How a module is trained.

    Attributes:
        kind: of optimiser.
        numbers: what the optimiser is told, under the names of pass ``add-optimizer``.
        no_decay: globs of parameters without weight decay.
        lr: the learning rate of a call that gives none.
        loss: name of the result to train on; empty where only one is a real scalar.
        frozen: globs of parameters that stay as they are.
        micro_batches: of a step.
        split: inputs that are cut into micro-batches; others are given to each.
        recompute: what backward computes again (pass ``recompute``).
        groups: parameters that are told other numbers.
        precision: the dtypes that are stored and computed in.
    """

    kind: str = "adamw"
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    no_decay: str = ""
    lr: float = DEFAULT_LR
    loss: str = ""
    frozen: str = ""
    micro_batches: int = 1
    split: tuple[str, ...] = ()
    recompute: str = "none"
    groups: tuple[Group, ...] = ()
    precision: Precision = AS_IS

    @property
    def optimizer(self) -> dict[str, object]:
        """The options of pass ``add-optimizer``."""
        more: dict[str, object] = {"groups": groups_text(self.groups)} if self.groups else {}
        if self.precision.masters:
            more["masters"] = True
        if self.precision.is_scaled:
            more["scaled"] = True
        return {"kind": self.kind, "no_decay": self.no_decay, **self.numbers, **more}

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates of a call that gives none: the optimiser's, then those of groups."""
        return (self.lr, *(group.lr for group in self.groups if group.lr is not None))


def recipe_of(
    optimizer: OptimizerOption,
    *,
    loss: str = "",
    frozen: str = "",
    micro_batches: int = 1,
    recompute: str = "none",
) -> Recipe:
    """Read what the user says of a training step.

    ``betas`` is taken as torch has it, and so are the two ``eps`` of its Adafactor; ``sgd`` with a
    momentum is ``momentum``, and others that keep more states for an option have a kind of their
    own, too. ``groups`` are mappings with the globs ``params``, a ``lr`` and numbers of their own.

    >>> recipe_of({"kind": "sgd", "momentum": 0.9, "lr": 0.1}).optimizer
    {'kind': 'momentum', 'no_decay': '', 'momentum': 0.9}

    Raises:
        IrcError: ``option-unknown`` or ``option-value``.
    """
    options: dict[str, object] = (
        {"kind": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    )
    kind = options.pop("kind", "adamw")
    if not isinstance(kind, str) or kind not in KINDS:
        raise IrcError(
            "option-value", f"no optimiser '{kind}'", help=did_you_mean(f"{kind}", KINDS)
        )
    lr = _number("lr", options.pop("lr", DEFAULT_LR))
    no_decay = _globs("no_decay", options.pop("no_decay", ""))
    groups = tuple(_group(group) for group in _mappings(options.pop("groups", ())))
    keeps_most = _number("amsgrad", options.pop("amsgrad", 0.0))
    numbers = _numbers(options, NUMBERS, ("kind", "lr", "betas", "no_decay", "groups", "amsgrad"))
    _check_eps(kind, [numbers, *(group.numbers for group in groups)])
    every = (numbers, *(group.numbers for group in groups))
    used = {option for each in every for option, number in each.items() if number}
    if "momentum" in used:
        numbers = {"momentum": 0.0, **numbers}
        kind = {"sgd": "momentum", "rmsprop": "rmsprop-momentum"}.get(kind, kind)
    elif "nesterov" in used:
        raise IrcError(
            "option-value",
            "nesterov looks ahead along a momentum, and the optimiser has none",
            help="{'kind': 'sgd', 'momentum': 0.9, 'nesterov': True}",
        )
    if "centered" in used:
        kind = kind.replace("rmsprop", "rmsprop-centered")
    if kind in ("adam", "adamw") and keeps_most:
        kind = f"{kind}-amsgrad"
    return Recipe(kind, numbers, no_decay, lr, loss, frozen, micro_batches, (), recompute, groups)


def _group(options: Mapping[str, object]) -> Group:
    rest = dict(options)
    params = _globs("params", rest.pop("params", ""))
    if not params:
        raise IrcError(
            "option-value",
            "a group of an optimiser names no parameters",
            help="{'params': 'head.*', 'lr': 1e-4}",
        )
    lr = rest.pop("lr", None)
    numbers = _numbers(rest, OWN, ("params", "lr", "betas"))
    return Group(params, numbers, None if lr is None else _number("lr", lr))


def _mappings(value: object) -> list[Mapping[str, object]]:
    groups = list(cast("Sequence[object]", value)) if isinstance(value, tuple | list) else [value]
    if not all(isinstance(each, Mapping) for each in groups):
        raise IrcError(
            "option-value",
            f"groups={value!r}: give a list of groups",
            help="[{'params': 'head.*', 'lr': 1e-4}]",
        )
    return cast("list[Mapping[str, object]]", groups)


def _numbers(
    options: Mapping[str, object], names: Sequence[str], others: Sequence[str]
) -> dict[str, float]:
    """Return numbers by name, ``betas`` as two."""
    rest = dict(options)
    if "betas" in rest:
        rest["beta1"], rest["beta2"] = _pair("betas", rest.pop("betas"))
    if isinstance(rest.get("eps"), tuple | list):
        first, rest["eps2"] = _pair("eps", rest.pop("eps"))
        if isinstance(first, int | float) and first < 0:
            raise IrcError("option-value", f"eps=({first}, ..): give None, or 0 or more")
        # A group may say None where the others have a number.
        rest["eps1"] = OF_DTYPE if first is None else first
    for name in rest:
        if name not in names:
            raise IrcError(
                "option-unknown",
                f"the optimiser has no option '{name}'",
                help=did_you_mean(name, (*others, *names)),
            )
    return {name: _number(name, value) for name, value in rest.items() if value is not None}


def _check_eps(kind: str, told: Sequence[Mapping[str, float]]) -> None:
    """Refuse one ``eps`` where an optimiser has two, and two where it has one."""
    has_two = kind == "adafactor"
    wrong = ("eps",) if has_two else ("eps1", "eps2")
    for name in wrong:
        if any(name in numbers for numbers in told):
            raise IrcError(
                "option-value",
                f"{kind} has {'two eps' if has_two else 'one eps'}",
                help="{'kind': 'adafactor', 'eps': (None, 1e-3)}" if has_two else "'eps': 1e-8",
            )


def _pair(name: str, value: object) -> tuple[object, object]:
    if isinstance(value, tuple | list):
        numbers = list(cast("Sequence[object]", value))
        if len(numbers) == 2:
            return numbers[0], numbers[1]
    raise IrcError("option-value", f"{name}={value!r}: an optimiser takes two numbers")


def _number(name: str, value: object) -> float:
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and (not is_flag or name in (*FLAGS, "amsgrad")):
        return float(value)
    raise IrcError("option-value", f"{name}={value!r} is not a number")


def _globs(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        patterns = list(cast("Sequence[object]", value))
        if all(isinstance(glob, str) for glob in patterns):
            return ",".join(map(str, patterns))
    raise IrcError("option-value", f"{name}={value!r}: give globs of parameter names")
