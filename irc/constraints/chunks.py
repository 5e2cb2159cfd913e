"""Constraints on collectives beside products: into how many pieces each is cut, by module.

``chunk layers.*.down = 4`` (``grammar/sharding.lark``) is about what is gathered before a product
with a weight of that module, and about the sums that are scattered after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from irc.constraints.pins import INLINE, constraint_tree, place
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp
from irc.errors import IrcError, did_you_mean
from irc.training.stage_names import named_by


@dataclass(frozen=True)
class ChunkPin:
    """One constraint.

    Attributes:
        names: of parameters, of modules, or globs.
        degree: the pieces, two or more; 1 leaves a collective whole.
        where: the file and line, for messages.
    """

    names: tuple[str, ...]
    degree: int
    where: str = INLINE

    def __str__(self) -> str:
        return f"chunk {', '.join(self.names)} = {self.degree}"


def parse_chunks(text: str, source: str = INLINE) -> tuple[ChunkPin, ...]:
    """Read the constraints on pieces among all constraints.

    >>> [str(pin) for pin in parse_chunks("chunk l.*.up, l.*.down = 4; x = S(0)")]
    ['chunk l.*.up, l.*.down = 4']

    Raises:
        IrcError: ``constraint-syntax``, with the line.
    """
    if re.search(r"\bchunk\b", text) is None:
        return ()  # as nearly always; the parser of the grammar takes 40 ms to make
    pins: list[ChunkPin] = []
    for node in constraint_tree(text, source).children:
        if node.data != "chunk":
            continue
        *names, degree = node.children
        here = place(node, text, source)
        if int(degree) < 1:
            raise IrcError("constraint-syntax", f"{degree} pieces are none", where=here)
        words = tuple(str(name.children[0]).strip('"') for name in names)
        pins.append(ChunkPin(words, int(degree), here))
    return tuple(pins)


class Degrees:
    """Constraints on pieces where they meet a program.

    Args:
        module: level spmd.
        pins: the constraints; of several that name one product the last holds.
        is_part: the program is one of several, of which others may have what is named.

    Raises:
        IrcError: ``input-mismatch`` for a name that no parameter has.
    """

    def __init__(
        self, module: ModuleOp, pins: Sequence[ChunkPin], *, is_part: bool = False
    ) -> None:
        self._pins = pins
        self._origins: Mapping[SSAValue, set[str]] = _origins(module) if pins else {}
        known = sorted(set[str]().union(*self._origins.values()))
        for pin in pins if not is_part else ():
            for word in pin.names:
                if not named_by(word, known):
                    raise IrcError(
                        "input-mismatch",
                        f"'{pin}' names no module that has parameters",
                        where=pin.where,
                        help=did_you_mean(word, known) or f"there are {', '.join(known[:6])}, ..",
                    )

    def of(self, start: Operation, wait: Operation) -> int | None:
        """Return the pieces that are asked for of a collective; None where nothing is said.

        What moves a parameter itself is not meant.
        """
        if not self._pins or any(value in self._origins for value in start.operands):
            return None
        beside = [value.owner for value in start.operands]
        beside += [use.operation for value in wait.results for use in value.uses]
        names = {name for op in beside for name in self._weights(op)}
        for pin in reversed(self._pins):
            if any(named_by(word, sorted(names)) for word in pin.names):
                return pin.degree
        return None

    def _weights(self, op: object) -> set[str]:
        if not isinstance(op, ContractOp):
            return set()
        return set[str]().union(*(self._origins.get(value, set()) for value in op.operands))


def _origins(module: ModuleOp) -> Mapping[SSAValue, set[str]]:
    """Return of which parameters values are, in called functions and behind views too."""
    known = functions(module)
    origins: dict[SSAValue, set[str]] = {
        value: {name} for role, name, value in arguments(entry(module)) if role == "parameter"
    }
    for func in reversed(list(known.values())):
        for op in func.body.block.ops:
            if isinstance(op, CallOp):
                callee = known[op.callee.string_value()].body.block
                for argument, value in zip(callee.args, op.operands, strict=True):
                    if value in origins:
                        origins.setdefault(argument, set()).update(origins[value])
            elif len(op.operands) == 1 and op.operands[0] in origins:
                for result in op.results:
                    origins[result] = origins[op.operands[0]]
    return origins
