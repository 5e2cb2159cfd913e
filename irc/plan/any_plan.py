"""A plan of any kind, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from irc.plan.host import HostPlan, is_host, load_host
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import is_parts, load_parts

AnyPlan: TypeAlias = LoadedPlan | PartsPlan | HostPlan
"""Of one program; of several, in stages; of a host program and its regions."""


def read_plan(folder: str | Path) -> AnyPlan:
    """Read a plan of any kind.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``.
    """
    if is_host(folder):
        return load_host(folder)
    return load_parts(folder) if is_parts(folder) else load_plan(folder)
