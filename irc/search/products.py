"""The matrix products of a call, or of a step of training: what no plan of it leaves out.

A product of a forward pass is computed where the call's results, or the loss, depend on it. Where
the loss does so smoothly, backward has a product more for each operand that depends on something
that is trained: one for the weight unless it is frozen, one for what the layers before it need.
Products without a weight do not count: they may be attention, whose kernels leave out what a mask
hides.

What a pass drops counts as long as it is there: bounds are made of modules that pass
``canonicalize`` has simplified, from which a side is gone that a literal condition does not choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.cost.kernels import computed_in
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp, FlowOp, tensor
from irc.dialects.literals import RandomOp
from irc.ops.derivatives import is_flat, is_smooth
from irc.ops.infer import parse_spec
from irc.ops.rule import RuleError
from irc.ops.work import flops
from irc.training.entry import is_frozen, loss_index

Flags: TypeAlias = tuple[bool, ...]
"""One for each argument, or each result, of a function."""


def products_of_call(module: ModuleOp) -> dict[str, float]:
    """Return the flops of the products of a call, by the dtype that they are computed in.

    Args:
        module: level flow; it stays as it is.
    """
    return _of(_call(module))


def read_by_call(module: ModuleOp) -> set[str]:
    """Return the names of the parameters that the results of a call depend on.

    Args:
        module: level flow; it stays as it is.
    """
    return _named(module, _call(module).values)


def products_of_step(
    module: ModuleOp, trained: Collection[str], loss: str = ""
) -> dict[str, float]:
    """Return the flops of the products of a step of training, by dtype; no layer is computed again.

    Args:
        module: the forward pass, level flow; it stays as it is.
        trained: names of the parameters that move.
        loss: the name of the result that is the loss; empty where only one is a real scalar.

    Raises:
        IrcError: ``loss-unknown``.
    """
    return _of(_step(module, trained, loss))


def moved_by_step(module: ModuleOp, trained: Collection[str], loss: str = "") -> set[str]:
    """Return the names of the parameters that the loss depends on smoothly: a step moves them.

    Args:
        module: as of :func:`products_of_step`.
        trained: as of it.
        loss: as of it.

    Raises:
        IrcError: ``loss-unknown``.
    """
    return _named(module, _step(module, trained, loss).gradients)


def _call(module: ModuleOp) -> _Needed:
    func = entry(module)
    moving = tuple(role == "input" for role, _, _ in arguments(func))
    none = (False,) * len(moving)
    ends = _ends(func)
    return _Products(functions(module)).of("forward", moving, none, ends, (False,) * len(ends))


def _step(module: ModuleOp, trained: Collection[str], loss: str) -> _Needed:
    func = entry(module)
    active = tuple(
        role == "parameter" and name in trained and is_smooth(value) and not is_frozen(func, value)
        for role, name, value in arguments(func)
    )
    moving = tuple(role == "input" for role, _, _ in arguments(func))
    index = loss_index(func, loss)
    ends = tuple(number == index for number in range(len(_ends(func))))
    return _Products(functions(module)).of("forward", moving, active, ends, ends)


def _of(needed: _Needed) -> dict[str, float]:
    return {dtype: float(number) for dtype, number in needed.work.items()}


def _named(module: ModuleOp, flags: Flags) -> set[str]:
    """Return the names of the parameters with a flag."""
    every = zip(arguments(entry(module)), flags, strict=True)
    return {name for (role, name, _), flag in every if flag and role == "parameter"}


def _ends(func: FuncOp) -> Flags:
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    return (True,) * len(end.operands)


@dataclass(frozen=True)
class _Seen:
    """Values of a function that depend on inputs, and smoothly on what is trained."""

    moving: frozenset[SSAValue]
    active: frozenset[SSAValue]


@dataclass(frozen=True)
class _Needed:
    """What of a function's arguments is needed, and has its gradient asked for; and its work."""

    values: Flags
    gradients: Flags
    work: Counter[str]


