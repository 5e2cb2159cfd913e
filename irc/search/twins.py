"""Ops of an optimiser's step that plan as others do: one formula for the weights of each layer.

A training step has a dozen ops for each parameter. Those of one weight of a layer differ from those
of the same weight of another layer in nothing that a plan depends on, as far as the layers are
calls of one block. They are found by colour refinement: ops have one colour while they are alike,
read values of one colour, and are read alike, until no colour parts further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, results
from irc.dialects.flow import FlowOp
from irc.dialects.types import TensorType

Colour: TypeAlias = object


def phase_of(op: Operation) -> str:
    """Return what part of a training step an op belongs to; empty where nobody said."""
    attr = op.attributes.get("phase") or op.properties.get("phase")
    return attr.data if isinstance(attr, StringAttr) else ""


def twins(
    func: FuncOp, key: Callable[[FlowOp], Colour], fixed: Callable[[str], Colour]
) -> dict[Operation, Operation]:
    """Return, for each op of a step that plans as an earlier one, that one.

    Args:
        func: the entry.
        key: what equal ops have in common.
        fixed: what the user fixes of an argument.
    """
    steps = [op for op in func.body.block.ops if isinstance(op, FlowOp) and phase_of(op) == "step"]
    if not steps:
        return {}
    colours = _Refinement(func, steps, key, fixed).run()
    first: dict[Colour, Operation] = {}
    found: dict[Operation, Operation] = {}
    for op in steps:
        known = first.setdefault(colours[op.results[0]], op)
        if known is not op:
            found[op] = known
    return found


@dataclass
class _Refinement:
    func: FuncOp
    steps: list[FlowOp]
    key: Callable[[FlowOp], Colour]
    fixed: Callable[[str], Colour]

    def run(self) -> Mapping[SSAValue, int]:
        colour = self._start()
        readers = self._readers()
        while True:
            numbers: dict[Colour, int] = {}
            after = {
                value: numbers.setdefault(
                    (colour[value], self._made(value, colour), _read(value, readers, colour)),
                    len(numbers),
                )
                for value in colour
            }
            if len(numbers) == len(set(colour.values())):
                return after
            colour = after

    def _start(self) -> dict[SSAValue, int]:
        """Colour arguments and what steps make; of anything else each value is its own."""
        numbers: dict[Colour, int] = {}
        colour: dict[SSAValue, int] = {}
        for role, name, value in arguments(self.func):
            kind = (role, value.type, self.fixed(name))
            colour[value] = numbers.setdefault(kind, len(numbers))
        own = set(self.steps)
        for op in self.func.body.block.ops:
            for i, value in enumerate(op.results):
                if isinstance(op, CallOp):
                    kind = (op.callee.string_value(), i)
                elif op in own:
                    kind = (self.key(op), i) if isinstance(op, FlowOp) else value
                else:
                    kind = value
                colour[value] = numbers.setdefault(kind, len(numbers))
        self._own = own
        return colour

    def _made(self, value: SSAValue, colour: Mapping[SSAValue, int]) -> Colour:
        owner = value.owner
        if not isinstance(owner, FlowOp) or owner not in self._own or _is_scalar(value):
            return None
        return tuple(colour[operand] for operand in owner.operands)

    def _readers(self) -> dict[SSAValue, list[tuple[Operation, int]]]:
        found: dict[SSAValue, list[tuple[Operation, int]]] = {}
        for op in self.func.body.block.ops:
            for i, value in enumerate(op.operands):
                found.setdefault(value, []).append((op, i))
        end = self.func.body.block.last_op
        self._states: dict[int, SSAValue] = {}
        if isinstance(end, ReturnOp):
            held = {name: value for _, name, value in arguments(self.func)}
            for i, (role, name) in enumerate(results(self.func)):
                if role in ("state", "gradient") and name in held:
                    self._states[i] = held[name]
        return {value: [*map(self._how, every)] for value, every in found.items()}  # type: ignore[misc]

    def _how(self, use: tuple[Operation, int]) -> Colour:
        op, i = use
        if isinstance(op, CallOp):
            return op.callee.string_value(), i
        if isinstance(op, ReturnOp):
            return ("state", self._states[i]) if i in self._states else ("return", i)
        return ("step" if op in self._own else "op", op, i)


def _is_scalar(value: SSAValue) -> bool:
    # A norm over all parameters is a chain of scalars, in which no two links are alike.
    return isinstance(value.type, TensorType) and not value.type.shape


def _read(
    value: SSAValue,
    readers: Mapping[SSAValue, Sequence[Colour]],
    colour: Mapping[SSAValue, int],
) -> Colour:
    if _is_scalar(value):
        return None
    return frozenset(_seen(how, colour) for how in readers.get(value, ()))


def _seen(how: Colour, colour: Mapping[SSAValue, int]) -> Colour:
    match how:
        case ("state", SSAValue() as held):  # pyright: ignore[reportUnknownVariableType]
            return "state", colour[held]
        case ("step", FlowOp() as op, int(i)):
            return colour[op.results[0]], i
        case _:
            return how
