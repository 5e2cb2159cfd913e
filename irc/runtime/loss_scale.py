"""The scale of a loss between steps: what it is now, and what a step that overflowed makes of it.

A ``torch.amp.GradScaler`` holds it, so that what users know of one is true here: the scale is
halved by a step that overflowed and was skipped, doubled after 2000 steps that did not, and saved
as torch saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

from irc.errors import IrcError, did_you_mean
from irc.training.loss_scale import LARGEST
from irc.training.precision import Precision

NUMBERS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
"""What the state of a scaler has."""
ARGUMENTS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
"""What a user may say in the place of a scaler."""
COUNTS = {"growth_interval": 1, "_growth_tracker": 0}
"""Which of them are integers, and the least that each may be."""
MOST = LARGEST["f32"]
"""A scale is float32."""


class LossScale:
    """The scale of a step's loss.

    Args:
        scaler: of torch; each step reads its numbers, and writes scale and count.

    Attributes:
        scale: what the loss is multiplied by now, float32 of shape [].
        inverse: one over it, float32 of shape [].
        overflowed: whether gradients of the last step did, so that nothing moved.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self.scale, self.inverse = torch.ones(()), torch.ones(())
        self.overflowed = False

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and inverse of the step that comes next."""
        self.scale.fill_(self.scaler.get_scale())
        # As torch has it: a scale may be no power of two.
        self.inverse.copy_(self.scale.double().reciprocal())
        return self.scale, self.inverse

    def update(self, overflows: torch.Tensor) -> None:
        """Go on from a step.

        Args:
            overflows: how many elements of gradients were infinite or NaN, over all ranks.
        """
        self.overflowed = bool(overflows > 0)
        state = self.scaler.state_dict()
        scale = torch.tensor(state["scale"], dtype=torch.float32)
        count = torch.tensor(state["_growth_tracker"], dtype=torch.int32)
        torch._amp_update_scale_(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            scale, count, overflows.detach().to("cpu", torch.float32).reshape(()),
            state["growth_factor"], state["backoff_factor"], state["growth_interval"],
        )  # fmt: skip
        self.scaler.load_state_dict({**state, "scale": float(scale), "_growth_tracker": int(count)})

    def state_dict(self) -> dict[str, Any]:
        """Return what torch's scaler has."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, or torch's scaler."""
        self.scaler.load_state_dict(dict(state))


def check_scale(state: object) -> None:
    """Refuse what is no state of a scaler; None is none at all.

    Raises:
        IrcError: ``state-mismatch`` where a number is missing, or cannot be.
    """
    if state is None:
        return
    if not _is_mapping(state):
        raise IrcError(
            "state-mismatch",
            f"the state of a loss scale is a mapping, not {type(state).__name__}",
            help="give what torch.amp.GradScaler.state_dict() returns",
        )
    for name in NUMBERS:
        if name not in state or not _is_held(name, state[name]):
            what = f"has {name}={state[name]!r}" if name in state else f"lacks '{name}'"
            raise IrcError(
                "state-mismatch",
                f"the state of a loss scale {what}",
                help="give what torch.amp.GradScaler.state_dict() returns",
            )


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_held(name: str, value: object) -> bool:
    """Return whether a scaler can hold a number: a count, or one above zero of float32."""
    if name in COUNTS:
        return type(value) is int and value >= COUNTS[name]
    return is_number(value) and 0 < value <= MOST


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, as those of a scaler are."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def loss_scale_of(precision: Precision) -> LossScale | None:
    """Return the scale that a policy asks for; None where the loss is not scaled.

    Raises:
        IrcError: ``option-value``.
    """
    if not precision.is_scaled:
        return None
    scaler = precision.scaler
    return LossScale(scaler if isinstance(scaler, torch.amp.GradScaler) else _made(scaler or {}))


def numbers_of(scaler: Any) -> dict[str, Any] | None:
    """Return the arguments of a scaler that is as this one is now; None is none at all.

    Args:
        scaler: a ``torch.amp.GradScaler``, or its arguments by name.

    Raises:
        IrcError: ``option-value``.
    """
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        _made(scaler)
        return dict(scaler)
    if not scaler.is_enabled():
        return {"enabled": False}
    state = scaler.state_dict()
    rest = {name: state[name] for name in ARGUMENTS if name in state}
    return {"init_scale": state["scale"], **rest}


def _made(numbers: Any) -> torch.amp.GradScaler:
    if not _is_mapping(numbers):
        raise IrcError(
            "option-value", f"scaler: {numbers!r} is no torch.amp.GradScaler and no mapping"
        )
    for name in numbers:
        if name not in ARGUMENTS:
            raise IrcError(
                "option-value",
                f"a loss scale has no '{name}'",
                help=did_you_mean(f"{name}", ARGUMENTS),
            )
    for name, value in numbers.items():
        if name == "enabled":
            wanted, fits = "True or False", isinstance(value, bool)
        elif name == "growth_interval":
            wanted, fits = "number of steps above 0", type(value) is int and value > 0
        else:
            wanted, fits = "number above 0 of float32", is_number(value) and 0 < value <= MOST
        if not fits:
            raise IrcError("option-value", f"scaler: {name}={value!r} is no {wanted}")
    try:
        # On the CPU, whatever computes: a scaler for GPUs is disabled where there is none.
        return torch.amp.GradScaler("cpu", **numbers)
    except AssertionError as error:
        raise IrcError("option-value", f"scaler: {error}") from None
