"""Stages that are equal but for names: one is placed and compiled, the others are named after it.

Sixteen stages of a GPT are three or four distinct programs. Two are equal where their texts are,
with weights, states and values that cross numbered in the order of the arguments, and ops in that
of the program; what the user fixes has to say the same of both.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from irc.constraints.pins import Statement, parse_constraints
from irc.constraints.resolve import resolve
from irc.dialects.builder import arguments, entry, results
from irc.dialects.noted import rename_ids
from irc.dialects.placement import Mesh
from irc.dialects.printer import literal

OWN = ("parameter", "buffer", "state", "accumulator", "boundary")
"""Roles of what each stage has of its own."""
ENTRY = re.compile(r"^  func\.func @forward\(.*?^  \}$", re.MULTILINE | re.DOTALL)
"""The entry in a module's text: strings in it have no line breaks."""
OWN_LINE = re.compile(r"^    \S.*$", re.MULTILINE)
"""An op of the entry, and not of a region in it."""
NAMED = re.compile(
    r"(name(?<!\wname)|id(?<!\wid)|results(?<!\wresults))"
    r' = ("[^"]*"|\[[^\]]*\])'
)
"""A name, or ids. That a word begins there is asked last: by its first letters it is searched."""
TOKEN = re.compile(r"[^./:+,\"]+")
"""A part of an op's id: ``n4``, ``b0n3`` and ``g1`` in ``n4/b0n3.g1``."""


@dataclass(frozen=True)
class Names:
    """What a stage calls its values and ops, each in an order that equal stages have in common.

    Attributes:
        values: of arguments, then of results.
        ops: parts of the ids of the entry's ops.
    """

    values: tuple[str, ...]
    ops: tuple[str, ...]

    def to(self, other: Names) -> Renaming:
        """Return what makes a stage of this one into one of another, equal stage."""
        return Renaming(
            dict(zip(self.values, other.values, strict=True)),
            dict(zip(self.ops, other.ops, strict=True)),
        )

    @property
    def numbered(self) -> Names:
        """The names by their numbers alone."""
        return Names(
            tuple(f"v{i}" for i in range(len(self.values))),
            tuple(f"o{i}" for i in range(len(self.ops))),
        )


@dataclass(frozen=True)
class Renaming:
    """Other names for values and ops."""

    values: Mapping[str, str]
    ops: Mapping[str, str]

    def value(self, name: str) -> str:
        """Return the other name of a value; what has none keeps its own."""
        return self.values.get(name, name)

    def op(self, name: str) -> str:
        """Return the other id of an op."""
        return TOKEN.sub(lambda match: self.ops.get(match[0], match[0]), name)

    def apply(self, module: ModuleOp) -> ModuleOp:
        """Return a copy of a module with the other names in its entry."""
        copy = module.clone()
        func = entry(copy)
        func.arg_attrs = self._attributes(func.arg_attrs)
        func.res_attrs = self._attributes(func.res_attrs)
        for op in func.body.block.ops:
            rename_ids(op, self.op)
        return copy

    def apply_to_text(self, text: str) -> str:
        """Return the text of :meth:`apply`'s copy, from that of the module."""
        values = {literal(n.encode()): literal(o.encode()) for n, o in self.values.items()}
        op = functools.cache(self.op)

        def named(match: re.Match[str]) -> str:
            key, name = match.groups()
            return f"{key} = {values.get(name, name) if key == 'name' else op(name)}"

        def own_id(match: re.Match[str]) -> str:
            return match[0] if match[1] == "name" else named(match)

        def entry_of(match: re.Match[str]) -> str:
            head, line_break, body = match[0].partition("\n")
            head = NAMED.sub(lambda m: named(m) if m[1] == "name" else m[0], head)
            body = OWN_LINE.sub(lambda line: NAMED.sub(own_id, line[0]), body)
            return head + line_break + body

        return ENTRY.sub(entry_of, text, count=1)

    def _attributes(
        self, known: ArrayAttr[DictionaryAttr] | None
    ) -> ArrayAttr[DictionaryAttr] | None:
        if known is None:
            return None
        renamed: list[DictionaryAttr] = []
        for attrs in known.data:
            name = attrs.data.get("name")
            own = (
                {"name": StringAttr(self.value(name.data))} if isinstance(name, StringAttr) else {}
            )
            renamed.append(DictionaryAttr({**attrs.data, **own}))
        return ArrayAttr(renamed)


def names_of(module: ModuleOp) -> Names:
    """Return what a stage calls its values and ops."""
    func = entry(module)
    named: list[tuple[str, str]] = [(role, name) for role, name, _ in arguments(func)] + list(
        results(func)
    )
    values = dict.fromkeys(name for role, name in named if role in OWN)
    return Names(tuple(values), tuple(dict.fromkeys(_tokens(func))))


def _tokens(func: FuncOp) -> Iterator[str]:
    for op in func.body.block.ops:
        # Numbers tell layers apart; what follows them does not.
        if isinstance(attr := op.attributes.get("id"), StringAttr):
            yield TOKEN.findall(attr.data)[0]


def key_of(module: ModuleOp, text: str, names: Names, mesh: Mesh, pins: str) -> str:
    """Return what equal stages have in common: their text, and what the user says of them.

    Args:
        module: of the stage.
        text: of the module.
        names: of what it holds.
        mesh: of the stage.
        pins: what the user says.
    """
    renaming = names.to(names.numbered)
    text = renaming.apply_to_text(text)
    if not pins:
        return text
    resolved = resolve(module, mesh, parse_constraints(pins, "pins"))
    said = [
        *((renaming.value(n), _said(s)) for n, s in resolved.arguments.items()),
        *((_op_name(renaming, n), _said(s)) for n, s in resolved.ops.items()),
        *((renaming.value(n), renaming.value(other)) for n, other in resolved.same.items()),
    ]
    return f"{text}\n{sorted(said)}"


def _said(statements: Sequence[Statement]) -> str:
    return "; ".join(f"{s.verb} {s.pattern} {s.priority} {s.equal}" for s in statements)


def _op_name(renaming: Renaming, name: str) -> str:
    function, _, op = name.partition("/")
    return f"{function}/{renaming.op(op)}" if function == "forward" else name
