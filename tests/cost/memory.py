"""Bytes that one rank holds, op by op: what the sums of searches are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.comm import PendingType
from irc.dialects.types import ITEM_BYTES, TensorType

LOADED = frozenset({"parameter", "buffer", "constant", "state", "accumulator", "cache"})


@dataclass(frozen=True)
class Memory:
    """What one rank holds.

    Attributes:
        loaded_bytes: parameters, buffers, constants and states.
        live_bytes: inputs and activations at the op where they are most; no buffer is shared.
    """

    loaded_bytes: int
    live_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.loaded_bytes + self.live_bytes


def memory_of(module: ModuleOp) -> Memory:
    """Return what a rank holds of a program of level spmd (or of level flow, for one device)."""
    func = entry(module)
    roles = {value: role for role, _, value in arguments(func)}
    loaded = {value for value, role in roles.items() if role in LOADED}
    live = _peak(func, functions(module), frozenset(loaded))
    return Memory(sum(num_bytes(value) for value in loaded), live)


def num_bytes(value: SSAValue) -> int:
    """Return the bytes of a value: of a collective in flight, those of its result."""
    kind = value.type.tensor if isinstance(value.type, PendingType) else value.type
    if not isinstance(kind, TensorType):
        return 0
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]


def _peak(func: FuncOp, known: Mapping[str, FuncOp], free: frozenset[SSAValue]) -> int:
    """Return the most bytes that are live at one op; a value dies after its last reader."""
    ops = list(func.body.block.ops)
    last = _last_readers(ops)
    live: set[SSAValue] = {
        value for value in func.body.block.args if value not in free and value in last
    }
    held = sum(map(num_bytes, live))
    peak = held
    for index, op in enumerate(ops):
        held += sum(map(num_bytes, op.results))
        inside = 0
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            # The callee's arguments are alive outside already.
            inside = _peak(callee, known, frozenset(callee.body.block.args))
            inside = max(0, inside - sum(map(num_bytes, op.results)))
        peak = max(peak, held + inside)
        live.update(op.results)
        for value in [v for v in live if last.get(v, index) <= index]:
            live.remove(value)
            held -= num_bytes(value)
    return peak


def _last_readers(ops: list[Operation]) -> dict[SSAValue, int]:
    return {value: index for index, op in enumerate(ops) for value in op.operands}
