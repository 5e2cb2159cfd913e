"""`irc list plugins`: what other packages register with irc, and whether it can be used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from irc.entry_points import (
    BACKENDS,
    KINDS,
    OPS,
    PASSES,
    POLICIES,
    SCHEDULES,
    Registered,
    load,
    registered,
)
from irc.errors import IrcError

USABLE, DISABLED, BROKEN, UNKNOWN = "usable", "disabled", "broken", "not imported"


@dataclass(frozen=True)
class Plugin:
    """One name that an installed package registers.

    Attributes:
        distribution: the package, as pip calls it.
        version: of the package; empty where its metadata has none.
        kind: ``pass``, ``backend``, ``ops``, ``schedule`` or ``policy``.
        name: what a user writes; of ops, their namespace.
        target: the module or object that stands for it.
        state: ``usable``, ``disabled`` (its name is taken), ``broken``, or ``not imported``.
        about: why it cannot be used; else, once imported, what it is in a few words.
    """

    distribution: str
    version: str
    kind: str
    name: str
    target: str
    state: str
    about: str


def installed_plugins(*, imported: bool) -> list[Plugin]:
    """Return what installed packages register, by package.

    Args:
        imported: import each, to know whether it can be used; what it prints goes to stderr.
    """
    from irc.installed import disabled

    plugins: list[Plugin] = []
    for group in KINDS:
        why = disabled(group)
        for each in registered(group):
            if each in why:
                state, about = DISABLED, why[each]
            elif imported:
                state, about = _tried(group, each)
            else:
                state, about = UNKNOWN, ""
            plugins.append(_plugin(group, each, state, about))
    return sorted(plugins, key=lambda one: (one.distribution, [*KINDS.values()].index(one.kind)))


def text(those: Sequence[Plugin]) -> str:
    """Return plug-ins as lines, by package."""
    if not those:
        return "no installed package registers anything with irc"
    width = max(len(each.name) for each in those)
    states = max(len(each.state) for each in those)
    lines: list[str] = []
    for (package, version), own in groupby(those, lambda one: (one.distribution, one.version)):
        lines.append(f"{package} {version}".rstrip())
        lines += [
            f"  {one.kind:8}  {one.name:{width}}  {one.state:{states}}  {one.about or one.target}"
            for one in own
        ]
    return "\n".join(lines)


def _plugin(group: str, each: Registered, state: str, about: str) -> Plugin:
    version = each.entry.dist.version if each.entry.dist else ""
    return Plugin(each.package, version or "", KINDS[group], each.name, each.entry.value, state,
                  " ".join(about.split()))  # fmt: skip


def _tried(group: str, each: Registered) -> tuple[str, str]:
    """Import a plug-in; return its state, and what it is or why it is none."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return USABLE, IMPORTED[group](each)
        except IrcError as error:
            return BROKEN, "; ".join([*error.because, each.entry.value])


def _pass(each: Registered) -> str:
    from irc.plugin import load_pass

    return _first_line(load_pass(each))


def _backend(each: Registered) -> str:
    from irc.plugin import load_backend

    backend = load_backend(each)
    return f"writes *{backend.extension} for {', '.join(backend.targets)}"


def _ops(each: Registered) -> str:
    from irc.ops.custom import DECLARED

    load(OPS, each)
    return ", ".join(sorted(name for name in DECLARED if name.startswith(f"{each.name}::")))


def _schedule(each: Registered) -> str:
    from irc.schedule.named import plugin_generator

    return _first_line(plugin_generator(each))


def _policy(each: Registered) -> str:
    from irc.training.policies import plugin_policy

    return _first_line(plugin_policy(each))


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


IMPORTED: Mapping[str, Callable[[Registered], str]] = {
    PASSES: _pass,
    BACKENDS: _backend,
    OPS: _ops,
    SCHEDULES: _schedule,
    POLICIES: _policy,
}
"""By group: import a plug-in, and return what it is in a few words."""
