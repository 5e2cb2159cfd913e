"""A native program for the sizes of a call: numbers put where program.json has the example's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from irc.dialects.items import ITEM_BYTES
from irc.dialects.size import Size, value_of
from irc.plan.json_text import corrupt
from irc.plan.native import (
    HEADER,
    Code,
    Copy,
    Library,
    Program,
    Table,
    View,
    check_program,
    parts_of,
    thread_bytes,
)
from irc.plan.native_sizes import NONE, Division, NativeSizes, TableSizes
from irc.plan.numbers import with_numbers
from irc.plan.open_sizes import number_of
from irc.plan.template.stack import Stack
from irc.plan.template.unify import evaluate, sizes_in
from irc.runtime.native.memory import row_major

SIZES = "native/sizes.json"
PIECES, FOLLOWING, CHECKS, VALUES = 2, 4, 6, 7
"""Words of a call: parts of each thread's share, where the next weight begins, indices checked?,
its values."""


@dataclass(frozen=True)
class _Layout:
    """Where in a table's words calls begin, where offsets of arguments are, and the values."""

    calls: tuple[int, ...]
    arguments: tuple[int, ...]
    values: int

    @classmethod
    def of(cls, table: Table) -> _Layout:
        """Walk over a table; IndexError where it ends too early."""
        calls: list[int] = []
        arguments: list[int] = []
        at = 0
        for _ in range(table.count):
            calls.append(at)
            count = table.words[at + 1]
            arguments += range(at + HEADER + 1, at + HEADER + 2 * count, 2)
            at += HEADER + 2 * count
        return cls(tuple(calls), tuple(arguments), at)


class SizedProgram:
    """A program for any sizes that it was checked for.

    Args:
        program: for the example.
        sizes: what of it follows from sizes, held against it already.
        code: the one that is run.

    Attributes:
        given: the sizes of the inputs.
        names: of the inputs.
        form: the program with sizes for its numbers, its code aside.

    Raises:
        IrcError: ``plan-corrupt`` where the two do not fit together.
    """

    def __init__(self, program: Program, sizes: NativeSizes, code: Code) -> None:
        self.sizes, self.given = sizes, sizes.given
        self.names = [port.name for port in program.inputs]
        bare = replace(program, codes=())
        self.form: Program = with_numbers(bare, {n.path: n for n in sizes.numbers})
        # Most of a program is weights, of which no size decides anything.
        parts = {name: getattr(self.form, name) for name in Program.__dataclass_fields__}
        self._parts = {name: part for name, part in parts.items() if any(sizes_in(part))}
        self._stack = Stack(sizes.order, sizes.below)
        self._code = code
        self._divisions = sizes.divisions[program.codes.index(code)]
        try:
            self._layouts = [_Layout.of(table) for table in code.tables]
            example = self.at(self.given.example)
        except IndexError:
            raise corrupt("a table of calls ends too early", SIZES) from None
        if example != replace(program, codes=(code,)):
            raise corrupt("at the sizes of the example it gives another program", SIZES)

    def at(self, full: Mapping[str, int]) -> Program:
        """Return the program for the numbers of all symbols; its code is the chosen one alone.

        Raises:
            IrcError: ``plan-corrupt`` where it makes no sense.
        """
        try:
            return self._at(full)
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
            raise corrupt(f"sizes cannot be put in: {error}", SIZES) from None

    def _at(self, full: Mapping[str, int]) -> Program:
        sizes, values = self.sizes, dict(full)
        lengths = [number_of(sizes.polynomials[block.bytes], full) for block in sizes.blocks]
        if min(lengths, default=0) < 0:
            raise ValueError("a buffer of fewer than no bytes")
        offsets, arena = self._stack.place(lengths)
        values.update(zip((block.name for block in sizes.blocks), offsets, strict=True))
        numbers = [number_of(polynomial, values) for polynomial in sizes.polynomials]
        if any(numbers[n] < 1 for n in sizes.extents):
            raise ValueError("a loop over nothing")
        known: dict[Size, int] = {}

        def number(size: Size) -> int:
            if size not in known:
                known[size] = value_of(size, values)
            return known[size]

        parts = {name: evaluate(part, number) for name, part in self._parts.items()}
        bare = replace(self.form, **(parts | {"arena_bytes": arena}))
        held = _held(bare)
        for span in sizes.spans:
            if not 0 <= numbers[span.offset] <= held[span.base] - numbers[span.bytes]:
                raise ValueError(f"base {span.base} has {held[span.base]} bytes, fewer than used")
        for view in _views(bare):
            if not 0 <= view.offset <= held[view.base] - _extent(view):
                raise ValueError(f"base {view.base} has {held[view.base]} bytes, fewer than seen")
        starts = [numbers[span.offset] for span in sizes.spans]
        parts = zip(self._code.tables, self._layouts, sizes.tables, self._divisions, strict=True)
        tables = tuple(_table(*part, numbers, starts) for part in parts)
        program = replace(bare, codes=(replace(self._code, tables=tables),))
        check_program(program, SIZES)
        return program


def _table(
    table: Table,
    layout: _Layout,
    sizes: TableSizes,
    division: Division,
    numbers: Sequence[int],
    starts: Sequence[int],
) -> Table:
    words = list(table.words)
    for at, span in zip(layout.arguments, sizes.spans, strict=True):
        if span != NONE:
            words[at] = starts[span]
    if len(words) != layout.values + len(sizes.values):
        raise ValueError("a table with other values than its calls take")
    words[layout.values :] = [numbers[n] for n in sizes.values]
    own = zip(
        layout.calls, division.work, division.least_work, division.pieces, division.following,
        strict=True,
    )  # fmt: skip
    for at, work, least, pieces, following in own:
        if work != NONE:
            words[at + PIECES] = parts_of(numbers[work], least, pieces)
        if following != NONE:
            words[at + FOLLOWING] = numbers[following]
    scratch = max((numbers[n] for n in division.scratch), default=0)
    return replace(
        table,
        words=tuple(words),
        stride=thread_bytes(scratch, checked=bool(table.checked)),
        parallel=any(words[at + PIECES] for at in layout.calls),
    )


def _held(program: Program) -> dict[int, int]:
    """Return the bytes of each base."""
    held = {0: program.arena_bytes}
    held |= {port.view.base: _extent(port.view) for port in program.inputs}
    held |= {e.base: _extent(View(e.base, 0, e.dtype, e.shape)) for e in program.fresh}
    return held | {each.base: each.bytes for each in program.stored}


def _views(program: Program) -> list[View]:
    views = [port.view for port in (*program.inputs, *program.outputs)]
    for step in program.steps:
        if isinstance(step, Copy):
            views += [step.source, step.target]
        elif isinstance(step, Library):
            views += [*step.inputs, *step.outputs]
    return views


def _extent(view: View) -> int:
    """Return the bytes from a tensor's first element to the end of its last.

    Raises:
        ValueError: the shape or the strides are no tensor's.
    """
    strides = row_major(view.shape) if view.strides is None else view.strides
    if min((*view.shape, *strides), default=0) < 0:
        raise ValueError(f"a tensor of shape {list(view.shape)} and strides {list(strides)}")
    if 0 in view.shape:
        return 0
    last = sum(s * (n - 1) for s, n in zip(strides, view.shape, strict=True))
    return (last + 1) * ITEM_BYTES[view.dtype]
