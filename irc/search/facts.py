"""What a search knows of a module before it knows the mesh: shared by all meshes that it tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue, Use

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import FlowOp
from irc.errors import InternalError
from irc.search.options import Key, op_key
from irc.search.twins import twins

if TYPE_CHECKING:
    from collections.abc import Mapping

LOADED = ("parameter", "buffer", "constant", "state")
"""Roles whose ranks may load any slice."""


class Facts:
    """A module as a search sees it, while nobody changes it.

    Args:
        module: level flow.
        fixed: what the user fixes of an entry argument, by name.

    Attributes:
        functions: by name, callees before callers.
        counts: how often each runs when the entry runs once.
        loaded: entry arguments that ranks load.
        twin: ops that plan as an earlier one does.
    """

    def __init__(
        self, module: ModuleOp, fixed: Callable[[str], object] = lambda name: None
    ) -> None:
        known = functions(module)
        self.module = module
        self.functions = {name: known[name] for name in _callees_first(known)}
        self.counts = call_counts(known)
        self.place = {op: i for func in known.values() for i, op in enumerate(func.body.block.ops)}
        self.loaded = {value for role, _, value in arguments(entry(module)) if role in LOADED}
        self._keys: dict[FlowOp, Key] = {}
        self._numbers: dict[Key, int] = {}
        self._uses: dict[SSAValue, list[Use]] = {}
        self.twin: dict[Operation, Operation] = twins(entry(module), self.key, fixed)

    def key(self, op: FlowOp) -> int:
        """Return a number that equal ops have in common."""
        if op not in self._keys:
            key = op_key(op)
            self._keys[op] = self._numbers.setdefault(key, len(self._numbers))
        return self._keys[op]  # type: ignore[return-value]

    def uses(self, value: SSAValue) -> list[Use]:
        """Return the uses in program order: xDSL's order is that of its edits."""
        if value not in self._uses:
            found = list(value.uses)
            found.sort(key=lambda use: (self.place[use.operation], use.index))
            self._uses[value] = found
        return self._uses[value]


def call_counts(known: Mapping[str, FuncOp]) -> dict[str, int]:
    """Return how often each function runs when the entry runs once."""
    counts = dict.fromkeys(known, 0)
    counts["forward"] = 1
    for name in reversed(_callees_first(known)):
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                counts[op.callee.string_value()] += counts[name]
    return counts


def _callees_first(known: Mapping[str, FuncOp]) -> list[str]:
    order: dict[str, None] = {}

    def visit(name: str, inside: tuple[str, ...]) -> None:
        if name in inside:
            raise InternalError(f"function @{name} calls itself")
        if name in order:
            return
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                visit(op.callee.string_value(), (*inside, name))
        order[name] = None

    for name in known:
        visit(name, ())
    return list(order)
