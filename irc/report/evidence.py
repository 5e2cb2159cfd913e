"""What a plan folder tells of itself: its actions, the IR after each pass, the search's report.

Nothing else is read: an explanation is of the plan that runs, wherever it was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.dialects.builder import functions
from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.errors import IrcError
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.schema import Plan
from irc.plan.training import SPLIT
from irc.search.facts import call_counts

FUNCTION = "task"
"""The only text that a function of a plan of several programs may keep; else its first is SPLIT."""


class Evidence:
    """A plan folder, parsed as far as somebody asks."""

    def __init__(self, loaded: LoadedPlan) -> None:
        self.loaded = loaded
        self._modules: dict[str, ModuleOp] = {}

    @staticmethod
    def of(folder: str | Path) -> Evidence:
        """Read a plan folder.

        Raises:
            IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``.
        """
        return Evidence(load_plan(folder))

    @property
    def plan(self) -> Plan:
        """The actions that run."""
        return self.loaded.plan

    @property
    def mesh(self) -> Mesh:
        """The mesh of the plan."""
        return self.plan.device_mesh

    @cached_property
    def passes(self) -> dict[str, str]:
        """The IR text after each pass, by the pass's name, in order; ``capture`` comes first."""
        return {Path(name).stem.partition("-")[2]: text for name, text in self.loaded.ir().items()}

    def after(self, name: str) -> ModuleOp:
        """Return the program as a pass left it; do not change it.

        Raises:
            IrcError: ``plan-corrupt``, where the folder has no such text.
        """
        if name not in self.passes:
            self._refuse_function()
            raise IrcError(
                "plan-corrupt",
                f"the plan has no IR text after '{name}'",
                because=f"it has {', '.join(self.passes) or 'none'}",
                help="compile the model again with this irc",
            )
        if name not in self._modules:
            self._modules[name] = load(self.passes[name], f"ir/{name}")
        return self._modules[name]

    def _refuse_function(self) -> None:
        """Refuse a function of a stage, of which nobody captured a program.

        Raises:
            IrcError: ``option-value``.
        """
        if next(iter(self.passes), "") in (FUNCTION, SPLIT):
            raise IrcError(
                "option-value",
                "this is a function of a plan of several programs, and no program by itself",
                help="name the folder of the whole, which has parts.json",
            )

    @property
    def last(self) -> ModuleOp:
        """The program as the last pass left it; do not change it."""
        return self.after(list(self.passes)[-1])

    def before(self, name: str) -> ModuleOp:
        """Return a fresh copy of the program that a pass was given, to run passes on.

        Raises:
            IrcError: ``plan-corrupt``, where the folder has no such text.
        """
        names = list(self.passes)
        if name not in names[1:]:
            self.after(name)
        previous = names[names.index(name) - 1]
        return load(self.passes[previous], f"ir/{previous}")

    @cached_property
    def logical(self) -> ModuleOp:
        """The last program of whole tensors: placed, where the plan is for several ranks."""
        self._refuse_function()
        names = list(self.passes)
        stop = next((n for n in ("lower-boxing", "fuse") if n in names[1:]), None)
        return self.after(names[names.index(stop) - 1] if stop else "capture")

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each function of the logical program runs in one call."""
        return call_counts(functions(self.logical))

    @cached_property
    def search(self) -> dict[str, Any]:
        """What auto-shard said of its choice; empty for one device, or without a report."""
        attr = self.logical.attributes.get("irc.plan_cost")
        if not isinstance(attr, StringAttr):
            return {}
        try:
            data: object = json.loads(attr.data)
        except (ValueError, RecursionError):
            raise IrcError("plan-corrupt", "irc.plan_cost is not JSON") from None
        if not isinstance(data, dict):
            raise IrcError("plan-corrupt", "irc.plan_cost is not a JSON object")
        return cast("dict[str, Any]", data)

    @property
    def cluster(self) -> str:
        """The machines that the plan was priced for."""
        return str(self.search.get("cluster") or self.plan.cluster or "this-host")
