"""The recipe of a training step: loss, optimiser, what is trained, how batches are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from irc.errors import IrcError, did_you_mean
from irc.training.optimizers import OPTIMIZERS

OptimizerOption: TypeAlias = "str | Mapping[str, object]"
"""A kind, ``adamw``, or ``{"kind": "adamw", "lr": 3e-4, "betas": (0.9, 0.95), ...}``."""

NUMBERS = ("beta1", "beta2", "eps", "weight_decay", "momentum", "clip_norm")
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

    @property
    def optimizer(self) -> dict[str, object]:
        """The options of pass ``add-optimizer``."""
        return {"kind": self.kind, "no_decay": self.no_decay, **self.numbers}


def recipe_of(
    optimizer: OptimizerOption,
    *,
    loss: str = "",
    frozen: str = "",
    micro_batches: int = 1,
    recompute: str = "none",
) -> Recipe:
    """Read what the user says of a training step.

    ``betas`` is taken as torch has it; ``sgd`` with a momentum is ``momentum``.

    >>> recipe_of({"kind": "sgd", "momentum": 0.9, "lr": 0.1}).optimizer
    {'kind': 'momentum', 'no_decay': '', 'momentum': 0.9}

    Raises:
        IrcError: ``option-unknown`` or ``option-value``.
    """
    given: dict[str, object] = (
        {"kind": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    )
    kind = given.pop("kind", "adamw")
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        raise IrcError(
            "option-value", f"no optimiser '{kind}'", help=did_you_mean(f"{kind}", OPTIMIZERS)
        )
    if "betas" in given:
        given["beta1"], given["beta2"] = _pair(given.pop("betas"))
    lr = _number("lr", given.pop("lr", DEFAULT_LR))
    no_decay = _globs(given.pop("no_decay", ""))
    for name in given:
        if name not in NUMBERS:
            known = ("kind", "lr", "betas", "no_decay", *NUMBERS)
            raise IrcError(
                "option-unknown",
                f"the optimiser has no option '{name}'",
                help=did_you_mean(name, known),
            )
    numbers = {name: _number(name, value) for name, value in given.items() if value is not None}
    if kind == "sgd" and numbers.get("momentum"):
        kind = "momentum"
    return Recipe(kind, numbers, no_decay, lr, loss, frozen, micro_batches, (), recompute)


def _pair(betas: object) -> tuple[object, object]:
    if isinstance(betas, tuple | list):
        numbers = list(cast("Sequence[object]", betas))
        if len(numbers) == 2:
            return numbers[0], numbers[1]
    raise IrcError("option-value", f"betas={betas!r}: an optimiser takes two numbers")


def _number(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise IrcError("option-value", f"{name}={value!r} is not a number")


def _globs(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        given = list(cast("Sequence[object]", value))
        if all(isinstance(glob, str) for glob in given):
            return ",".join(map(str, given))
    raise IrcError("option-value", f"no_decay={value!r}: give globs of parameter names")
