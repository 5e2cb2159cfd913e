"""``native/sizes.json``: a native program for every size, as what of program.json follows from it.

program.json is the program for the example, and can be run by itself. Everything else in it that
sizes decide is a polynomial of them, of which each is listed once and named by its position. Where
a buffer of the arena begins is no polynomial; it gets a name of its own, whose number
:class:`irc.plan.template.stack.Stack` finds from the sizes of all buffers, and what lies in that
buffer is a polynomial of the name.

Words of the tables are not named by a position that a file could choose: the lists below count the
arguments, calls and values of a table in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.plan import json_text
from irc.plan.input_sizes import InputSizes, check_inputs, check_names
from irc.plan.json_text import corrupt
from irc.plan.native import NATIVE_FORMAT, Program
from irc.plan.numbers import Number
from irc.plan.open_sizes import Polynomial
from irc.plan.version import check_format

MOST_PIECES = 4096
"""Parts of a thread's share, at most: machine code multiplies by it."""

NONE = -1
"""In a list of positions: this one does not follow from sizes."""


@dataclass(frozen=True)
class Block:
    """A buffer of the arena: the name for where it begins, and its bytes (a polynomial)."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Span:
    """What a kernel is given: ``bytes`` bytes of a base from ``offset`` on, both polynomials."""

    base: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class TableSizes:
    """What of the calls of a segment follows from sizes, for all kinds of processors.

    Attributes:
        spans: for each argument of each call its span, or :data:`NONE`.
        values: for each word behind the calls its polynomial.
    """

    spans: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Division:
    """What of the calls of a segment follows from sizes for one kind of processor.

    Attributes:
        work: for each call the polynomial of its work, or :data:`NONE`.
        least_work: from so much on several threads pay.
        pieces: into how many parts a large call divides each thread's share.
        following: for each call the polynomial of where the next weight begins, or :data:`NONE`.
        scratch: polynomials of the scratch memory of a thread; the largest counts.
    """

    work: tuple[int, ...]
    least_work: tuple[int, ...]
    pieces: tuple[int, ...]
    following: tuple[int, ...]
    scratch: tuple[int, ...]


@dataclass(frozen=True)
class NativeSizes:
    """What of a native program follows from sizes, and for which it holds.

    Attributes:
        given: the sizes of the inputs.
        polynomials: of the names in ``given`` and of blocks.
        blocks: the buffers of the arena.
        order, below: which block lies above which.
        spans: distinct ones.
        numbers: of the program, its codes aside.
        tables: for each segment.
        divisions: for each code, for each segment.
        extents: polynomials of loops, each at least 1 in a call.
    """

    given: InputSizes
    polynomials: tuple[Polynomial, ...]
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    spans: tuple[Span, ...]
    numbers: tuple[Number, ...]
    tables: tuple[TableSizes, ...]
    divisions: tuple[tuple[Division, ...], ...]
    extents: tuple[int, ...]


def native_sizes_text(sizes: NativeSizes) -> str:
    """Print the file; equal sizes print equally."""
    return json_text.dump({"format": NATIVE_FORMAT, **json_text.encode(sizes)})


def parse_native_sizes(text: bytes, program: Program, where: str) -> NativeSizes:
    """Read the file, and hold it against the program that it is of.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    data = json_text.parse_object(text, where)
    check_format(data.pop("format", None), where, NATIVE_FORMAT, "the native program")
    sizes: NativeSizes = json_text.decode(NativeSizes, data, where)
    _check_names(sizes, program, where)
    if problem := _problem(sizes, program):
        raise corrupt(problem, where)
    return sizes


def _check_names(sizes: NativeSizes, program: Program, where: str) -> None:
    known = check_inputs(sizes.given, len(program.inputs), where)
    blocks = {block.name for block in sizes.blocks}
    if len(blocks) < len(sizes.blocks) or blocks & known:
        raise corrupt("two sizes have one name", where)
    named = [*sizes.polynomials, *(each.value for each in sizes.numbers)]
    check_names(named, known | blocks, where)


def _problem(sizes: NativeSizes, program: Program) -> str | None:
    """Say what of the lists does not fit together, or None."""
    divisions = [each for code in sizes.divisions for each in code]
    stated = [
        [block.bytes for block in sizes.blocks],
        [n for span in sizes.spans for n in (span.offset, span.bytes)],
        *(table.values for table in sizes.tables),
        *(each.scratch for each in divisions),
        sizes.extents,
    ]
    perhaps = [n for each in divisions for n in (*each.work, *each.following) if n != NONE]
    if any(not 0 <= n < len(sizes.polynomials) for each in (*stated, perhaps) for n in each):
        return f"names a polynomial beyond the {len(sizes.polynomials)} that there are"
    if any(not 1 <= n <= MOST_PIECES for each in divisions for n in each.pieces):
        return f"divides a share into fewer than 1 or more than {MOST_PIECES} parts"
    spans = [n for table in sizes.tables for n in table.spans if n != NONE]
    if any(not 0 <= n < len(sizes.spans) for n in spans):
        return f"names a span beyond the {len(sizes.spans)} that there are"
    if any(not 0 <= span.base < program.num_bases for span in sizes.spans):
        return f"names a base outside the {program.num_bases} that there are"
    count = len(sizes.blocks)
    below = [n for each in sizes.below for n in each]
    if sorted(sizes.order) != list(range(count)) or len(sizes.below) != count:
        return "it places other buffers than it names"
    if any(not 0 <= n < count for n in below):
        return "it places other buffers than it names"
    if len(sizes.divisions) != len(program.codes):
        return f"is for {len(sizes.divisions)} codes of {len(program.codes)}"
    for code, own in zip(program.codes, sizes.divisions, strict=True):
        if not len(code.tables) == len(own) == len(sizes.tables):
            return f"is for {len(sizes.tables)} segments of {len(code.tables)}"
    return None
