"""Where the values of a program lie, as far as its memory passes have decided.

Behind ``inline-blocks`` a program is one function, and each pass writes one decision on the ops
that make values: a number for each result.

============  ===============================  ====================================================
attribute     decided by                       what the number says of a result
============  ===============================  ====================================================
``into``      update-caches, insert-copies,    the argument that it is written into; -1: into none
              update-in-place
``prepared``  prepare-weights                  1: read at every call; 0: by the preparation alone
``over``      reuse-memory                     the operand that it is written over; -1: over none
``arena``     plan-memory                      its bytes from the start of the arena; -1: elsewhere.
                                               Behind the results: what is packed to be sent, and
                                               what is received packed
============  ===============================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from irc.dialects.attributes import integers, to_python
from irc.dialects.builder import arguments, results
from irc.dialects.comm import CollectiveOp, PendingType, WaitOp
from irc.dialects.items import ITEM_BYTES
from irc.dialects.launches import ViewOp
from irc.dialects.types import TensorType, tensor_type
from irc.errors import IrcError
from irc.plan.packing import Shape, scratch_sizes
from irc.plan.schema import row_major

INTO, PREPARED, OVER, ARENA = "into", "prepared", "over", "arena"
ARENA_BYTES, ARENA_LOWER_BYTES = "irc.arena_bytes", "irc.arena_lower_bytes"
"""Attributes of the module: how much a call leases, and the most that is alive at one time."""

CALLER_ROLES = ("input", "value", "cache", "saved", "boundary")
"""Roles of arguments that the caller gives anew; the others are weights and states."""

Signature: TypeAlias = tuple[Shape, str]
"""Sizes and dtype."""


def decided(op: Operation, name: str) -> tuple[int, ...]:
    """Return a decision on an op, a number for each result; empty where there is none."""
    attr = op.attributes.get(name)
    return () if attr is None else to_python(attr)


def decide(op: Operation, name: str, numbers: Sequence[int]) -> None:
    """Write a decision on an op."""
    op.attributes[name] = integers(tuple(numbers))


def signature_of(value: SSAValue) -> Signature:
    """Return the sizes of a value, or of what a collective in flight will give, and its dtype.

    Raises:
        IrcError: ``op-unsupported`` for what is no tensor; ``ir-invalid`` where a size has a name.
    """
    kind = value.type
    if isinstance(kind, PendingType):
        kind = tensor_type(kind.tensor)
    if not isinstance(kind, TensorType):
        raise IrcError("op-unsupported", f"a value of type {kind} has no place in a plan")
    try:
        return kind.static_shape(), kind.dtype
    except ValueError as error:
        raise IrcError("ir-invalid", f"{kind} in a plan: {error}") from None


def num_bytes(value: SSAValue) -> int:
    """Return the bytes of a dense value."""
    shape, dtype = signature_of(value)
    return prod(shape) * ITEM_BYTES[dtype]


def held_arguments(func: FuncOp) -> dict[str, BlockArgument]:
    """Return by name the arguments that a program may change: weights, states and caches."""
    caches: dict[str, BlockArgument] = {}
    weights: dict[str, BlockArgument] = {}
    for role, name, value in arguments(func):
        assert isinstance(value, BlockArgument)
        if role == "cache":
            caches[name] = value
        elif role not in CALLER_ROLES:
            weights[name] = value
    return {**weights, **caches}


def returned(func: FuncOp) -> list[tuple[str, SSAValue, BlockArgument | None]]:
    """Return of each result its name, its value, and the argument that it is the new value of."""
    end, held = func.body.block.last_op, held_arguments(func)
    assert isinstance(end, ReturnOp)
    return [
        (name, value, held.get(name) if role == "state" else None)
        for (role, name), value in zip(results(func), end.operands, strict=True)
    ]


def steps_of(block: Block) -> list[Operation]:
    """Return the ops that do something, in the order of time: the prepared ones come first."""
    steps = [op for op in block.ops if not isinstance(op, ViewOp | ReturnOp)]
    return [
        *(op for op in steps if PREPARED in op.attributes),
        *(op for op in steps if PREPARED not in op.attributes),
    ]


class View(NamedTuple):
    """What of a memory a value shows: bytes from its start, strides where it has gaps."""

    offset: int = 0
    strides: tuple[int, ...] | None = None


WHOLE = View()


class Memories:
    """Which value's memory each value of a function shows, by the decisions on it.

    Args:
        func: the entry, with all blocks inlined.
    """

    def __init__(self, func: FuncOp) -> None:
        self._arguments = func.body.block.args
        self._roots: dict[SSAValue, SSAValue] = {}
        self._views: dict[SSAValue, View] = {}
        for op in func.body.block.ops:
            self._see(op)
        self.outputs = {self.root(value) for _, value, state in returned(func) if state is None}

    def root(self, value: SSAValue) -> SSAValue:
        """Return the value whose memory a value shows."""
        return self._roots.get(value, value)

    def view(self, value: SSAValue) -> View:
        """Return how a value shows its root's memory."""
        return self._views.get(value, WHOLE)

    def is_view(self, value: SSAValue) -> bool:
        """True for what ``task.view`` gives."""
        return value in self._views

    def is_dense(self, value: SSAValue) -> bool:
        """True where elements lie row-major without gaps."""
        return self.view(value).strides is None

    def whole(self, value: SSAValue) -> SSAValue:
        """Return the root of a value that is all of its elements in their order; else the value."""
        root, view = self.root(value), self.view(value)
        if root is value:
            return value
        (shape, dtype), (all_shape, all_dtype) = signature_of(value), signature_of(root)
        alike = view.strides is None and (prod(shape), dtype) == (prod(all_shape), all_dtype)
        return root if alike and view.offset == 0 else value

    def is_in_arena(self, value: SSAValue) -> bool:
        """True for a value with memory of its own that a call leases for it."""
        return (
            isinstance(value, OpResult)
            and value not in self._roots
            and value not in self.outputs
            and not any(decided(value.op, PREPARED)[value.index : value.index + 1])
        )

    def touched(self, op: Operation) -> Iterator[SSAValue]:
        """Yield the memories that must be there at a step; what a collective uses, until its wait.

        One may come several times.
        """
        if isinstance(op, WaitOp):
            op = collective_of(op)
        for value in op.operands:
            yield self.root(value)
        for value in op.results:
            yield self.root(value)

    def _see(self, op: Operation) -> None:
        if isinstance(op, ViewOp):
            source, result = op.x, op.outputs[0]
            self._roots[result] = self.root(source)
            self._views[result] = shown(op, self.view(source).offset)
        elif isinstance(op, WaitOp):
            self._roots[op.outputs[0]] = self.root(op.pending)
        for result, place in zip(op.results, decided(op, INTO), strict=False):
            if place >= 0:
                self._roots[result] = self._arguments[place]
        for result, place in zip(op.results, decided(op, OVER), strict=False):
            if place >= 0:
                self._roots[result] = self.root(op.operands[place])


def shown(op: ViewOp, start: int) -> View:
    """Return what a view shows of a memory of which it has the bytes from ``start`` on."""
    shape, dtype = signature_of(op.outputs[0])
    attrs = op.plain
    strides = tuple(attrs["strides"])
    # The stride of a dim of size 1 (or of anything in an empty tensor) is never used.
    dense = 0 in shape or all(
        n == 1 or s == d for n, s, d in zip(shape, strides, row_major(shape), strict=True)
    )
    return View(start + attrs["offset"] * ITEM_BYTES[dtype], None if dense else strides)


def collective_of(op: WaitOp) -> CollectiveOp:
    """Return what a wait waits for."""
    begun = op.pending.owner
    assert isinstance(begun, CollectiveOp)
    return begun


def scratch_of(op: CollectiveOp, ranks: int) -> tuple[Shape | None, Shape | None]:
    """Return the sizes of what a collective packs to send, and receives packed; None: nothing.

    Args:
        op: with tensors of one rank.
        ranks: how many take part.
    """
    (source, _), (target, _) = signature_of(op.x), signature_of(op.outputs[0])
    return scratch_sizes(op.name, op.plain, source, target, ranks)
