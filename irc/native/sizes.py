"""What of a native program follows from the sizes of a call, taken from the plan's polynomials.

The plan with sizes for its numbers goes the way that a plan of numbers goes, and what comes out has
sizes where the program of the example has numbers. That this is right is not taken for granted: at
sizes far apart, the program that a reader would make is held against the one of the plan there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

from irc.backends.cpu.native import Kind
from irc.dialects.items import ITEM_BYTES
from irc.dialects.size import Dim, Size, symbol
from irc.dialects.size import product as product_of
from irc.errors import InternalError, IrcError
from irc.native.program import calls_of, program_of
from irc.plan.input_sizes import InputSizes
from irc.plan.native import Code, Program
from irc.plan.native_sizes import NONE, Block, Division, NativeSizes, Span, TableSizes
from irc.plan.numbers import numbers_of
from irc.plan.open_sizes import Polynomial, number_of, polynomial_of
from irc.plan.schema import Kernels, Plan
from irc.plan.sizes import SizedPlan
from irc.runtime.native.sized import SizedProgram

MAX_TRIALS = 12
"""Sizes at which a program is held against its plan."""


class _Listed:
    """Distinct polynomials and spans, by their positions."""

    def __init__(self) -> None:
        self._polynomials: dict[Polynomial, int] = {}
        self._spans: dict[Span, int] = {}

    @property
    def polynomials(self) -> tuple[Polynomial, ...]:
        return tuple(self._polynomials)

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    def number(self, dim: Dim) -> int:
        """Return the position of a polynomial."""
        return self._polynomials.setdefault(polynomial_of(dim), len(self._polynomials))

    def number_or_none(self, dim: Dim | None) -> int:
        return NONE if dim is None else self.number(dim)

    def span(self, base: int, offset: Dim, num_bytes: Dim) -> int:
        """Return the position of a span; :data:`NONE` where all of it is known."""
        if not (isinstance(offset, Size) or isinstance(num_bytes, Size)):
            return NONE
        span = Span(base, self.number(offset), self.number(num_bytes))
        return self._spans.setdefault(span, len(self._spans))


def sizes_of(sized: SizedPlan, program: Program, kinds: Sequence[Kind]) -> NativeSizes:
    """Return what of a program follows from the sizes of its plan.

    Args:
        sized: the plan.
        program: for the example.
        kinds: its kernels, compiled.
    """
    input_sizes, listed = sized.sizes.given, _Listed()
    names = _block_names(input_sizes, len(sized.sizes.arena))
    named = sized.named([symbol(name) for name in names])
    blocks = tuple(
        Block(name, listed.number(_num_bytes(named, index)))
        for name, index in zip(names, sized.sizes.arena, strict=True)
    )
    form = program_of(named, program.plan, _layout(named, program), ())
    calls, _ = calls_of(named)
    parts = [[kind.sized(segment) for segment in calls] for kind in kinds]
    divisions = tuple(
        tuple(
            Division(
                tuple(map(listed.number_or_none, part.work)),
                part.least_work,
                part.pieces,
                tuple(map(listed.number_or_none, part.following)),
                tuple(map(listed.number, part.scratch)),
            )
            for part in own
        )
        for own in parts
    )
    tables = tuple(_tables(named, listed))
    extents = dict.fromkeys(listed.number(e) for own in parts for part in own for e in part.extents)
    return NativeSizes(
        input_sizes,
        listed.polynomials,
        blocks,
        sized.sizes.order,
        sized.sizes.below,
        listed.spans,
        tuple(numbers_of(form)),
        tables,
        divisions,
        tuple(extents),
    )


def _block_names(input_sizes: InputSizes, count: int) -> list[str]:
    """Return names that no size has."""
    taken = {each.symbol for each in (*input_sizes.symbols, *input_sizes.quotients)}
    prefix = "at"
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    return [f"{prefix}{k}" for k in range(count)]


def _num_bytes(plan: Plan, index: int) -> Dim:
    """Return the bytes of a buffer without gaps; its sizes may have names."""
    buffer = plan.buffers[index]
    return product_of(buffer.shape) * ITEM_BYTES[buffer.dtype]


def _tables(plan: Plan, listed: _Listed) -> Iterator[TableSizes]:
    """Yield what of each segment's calls follows from sizes."""
    for action in plan.actions:
        if isinstance(action, Kernels):
            args = [arg for call in action.calls for arg in call.args]
            spans = [listed.span(*plan.addresses[arg], _num_bytes(plan, arg)) for arg in args]
            values = [listed.number(size) for call in action.calls for size in call.sizes]
            yield TableSizes(tuple(spans), tuple(values))


