"""What other installed packages register with irc: five groups of entry points.

=============  =====================================  ======================================
group          a name is that of                      and stands for
=============  =====================================  ======================================
irc.passes     a pass (`irc.plugin`)                  a subclass of xdsl.passes.ModulePass
irc.backends   a backend (`irc.backends`)             a class with the methods of a backend
irc.ops        a namespace of ops (`irc.ops.custom`)  a module that declares ops when imported
irc.schedules  a schedule (`irc.schedule.named`)      a function that returns a schedule
irc.policies   a policy (`irc.training.policies`)     a function that chooses forward ops
=============  =====================================  ======================================

Nothing of a package is imported before somebody uses a name that it registers. What breaks on
import, and a name that two packages register, harm who uses that name, and nobody else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple

from irc.errors import IrcError

PASSES, BACKENDS, OPS = "irc.passes", "irc.backends", "irc.ops"
SCHEDULES, POLICIES = "irc.schedules", "irc.policies"

KINDS: Mapping[str, str] = {
    PASSES: "pass",
    BACKENDS: "backend",
    OPS: "ops",
    SCHEDULES: "schedule",
    POLICIES: "policy",
}
"""The groups, and what a name of each is called."""


class Registered(NamedTuple):
    """A name, the package that provides it, and the way to load it."""

    name: str
    package: str
    entry: EntryPoint


def registered(group: str) -> list[Registered]:
    """Return what packages other than irc register in a group, by name; none is imported."""
    return list(_registered(tuple((path, _changed_ns(path)) for path in sys.path)).get(group, ()))


# Reading what all packages register takes 7 ms, as long as half a small program's compilation.
@lru_cache(maxsize=4)
def _registered(_: tuple[tuple[str, int], ...]) -> dict[str, tuple[Registered, ...]]:
    every = entry_points()
    return {
        group: tuple(
            sorted(
                Registered(entry.name, entry.dist.name if entry.dist else "unknown package", entry)
                for entry in every.select(group=group)
            )
        )
        for group in KINDS
    }


def _changed_ns(path: str) -> int:
    """Return when packages were last put into a folder of ``sys.path``, or taken out."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def provider(group: str, name: str) -> Registered | None:
    """Return what provides a name of a group; None where no package registers it.

    Raises:
        IrcError: ``plugin-clash`` where several do.
    """
    those = [each for each in registered(group) if each.name == name]
    if len(those) > 1:
        raise clash(group, those)
    return those[0] if those else None


def clash(group: str, those: list[Registered]) -> IrcError:
    """Return the error for one name of several packages, irc first if it is one of them."""
    owners = [f"{each.package} (built in)" if each.package == "irc" else each.package
              for each in those]  # fmt: skip
    kind = KINDS[group]
    return IrcError(
        "plugin-clash",
        f"{len(those)} packages provide {kind} '{those[0].name}': {' and '.join(owners)}",
        because=[f"{each.package} registers it as {each.entry.value}" for each in those],
        help=f"uninstall {owners[-1]}, or rename the {kind} in it",
    )


def load(group: str, each: Registered) -> object:
    """Import what a package registers.

    Raises:
        IrcError: ``plugin-broken``, whatever the import raises.
    """
    try:
        return each.entry.load()
    except (Exception, SystemExit) as error:
        # A plug-in runs code of others on import; whatever it raises is about the plug-in.
        raise broken(group, each, f"{type(error).__name__}: {error}") from error


def broken(group: str, each: Registered, because: str) -> IrcError:
    """Return the error for a package that does not provide what it registers."""
    kind = KINDS[group]
    what = f"the {kind} of '{each.name}'" if group == OPS else f"the {kind} '{each.name}'"
    return IrcError(
        "plugin-broken",
        f"package '{each.package}' does not provide {what} that it registers",
        where=each.entry.value,
        because=because,
        help=f"mend or uninstall '{each.package}'; all else works without it",
    )
