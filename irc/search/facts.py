"""What a search knows of a module before it knows the mesh: shared by all meshes that it tries."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue, Use

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import FlowOp
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.search.candidates import Traffics, known_candidates
from irc.search.options import Key, op_key
from irc.training.functions import kinds_of, sums_of
from irc.training.stage_runs import MICRO_BATCH, runs_of

if TYPE_CHECKING:
    from irc.sharding.boxing import LocalShape

NO_OPS: Mapping[Operation, int] = {}

NUMBERS = count()
"""Of ops that differ: two threads never give one number to two."""

LOADED = ("parameter", "buffer", "constant", "state", "accumulator", "cache", "boundary")
"""Roles whose ranks may load any slice, or hold any between calls."""


class Facts:
    """A module as a search sees it, while nobody changes it.

    Args:
        module: level flow.
        numbers: of ops that are equal, of other modules too; filled in.
        traffics: of functions of other modules; filled in.

    Attributes:
        functions: by name, callees before callers.
        counts: how often each runs when the entry runs once; of a stage of a pipeline, in a step.
        loaded: entry arguments that ranks load.
        traffic: what ops move that are fused with others.
        often: of ops that run another number of times than the function that they stand in.
        runs: of a stage of a pipeline, how a schedule runs its functions.
        kinds: the function that each op of such a stage's entry lands in.
        sums: sums of gradients of such a stage, and the accumulators that hold them.
    """

    def __init__(
        self,
        module: ModuleOp,
        numbers: dict[Key, int] | None = None,
        traffics: Traffics | None = None,
    ) -> None:
        known = functions(module)
        self.module = module
        self.functions = {name: known[name] for name in _callees_first(known)}
        self.runs = runs_of(module)
        self.kinds: dict[Operation, str] = {}
        self.sums: dict[SSAValue, BlockArgument] = {}
        self.often: dict[Operation, int] = {}
        if self.runs is not None:
            self.kinds = kinds_of(entry(module), merged=self.runs.merged)
            self.sums = sums_of(entry(module))
            self.often = {op: self.runs.count(kind) for op, kind in self.kinds.items()}
        self._end = entry(module).body.block.last_op if self.runs is not None else None
        self.counts = call_counts(known, self.often)
        self.place = {op: i for func in known.values() for i, op in enumerate(func.body.block.ops)}
        self.loaded = {value for role, _, value in arguments(entry(module)) if role in LOADED}
        same: Traffics = {} if traffics is None else traffics
        self.traffic = {op: t for f in known.values() for op, t in known_candidates(f, same)}
        self._keys: dict[FlowOp, Key] = {}
        self._numbers = {} if numbers is None else numbers
        self._uses: dict[SSAValue, list[Use]] = {}
        self._kinds: dict[SSAValue, tuple[LocalShape, str]] = {}

    def key(self, op: FlowOp) -> int:
        """Return a number that equal ops, alike in their kernels, have in common."""
        if op not in self._keys:
            key = op_key(op), self.traffic.get(op)
            self._keys[op] = self._numbers.setdefault(key, next(NUMBERS))
        return self._keys[op]  # type: ignore[return-value]  # a number by now

    def runs_in(self, value: SSAValue, use: Use) -> str | None:
        """Return the function that a boxing for a reader of a value lands in; None in a block."""
        op = use.operation
        if op in self.kinds:
            return self.kinds[op]
        # What is returned is boxed where it is made.
        own = value.owner
        return self.kinds.get(own, MICRO_BATCH[0]) if op is self._end else None  # type: ignore[arg-type]

    def shares(self, value: SSAValue, use: Use) -> str | None:
        """Return what readers of a value have in common that share its boxings.

        In a stage of a pipeline, those that run for each micro-batch, or in one function of the
        update: it sees nothing of what micro-batches make but sums.
        """
        kind = self.runs_in(value, use)
        return MICRO_BATCH[0] if kind in MICRO_BATCH else kind

    def is_of_sum(self, value: SSAValue, use: Use) -> bool:
        """True where a reader of a sum of gradients reads its accumulator."""
        return value in self.sums and self.runs_in(value, use) not in MICRO_BATCH

    def times(self, value: SSAValue, use: Use, count: int) -> int:
        """Return how often a boxing for a reader of a value runs.

        Args:
            value: what is boxed.
            use: its reader.
            count: how often the function runs that both are in.
        """
        if self.runs is not None and (kind := self.runs_in(value, use)) is not None:
            return self.runs.count(kind)
        own = value.owner
        own_count = self.often.get(own, count) if isinstance(own, Operation) else count
        return self.often.get(use.operation, own_count)

    def kind(self, value: SSAValue) -> tuple[LocalShape, str]:
        """Return shape and dtype of a value that is a tensor."""
        if value not in self._kinds:
            assert isinstance(value.type, TensorType)
            self._kinds[value] = value.type.static_shape(), value.type.dtype
        return self._kinds[value]

    def uses(self, value: SSAValue) -> list[Use]:
        """Return the uses in program order: xDSL's order is that of its edits."""
        if value not in self._uses:
            uses = list(value.uses)
            uses.sort(key=lambda use: (self.place[use.operation], use.index))
            self._uses[value] = uses
        return self._uses[value]


def call_counts(
    known: Mapping[str, FuncOp], often: Mapping[Operation, int] = NO_OPS
) -> dict[str, int]:
    """Return how often each function runs when the entry runs once.

    Args:
        known: the functions by name.
        often: of calls that run another number of times than the function that they stand in.
    """
    counts = dict.fromkeys(known, 0)
    counts["forward"] = 1
    for name in reversed(_callees_first(known)):
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                counts[op.callee.string_value()] += often.get(op, counts[name])
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
