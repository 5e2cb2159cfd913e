"""What a search knows of a module before it knows the mesh: shared by all meshes that it tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue, Use

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import FlowOp, phase_of
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.search.candidates import candidates
from irc.search.options import Key, op_key
from irc.training.accumulators import MICRO_BATCHES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from irc.sharding.boxing import LocalShape

LOADED = ("parameter", "buffer", "constant", "state", "accumulator", "cache", "boundary")
"""Roles whose ranks may load any slice, or hold any between calls."""


class Facts:
    """A module as a search sees it, while nobody changes it.

    Args:
        module: level flow.

    Attributes:
        functions: by name, callees before callers.
        repeats: micro-batches of a step, which the entry is of one of.
        counts: how often each function runs in a step.
        once: ops of the entry that run once a step, after all micro-batches.
        loaded: entry arguments that ranks load.
        traffic: what ops move that are fused with others.
        often: of calls that run another number of times than the function that they stand in.
    """

    def __init__(self, module: ModuleOp) -> None:
        known = functions(module)
        self.module = module
        self.functions = {name: known[name] for name in _callees_first(known)}
        self.repeats = micro_batches_of(module)
        self.counts = call_counts(known, self.repeats)
        ops = entry(module).body.block.ops
        self.once = {op for op in ops if self.repeats > 1 and phase_of(op) == "step"}
        self.place = {op: i for func in known.values() for i, op in enumerate(func.body.block.ops)}
        self.loaded = {value for role, _, value in arguments(entry(module)) if role in LOADED}
        self.traffic = {op: t for func in known.values() for op, t in candidates(func)}
        self.often: dict[Operation, int] = {}
        self._keys: dict[FlowOp, Key] = {}
        self._numbers: dict[Key, int] = {}
        self._uses: dict[SSAValue, list[Use]] = {}
        self._kinds: dict[SSAValue, tuple[LocalShape, str]] = {}

    def key(self, op: FlowOp) -> int:
        """Return a number that equal ops, alike in their kernels, have in common."""
        if op not in self._keys:
            key = op_key(op), self.traffic.get(op)
            self._keys[op] = self._numbers.setdefault(key, len(self._numbers))
        return self._keys[op]  # type: ignore[return-value]  # a number by now

    def kind(self, value: SSAValue) -> tuple[LocalShape, str]:
        """Return shape and dtype of a value that is a tensor."""
        if value not in self._kinds:
            assert isinstance(value.type, TensorType)
            self._kinds[value] = value.type.static_shape(), value.type.dtype
        return self._kinds[value]

    def uses(self, value: SSAValue) -> list[Use]:
        """Return the uses in program order: xDSL's order is that of its edits."""
        if value not in self._uses:
            found = list(value.uses)
            found.sort(key=lambda use: (self.place[use.operation], use.index))
            self._uses[value] = found
        return self._uses[value]


def call_counts(known: Mapping[str, FuncOp], repeats: int = 1) -> dict[str, int]:
    """Return how often each function runs in a step.

    Args:
        known: the functions of a module.
        repeats: how often the entry runs, but for what it does in phase ``step``.
    """
    counts = dict.fromkeys(known, 0)
    counts["forward"] = repeats
    for name in reversed(_callees_first(known)):
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                is_once = name == "forward" and phase_of(op) == "step"
                counts[op.callee.string_value()] += 1 if is_once else counts[name]
    return counts


def micro_batches_of(module: ModuleOp) -> int:
    """Return how often forward and backward run before the step that the module ends with."""
    found = module.attributes.get(MICRO_BATCHES)
    return found.value.data if isinstance(found, IntegerAttr) else 1


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
