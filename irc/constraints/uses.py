"""Constraints by use: how a module's product uses its weight, and how lies what a module gives.

A placement says where a weight lies, and not whether it is used there or gathered before. ``use
layers.*.up = column-parallel`` says both: of a product, that every rank of an axis computes some
columns of the result (Shoeybi et al., arXiv:1909.08053). Here such lines meet the program and
become statements about its ops and arguments (:mod:`irc.constraints.resolve`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from irc.constraints.layouts import TENSOR
from irc.constraints.patterns import AxisPattern, Pattern
from irc.constraints.pins import (
    INLINE,
    Statement,
    constraint_tree,
    module_pins,
    parse_constraints,
    pattern_of,
    place,
)
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp, FlowOp, id_of, phase_of, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.placement import Mesh, Partial, Split
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.training.stage_names import named_by

COLUMNS, ROWS, SEQUENCES = "column-parallel", "row-parallel", "sequence-parallel"
STYLES = (COLUMNS, ROWS, SEQUENCES)
HELD = ("parameter", "buffer")


@dataclass(frozen=True)
class Use:
    """One constraint by use.

    Attributes:
        names: of parameters, of modules, or globs.
        style: one of ``STYLES``; empty where the result is pinned.
        axis: of the mesh; empty: the one that is called so.
        pattern: of the result; None where a style is named.
        where: the file and line, for messages.
    """

    names: tuple[str, ...]
    style: str = ""
    axis: str = ""
    pattern: Pattern | None = None
    where: str = INLINE

    def __str__(self) -> str:
        names = ", ".join(self.names)
        if self.pattern is not None:
            return f"result {names} = {self.pattern}"
        return f"use {names} = {self.style}" + (f" over {self.axis}" if self.axis else "")


def parse_uses(text: str, source: str = INLINE) -> tuple[Use, ...]:
    """Read the constraints by use among all constraints.

    >>> lines = "use l.*.up = column-parallel over tp; result l.*.down = [tp = S(1)]; x = S(0)"
    >>> [str(use) for use in parse_uses(lines)]
    ['use l.*.up = column-parallel over tp', 'result l.*.down = [tp = S(1)]']

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``, with the line.
    """
    if re.search(r"\b(use|result)\b", text) is None:
        return ()  # as nearly always; the parser of the grammar takes 40 ms to make
    nodes = constraint_tree(text, source).children
    return tuple(_use(node, text, source) for node in nodes if node.data in ("use", "result"))


def _use(node: Any, text: str, source: str) -> Use:
    where = place(node, text, source)
    names = [child for child in node.children if getattr(child, "data", "") == "name"]
    words = tuple(str(name.children[0]).strip('"') for name in names)
    if node.data == "result":
        pattern = pattern_of(node.children[-1], where)
        if not isinstance(pattern, Pattern):
            raise IrcError(
                "placement-syntax",
                "a result has a placement and no signature",
                where=where,
                help="write it as: result NAME = [tensor = S(1)]",
            )
        return Use(words, pattern=pattern, where=where)
    style, axis = (str(child) if child is not None else "" for child in node.children[-2:])
    if style not in STYLES:
        raise IrcError(
            "constraint-syntax",
            f"no module is used '{style}'",
            where=where,
            help=did_you_mean(style, STYLES) or f"one of {', '.join(STYLES)}",
        )
    return Use(words, style, axis, where=where)


def applied(module: ModuleOp, mesh: Mesh, uses: tuple[Use, ...]) -> tuple[Statement, ...]:
    """Return what constraints by use say of the ops and arguments of a program.

    Args:
        module: level flow.
        mesh: of the program.
        uses: the constraints.

    Raises:
        IrcError: ``input-mismatch`` for a name that no parameter has, and one whose module has no
            such use; ``mesh-mismatch`` for an axis that is not there.
    """
    return tuple(statement for use in uses for statement in _Reader(module, mesh).of(use))


class _Reader:
    """A program, as far as constraints by use need it."""

    def __init__(self, module: ModuleOp, mesh: Mesh) -> None:
        self._mesh = mesh
        self._known = functions(module)
        held = [(name, value) for role, name, value in arguments(entry(module)) if role in HELD]
        self._names = [name for name, _ in held]
        self._origins: dict[SSAValue, set[str]] = {value: {name} for name, value in held}
        for func in reversed(list(self._known.values())):
            for op in func.body.block.ops:
                self._follow(op)

    def _follow(self, op: Operation) -> None:
        """Note of which parameters values are, in called functions and behind views too."""
        if isinstance(op, CallOp):
            callee = self._known[op.callee.string_value()].body.block
            for argument, value in zip(callee.args, op.operands, strict=True):
                if value in self._origins:
                    self._origins.setdefault(argument, set()).update(self._origins[value])
        elif len(op.operands) == 1 and op.operands[0] in self._origins:
            for result in op.results:
                self._origins[result] = self._origins[op.operands[0]]

    def of(self, use: Use) -> Iterator[Statement]:
        chosen = {name for word in use.names for name in self._named(word, use)}
        axis = self._axis(use) if use.pattern is None else ""
        count = 0
        for function, op in self._readers(chosen, use):
            for statement in self._statements(function, op, chosen, use, axis):
                count += 1
                yield statement
        if not count:
            raise IrcError(
                "input-mismatch",
                f"'{use}' is about nothing that the program computes",
                where=use.where,
                because="no product, look-up or norm reads these parameters",
            )

    def _named(self, word: str, use: Use) -> list[str]:
        if names := named_by(word, self._names):
            return names
        modules = sorted({name.rpartition(".")[0] or name for name in self._names})
        raise IrcError(
            "input-mismatch",
            f"'{use}' names no module that has parameters",
            where=use.where,
            help=did_you_mean(word, modules) or f"there are {', '.join(modules[:6])}, ..",
        )

    def _axis(self, use: Use) -> str:
        axes = [use.axis] if use.axis else [axis for axis in self._mesh.names if axis in TENSOR]
        if axes and axes[0] in self._mesh.names:
            return axes[0]
        raise IrcError(
            "mesh-mismatch",
            f"'{use}' needs an axis {use.axis or ' or '.join(TENSOR)}, and the mesh is "
            f"'{self._mesh}'",
            where=use.where,
            help=f"name one: use .. = {use.style} over {self._mesh.names[-1]}"
            if self._mesh.names
            else 'choose a mesh with one, as in mesh="tensor=2"',
        )

    def _readers(self, chosen: set[str], use: Use) -> list[tuple[str, FlowOp]]:
        """Return the forward ops that read what is chosen; of a result, the last of a function."""
        readers: list[tuple[str, FlowOp]] = []
        for name, func in self._known.items():
            here = [op for op in func.body.block.ops if self._reads(op, chosen, use)]
            ops = [(name, op) for op in here if isinstance(op, FlowOp)]
            readers += ops[-1:] if use.pattern is not None else ops
        return readers

    def _reads(self, op: Operation, chosen: set[str], use: Use) -> bool:
        if not isinstance(op, FlowOp) or phase_of(op) not in ("", "forward"):
            return False
        if len(op.operands) < 2:
            return False  # a view or a cast of a parameter
        names = [self._origins[v] for v in op.inputs if v in self._origins]
        every = set[str]().union(*names)
        if every & chosen and any(one & chosen and not one <= chosen for one in names):
            raise IrcError(
                "input-mismatch",
                f"'{use}' names some of the layers that are alike, which are planned as one",
                where=use.where,
                because=f"without {', '.join(sorted(every - chosen)[:3])}",
                help="name all of them, as in layers.*.up",
            )
        return bool(every & chosen)

    def _statements(
        self, function: str, op: FlowOp, chosen: set[str], use: Use, axis: str
    ) -> Iterator[Statement]:
        name = f"{function}/{id_of(op)}"
        if use.pattern is not None:
            yield Statement("pin", "op", name, use.pattern, where=use.where)
            return
        weight = next(i for i, v in enumerate(op.inputs) if self._origins.get(v, set()) & chosen)
        if use.style == SEQUENCES:
            kind = op.outputs[0].type
            if isinstance(kind, TensorType) and not isinstance(op, ContractOp | TakeOp):
                dim = 1 if kind.ndim > 2 else 0
                yield Statement("pin", "op", name, _on(axis, Split(dim)), where=use.where)
            return
        split = _split(op, weight, use.style)
        if split is None:
            return
        result, stored = split
        yield Statement("pin", "op", name, _on(axis, result), where=use.where)
        held = op.operands[weight]
        # What a view or a cast stands between lies as its reader wants it.
        if held in self._known[function].body.block.args:
            for each in sorted(self._origins[held]):
                yield Statement("pin", "argument", each, _on(axis, stored), where=use.where)


def _on(axis: str, placed: Split | Partial) -> Pattern:
    return Pattern(((axis, AxisPattern(placed)),))


def _split(op: FlowOp, weight: int, style: str) -> tuple[Split | Partial, Split] | None:
    """Return how the result lies and how the weight does; None for what has no such use."""
    if isinstance(op, TakeOp) and weight == 0:
        last = tensor(op.outputs[0]).ndim - 1
        return (Split(last), Split(1)) if style == COLUMNS else (Partial(), Split(0))
    if not isinstance(op, ContractOp) or len(op.inputs) != 2:
        return None
    spec = op.spec.replace(" ", "")
    terms, result = spec.split("->")
    sides = terms.split(",")
    own, other = sides[weight], sides[1 - weight]
    if style == COLUMNS:
        letter = next((c for c in own if c in result and c not in other), "")
        return (Split(result.index(letter)), Split(own.index(letter))) if letter else None
    letter = next((c for c in own if c in other and c not in result), "")
    return (Partial(), Split(own.index(letter))) if letter else None


def placed_statements(
    module: ModuleOp, mesh: Mesh, text: str, source: str
) -> tuple[Statement, ...]:
    """Return all constraints on placements: those that the module states, and those of a text.

    Raises:
        IrcError: as :func:`irc.constraints.pins.parse_constraints` and :func:`applied`.
    """
    return (
        *module_pins(module),
        *parse_constraints(text, source),
        *applied(module, mesh, parse_uses(text, source)),
    )
