"""Groups of parameters that an optimiser is told other numbers for.

A group is written ``head.*: rate=1 weight_decay=0``: globs of parameters, then numbers. What a
group does not say is the optimiser's, and of two groups that a parameter is in, the first counts.
Rates are numbered: 0 is the optimiser's own. They are an input of a step, which no number in a
program is, so that a schedule of rates needs one program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from irc.errors import IrcError, did_you_mean
from irc.training.entry import globs, matches

FLAGS = ("nesterov", "maximize", "centered")
"""Those that are 1 or 0."""

FACTORED = ("beta2_decay", "eps1", "eps2", "d")
"""Those of adafactor."""

OWN = (
    *("beta1", "beta2", "eps", "weight_decay", "momentum", "alpha", "rho", "lr_decay"),
    *FACTORED,
    *FLAGS,
)
"""The numbers that a group may have, beside its rate."""


@dataclass(frozen=True)
class Group:
    """Parameters and what is theirs.

    Attributes:
        params: globs of their names.
        numbers: under the names of pass ``add-optimizer``.
        lr: the rate of a call that gives none; None: the optimiser's.
    """

    params: str
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    lr: float | None = None


@dataclass(frozen=True)
class NumberedGroup:
    """A group in a program: its globs, its numbers, and which rate is its own."""

    params: tuple[str, ...]
    numbers: Mapping[str, float]
    rate: int = 0


def group_of(name: str, groups: Sequence[NumberedGroup]) -> NumberedGroup | None:
    """Return the group that a parameter is in."""
    return next((group for group in groups if matches(name, group.params)), None)


def numbered(groups: Sequence[Group]) -> list[NumberedGroup]:
    """Return groups with the numbers of their rates.

    >>> [group.rate for group in numbered([Group("a"), Group("b", lr=0.1), Group("c", lr=0.2)])]
    [0, 1, 2]
    """
    numbered_groups: list[NumberedGroup] = []
    count = 0
    for group in groups:
        count += group.lr is not None
        rate = 0 if group.lr is None else count
        numbered_groups.append(NumberedGroup(tuple(globs(group.params)), group.numbers, rate))
    return numbered_groups


def check_groups(groups: Sequence[Group], names: Sequence[str]) -> None:
    """Refuse globs that name no parameter.

    Args:
        groups: of an optimiser.
        names: of the parameters.

    Raises:
        IrcError: ``option-value``.
    """
    for glob in (glob for group in groups for glob in globs(group.params)):
        if not any(matches(name, (glob,)) for name in names):
            raise IrcError(
                "option-value",
                f"the optimiser has a group for '{glob}', and no parameter is called '{glob}'",
                help=did_you_mean(glob, names),
            )


def groups_text(groups: Sequence[Group]) -> str:
    """Return groups as the option ``groups`` of pass ``add-optimizer``.

    >>> groups_text([Group("head.*, tok", {"weight_decay": 0.0}, 0.1), Group("*.bias")])
    'head.*,tok: rate=1 weight_decay=0.0; *.bias: rate=0'
    """
    written: list[str] = []
    for group in numbered(groups):
        numbers = {"rate": group.rate, **group.numbers}
        said = " ".join(f"{name}={number!r}" for name, number in numbers.items())
        written.append(f"{','.join(group.params)}: {said}")
    return "; ".join(written)


def parse_groups(text: str) -> list[NumberedGroup]:
    """Read the option ``groups``.

    >>> parse_groups("head.*: rate=1 weight_decay=0")[0].numbers
    {'weight_decay': 0.0}

    Raises:
        ValueError: for what is no group.
    """
    groups: list[NumberedGroup] = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        params, colon, said = part.rpartition(":")
        pairs = [word.partition("=") for word in said.split()]
        numbers = {name: float(number) for name, _, number in pairs}
        rate = numbers.pop("rate", 0.0)
        if not colon or set(numbers) - set(OWN) or rate != int(rate) or rate < 0:
            raise ValueError(f"'{part}' is no group")
        groups.append(NumberedGroup(tuple(globs(params)), numbers, int(rate)))
    return groups