@dataclass
class _Products:
    """Counts products over calls: two calls of a layer may differ in what is trained before it."""

    known: dict[str, FuncOp]
    _seen: dict[object, _Seen] = field(default_factory=dict[object, _Seen])
    _needed: dict[object, _Needed] = field(default_factory=dict[object, _Needed])

    def of(
        self, name: str, moving: Flags, active: Flags, values: Flags, gradients: Flags
    ) -> _Needed:
        return self._back(name, (moving, active), (values, gradients))

    def _forth(self, name: str, starts: tuple[Flags, Flags]) -> _Seen:
        key = name, starts
        if key not in self._seen:
            block = self.known[name].body.block
            moving, active = (_chosen(block.args, flags) for flags in starts)
            for op in block.ops:
                if isinstance(op, CallOp):
                    inner = op.callee.string_value()
                    seen = self._forth(inner, _flags(op.operands, moving, active))
                    end = self.known[inner].body.block.last_op
                    assert end is not None
                    flags = _flags(end.operands, seen.moving, seen.active)
                    moving |= _chosen(op.results, flags[0])
                    active |= _chosen(op.results, flags[1])
                    continue
                if isinstance(op, RandomOp) or not moving.isdisjoint(op.operands):
                    moving.update(op.results)
                is_even = isinstance(op, FlowOp) and is_flat(op)
                if not is_even and not active.isdisjoint(op.operands):
                    active.update(value for value in op.results if is_smooth(value))
            self._seen[key] = _Seen(frozenset(moving), frozenset(active))
        return self._seen[key]

    def _back(self, name: str, starts: tuple[Flags, Flags], ends: tuple[Flags, Flags]) -> _Needed:
        key = name, starts, ends
        if key in self._needed:
            return self._needed[key]
        seen, block = self._forth(name, starts), self.known[name].body.block
        end = block.last_op
        assert end is not None
        values, gradients = (_chosen(end.operands, flags) for flags in ends)
        gradients &= seen.active
        work: Counter[str] = Counter()
        for op in reversed(list(block.ops)):
            if op is end or values.isdisjoint(op.results):
                continue
            if isinstance(op, CallOp):
                inside = self._back(
                    op.callee.string_value(),
                    _flags(op.operands, seen.moving, seen.active),
                    _flags(op.results, values, gradients),
                )
                values |= _chosen(op.operands, inside.values)
                gradients |= _chosen(op.operands, inside.gradients) & seen.active
                work += inside.work
                continue
            is_smoothly = not gradients.isdisjoint(op.results)
            values.update(op.operands)
            if isinstance(op, ContractOp) and _counts(op, seen):
                work += _work(op, seen.active if is_smoothly else frozenset())
            if is_smoothly:
                gradients |= seen.active.intersection(op.operands)
        self._needed[key] = _Needed(*_flags(block.args, values, gradients), work)
        return self._needed[key]


def _counts(op: ContractOp, seen: _Seen) -> bool:
    """Whether a product has a weight, and is not of frozen ones alone, which can be folded."""
    moving = [value in seen.moving for value in op.operands]
    return not all(moving) and (any(moving) or not seen.active.isdisjoint(op.operands))


def _work(op: ContractOp, active: frozenset[SSAValue]) -> Counter[str]:
    """Return the work of a product, and of its gradients for operands that ask for one."""
    try:
        own = flops(op)
    except (RuleError, KeyError, ValueError):
        return Counter()
    work = Counter({computed_in(op): own})
    letters, result = parse_spec(op.spec)
    for number, value in enumerate(op.inputs):
        others = {*result}.union(*(mine for i, mine in enumerate(letters) if i != number))
        # What this operand alone has is added up, and its gradient is no product over it.
        if value in active and len(letters) > 1 and others.issuperset(letters[number]):
            work[tensor(value).dtype] += own
    return work


def _chosen(values: Sequence[SSAValue], flags: Flags) -> set[SSAValue]:
    return {value for value, flag in zip(values, flags, strict=True) if flag}


def _flags(
    values: Sequence[SSAValue], *sets: set[SSAValue] | frozenset[SSAValue]
) -> tuple[Flags, Flags]:
    one, two = (tuple(value in each for value in values) for each in sets)
    return one, two
