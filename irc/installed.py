"""Which of the installed plug-ins cannot be used, as far as their names alone say so.

A name that irc has, or that two packages register, would mean one thing or the other by the order
of installation. Such plug-ins are disabled: the first look-up of anything that plug-ins bring says
which, in one warning. All else works without them, and who names one is told why
(``plugin-clash``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint

from irc.entry_points import (
    BACKENDS,
    KINDS,
    OPS,
    PASSES,
    POLICIES,
    SCHEDULES,
    Registered,
    registered,
)


class PluginWarning(UserWarning):
    """A plug-in that nobody can use is installed; what does not name it works as without it."""


OWN: Mapping[str, str] = {
    PASSES: "irc.passes:BUILTIN",
    BACKENDS: "irc.backends:BUILTIN",
    OPS: "irc.ops.custom:LIBRARIES",
    SCHEDULES: "irc.schedule.named:BUILTIN",
    POLICIES: "irc.training.policies:TAKEN",
}
"""What holds the names of irc itself, which no plug-in takes, by group. Rows are text: whoever
looks a name up imports this module, and nothing is to import the tables of all others with it."""


def disabled(group: str) -> dict[Registered, str]:
    """Return why plug-ins of a group cannot be used, as far as names alone say so."""
    if not (those := registered(group)):
        return {}
    own: frozenset[str] = frozenset(EntryPoint(group, OWN[group], group).load())
    kind = "namespace of ops" if group == OPS else KINDS[group]
    reasons: dict[Registered, str] = {}
    for each in those:
        others = sorted({o.package for o in those if o.name == each.name and o is not each})
        if each.name in own:
            reasons[each] = f"irc has a {kind} of this name"
        elif others:
            reasons[each] = f"{' and '.join(others)} has a {kind} of this name, too"
    return reasons


@cache
def warn_of_disabled() -> None:
    """Say once, in one warning, which installed plug-ins nobody can use."""
    lines = [
        f"{KINDS[group]} '{each.name}' of package '{each.package}' ({why})"
        for group in KINDS
        for each, why in disabled(group).items()
    ]
    if lines:
        text = f"disabled: {'; '.join(lines)}; irc list --verbose shows all plug-ins"
        warnings.warn(text, PluginWarning, stacklevel=3)