def _layout(plan: Plan, program: Program) -> dict[int, int]:
    """Return where each weight of a program begins in the file, by buffer."""
    return {plan.bases[each.base - 1]: each.start for each in program.stored}


def verify_sizes(
    sizes: NativeSizes, program: Program, sized: SizedPlan, kinds: Sequence[Kind]
) -> None:
    """Hold programs that sizes make against those of the plan, at sizes far apart.

    Raises:
        InternalError: naming the sizes at which they differ.
    """
    try:
        runs = [SizedProgram(program, sizes, code) for code in program.codes]
        for full in _trials(sizes.given, runs[0].names):
            plan = sized.at(full)
            wanted = program_of(plan, program.plan, _layout(plan, program), kinds)
            problems = [_other_length(sizes, plan, sized.sizes.arena, full)]
            for run, code in zip(runs, wanted.codes, strict=True):
                problems.append(_difference(run.at(full), wanted, code))
            for problem in filter(None, problems):
                raise InternalError(f"the native program for sizes {dict(full)} has {problem}")
    except IrcError as error:
        raise InternalError(f"the native program does not fit its plan: {error}") from error


def _difference(program: Program, wanted: Program, code: Code) -> str | None:
    """Say in what a program differs from the plan's, None where it does not."""
    wanted = replace(wanted, codes=(code,))
    for name in Program.__dataclass_fields__:
        if getattr(program, name) != getattr(wanted, name):
            return f"other {name} for {code.name} than its plan"
    return None


def _other_length(
    sizes: NativeSizes, plan: Plan, arena: Sequence[int], full: Mapping[str, int]
) -> str | None:
    """Say which lengths are not the plan's: most show in no offset, but are what readers check."""

    def differs(buffer: int, polynomial: int) -> bool:
        number = number_of(sizes.polynomials[polynomial], full)
        return number != plan.buffers[buffer].size_bytes

    if any(differs(i, block.bytes) for i, block in zip(arena, sizes.blocks, strict=True)):
        return "a buffer of another length than its plan"
    calls = [call for a in plan.actions if isinstance(a, Kernels) for call in a.calls]
    args = [arg for call in calls for arg in call.args]
    spans = [n for table in sizes.tables for n in table.spans]
    for arg, span in zip(args, spans, strict=True):
        if span != NONE and differs(arg, sizes.spans[span].bytes):
            return "an argument of another length than its plan"
    return None


def _trials(input_sizes: InputSizes, names: Sequence[str]) -> Iterator[Mapping[str, int]]:
    """Yield numbers that a plan is good for: the corners of its span, and odd ones inside."""
    ends = [(each.low, each.high) for each in input_sizes.symbols]
    inside = [tuple((low + high) // by | 1 for low, high in ends) for by in (2, 3, 5)]
    count = 0
    for chosen in chain(inside, product(*ends)):
        full = input_sizes.extended(
            {s.symbol: n for s, n in zip(input_sizes.symbols, chosen, strict=True)}
        )
        try:
            input_sizes.check(full, names)
        except IrcError:
            continue  # sizes that no call gets to
        yield full
        count += 1
        if count == MAX_TRIALS:
            return
