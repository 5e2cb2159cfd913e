"""States that an eager optimiser is to go on from, held against those that its class keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from irc.errors import IrcError

ALWAYS, MAYBE = "", "maybe"

_ADAM = {"step": ALWAYS, "exp_avg": ALWAYS, "exp_avg_sq": ALWAYS, "max_exp_avg_sq": "amsgrad"}

KEPT: Mapping[type, Mapping[str, str]] = {
    torch.optim.SGD: {"momentum_buffer": MAYBE},
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.Adagrad: {"step": ALWAYS, "sum": ALWAYS},
    torch.optim.RMSprop: {
        "step": ALWAYS,
        "square_avg": ALWAYS,
        "momentum_buffer": "momentum",
        "grad_avg": "centered",
    },
    torch.optim.Adamax: {"step": ALWAYS, "exp_avg": ALWAYS, "exp_inf": ALWAYS},
    torch.optim.Adadelta: {"step": ALWAYS, "square_avg": ALWAYS, "acc_delta": ALWAYS},
    torch.optim.NAdam: {
        "step": ALWAYS,
        "mu_product": ALWAYS,
        "exp_avg": ALWAYS,
        "exp_avg_sq": ALWAYS,
    },
    torch.optim.RAdam: {"step": ALWAYS, "exp_avg": ALWAYS, "exp_avg_sq": ALWAYS},
    torch.optim.ASGD: {"step": ALWAYS, "eta": ALWAYS, "mu": ALWAYS, "ax": ALWAYS},
    torch.optim.Rprop: {"step": ALWAYS, "prev": ALWAYS, "step_size": ALWAYS},
    torch.optim.Muon: {"momentum_buffer": ALWAYS},
}
"""What a class of torch keeps of a parameter: always, maybe, or where an option of that name is on.

Of other classes nobody knows before they have taken a step.
"""


def check_class(optimizer: torch.optim.Optimizer, name: object) -> None:
    """Refuse states of an optimiser of another class.

    Args:
        optimizer: that is to take them.
        name: of the class that kept them; None where the state does not say it.

    Raises:
        IrcError: ``state-mismatch``.
    """
    own = type(optimizer).__name__
    if not keeps_alike(name, own):
        raise IrcError(
            "state-mismatch",
            f"the state is of {name}, and the optimiser is {own}",
            help="load the parameters alone: step.load(folder, optimizer=False)",
        )


def keeps_alike(name: object, own: str) -> bool:
    """Return whether an optimiser may take the states of another.

    Which of the two formulas an Adam has, its options say, too: their states are alike.

    Args:
        name: of the class that kept them; None where nobody says it.
        own: of the class that is to take them.

    >>> keeps_alike("AdamW", "Adam"), keeps_alike("AdamW", "RAdam")
    (True, False)
    """
    return name is None or name == own or {name, own} == {"Adam", "AdamW"}


def check_keys(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], name: str, keys: Collection[str]
) -> None:
    """Refuse states of a parameter that the class of an optimiser does not keep, or that lack one.

    Args:
        optimizer: that is to take them.
        group: of the parameter.
        name: of the parameter.
        keys: names of its states.

    Raises:
        IrcError: ``state-mismatch``.
    """
    if (kept := KEPT.get(type(optimizer))) is None:
        return
    own = type(optimizer).__name__
    advice = "load the parameters alone: step.load(folder, optimizer=False)"
    for key in keys:
        if key not in kept:
            raise IrcError("state-mismatch", f"{own} keeps no '{key}' of '{name}'", help=advice)
    for key, option in kept.items():
        is_needed = option == ALWAYS or (option != MAYBE and bool(group.get(option)))
        if is_needed and key not in keys:
            raise IrcError("state-mismatch", f"{own} needs '{key}' of '{name}'", help=advice)


def check_shape(name: str, key: str, shape: tuple[int, ...], own: tuple[int, ...]) -> None:
    """Refuse a state that is neither a number nor as large as its parameter.

    Raises:
        IrcError: ``state-mismatch``.
    """
    if shape not in ((), own):
        raise IrcError(
            "state-mismatch", f"'{key}' of '{name}' is {list(shape)}; the parameter is {list(own)}"
        )
