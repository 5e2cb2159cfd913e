"""The constraint file: what the user fixes of a plan (``grammar/sharding.lark``).

A statement pins or forbids placements, of arguments by a glob on their dotted names, of ops by a
glob on their ids, or of all that a source line makes. The same text is taken from a file, from an
option, and from Python, where it may also be a mapping from globs to placements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.constraints.dtensor import statements
from irc.constraints.patterns import ANYTHING, AxisPattern, Pattern, SignaturePattern
from irc.dialects.builder import functions
from irc.dialects.flow import ReshapeOp, id_of, loc_of
from irc.dialects.globs import matches_glob
from irc.dialects.placement import B, Partial, Placement, Split
from irc.dialects.types import PlacementAttr
from irc.errors import IrcError, did_you_mean

Verb: TypeAlias = Literal["pin", "forbid", "same"]
Kind: TypeAlias = Literal["argument", "op", "line"]
Pins: TypeAlias = str | Path | Mapping[Any, Any]
"""Constraints as Python gives them: text, a file, or placements by glob, as text, as `Placement` or
as DTensor's (:mod:`irc.constraints.dtensor`)."""

MAX_BYTES = 1 << 20
WORDS = (
    "same", "fuse", "keep", "pin", "forbid", "stage", "use", "result", "recompute", "chunk",
    "micro-batches",
)  # fmt: skip
"""With which a constraint begins that is no name and its placement."""

INLINE = "pins"
"""Where constraints come from that are in no file."""

ANNOTATED = "irc.place"
"""Where those come from that the model's own code asks for."""


@dataclass(frozen=True)
class Statement:
    """One constraint.

    Attributes:
        kind: what ``glob`` names: arguments, ids of ops, or source lines.
        glob: with ``*``, ``?`` and number ranges ``{0-5,7}``.
        priority: of two pins of one thing the higher holds, of equal ones the later.
        equal: refuse shards that are not equal.
        others: of ``same``, the globs of what lies as ``glob`` does.
        where: the file and line, for messages.
    """

    verb: Verb
    kind: Kind
    glob: str
    pattern: Pattern | SignaturePattern
    priority: int = 0
    equal: bool = False
    where: str = INLINE
    others: tuple[str, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether the glob fits a name."""
        return matches_glob(self.glob, name)

    @property
    def text(self) -> str:
        """The statement as a file of constraints has it, with all that it says."""
        if self.verb == "same":
            return "same " + ", ".join(f'"{glob}"' for glob in (self.glob, *self.others))
        kind = {"argument": "", "op": "op ", "line": "at "}[self.kind]
        more = f" priority {self.priority}" if self.priority else ""
        return f'{self.verb} {kind}"{self.glob}" = {self.pattern}{more}{" equal" * self.equal}'

    def __str__(self) -> str:
        if self.verb == "same":
            return f"same {', '.join((self.glob, *self.others))}"
        kind = {"argument": "", "op": "op ", "line": "at "}[self.kind]
        return f"{self.verb} {kind}{self.glob} = {self.pattern}"


def constraint_text(pins: Pins) -> tuple[str, str]:
    """Return the text of constraints, and where it is from.

    Text without a ``=`` is the name of a file, unless it begins as a statement does.

    Raises:
        IrcError: ``file-missing``; ``dtensor-placement``.
    """
    if isinstance(pins, Mapping):
        return "\n".join(statements(pins)), INLINE
    if isinstance(pins, str) and ("=" in pins or not pins.strip() or "\n" in pins):
        return pins, INLINE
    if isinstance(pins, str) and _is_statement(pins):
        return pins, INLINE
    path = Path(pins)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IrcError("option-value", f"constraint file '{path}' has over {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise IrcError(
            "file-missing",
            f"cannot read the constraint file '{pins}'",
            because=str(reason),
            help="name a file, or write constraints: 'NAME = [tensor = S(0)]; ...'",
        ) from None


def _is_statement(text: str) -> bool:
    return re.match(rf"\s*({'|'.join(WORDS)})\s", text) is not None


def pins_option(pins: Pins) -> str:
    """Return constraints as the option ``pins`` of auto-shard takes them: text, or a file's name.

    >>> pins_option({"*.up.weight": "S(0)"})
    '"*.up.weight" = S(0)'
    """
    return constraint_text(pins)[0] if isinstance(pins, Mapping) else str(pins)


def parse_constraints(text: str, source: str = INLINE) -> tuple[Statement, ...]:
    """Read constraints on placements.

    Those on kernels are read by :mod:`irc.constraints.fusion`, on stages of a pipeline by
    :mod:`irc.constraints.stages`, on what modules do by :mod:`irc.constraints.uses`, and on a step
    of training by :mod:`irc.constraints.steps`.

    >>> [str(s) for s in parse_constraints("*.w = [tensor = S(1)]; forbid op n3 = (P(*))")]
    ['pin *.w = [tensor = S(1)]', 'forbid op n3 = (P(*))']

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``, with the line.
    """
    if not text.strip():
        return ()  # as nearly always; the parser of the grammar takes 40 ms to make
    tree = constraint_tree(text, source)
    nodes = [node for node in tree.children if node.data in ("statement", "same")]
    return tuple(_statement(node, text, source) for node in nodes)


def constraint_tree(text: str, source: str) -> Any:
    """Parse constraints of all kinds.

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``, with the line.
    """
    from lark.exceptions import UnexpectedInput

    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, source, error) from None


def parse_pattern(text: str) -> Pattern:
    """Read one placement: ``[tensor = S(0)]``, ``(S(0), B)`` or ``S(0), B``.

    >>> str(parse_pattern("S(0), B"))
    '(S(0), B)'

    Raises:
        IrcError: ``placement-syntax``.
    """
    (statement, *more) = parse_constraints(f"x = {text}", "placement")
    if more or isinstance(statement.pattern, SignaturePattern) or statement.priority:
        raise IrcError(
            "placement-syntax",
            f"'{text}' is not one placement",
            help='write it as "[data = S(0), tensor = B]" or "S(0), B"',
        )
    return statement.pattern


def module_pins(module: ModuleOp) -> tuple[Statement, ...]:
    """Return what the module itself asks for: its attribute ``irc.pins``, and pinned reshapes.

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``.
    """
    pins: list[Statement] = []
    attr = module.attributes.get("irc.pins")
    for glob, value in attr.data.items() if isinstance(attr, DictionaryAttr) else ():
        if isinstance(value, PlacementAttr | StringAttr):
            placement = value.data
            pattern = (
                parse_pattern(placement) if isinstance(placement, str) else Pattern.of(placement)
            )
            pins.append(Statement("pin", "argument", glob, pattern, where=ANNOTATED))
    for name, func in functions(module).items():
        for op in func.body.block.ops:
            if isinstance(op, ReshapeOp) and op.pin is not None:
                pattern, glob = parse_pattern(op.pin), f"{name}/{id_of(op)}"
                pins.append(Statement("pin", "op", glob, pattern, where=loc_of(op)))
    return tuple(pins)


def pin(module: ModuleOp, placements: Mapping[str, Placement]) -> None:
    """Pin arguments of a module by name, beside what is pinned already; users' pins go first."""
    attr = module.attributes.get("irc.pins")
    pinned: dict[str, Attribute] = {}
    if isinstance(attr, DictionaryAttr):
        pinned.update(attr.data)
    for name, placement in placements.items():
        pinned[name] = PlacementAttr(placement)
    module.attributes["irc.pins"] = DictionaryAttr(pinned)


@cache
def _parser() -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("sharding.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True)


def place(node: Any, text: str, source: str) -> str:
    """Return where a statement stands: its source, and its line where there are several."""
    return f"{source}, line {node.meta.line}" if "\n" in text.strip() else source


def _statement(node: Any, text: str, source: str) -> Statement:
    where = place(node, text, source)
    if node.data == "same":
        first, *others = (str(name.children[0]).strip('"') for name in node.children)
        return Statement("same", "argument", first, Pattern(), where=where, others=tuple(others))
    verb = "pin"
    children = list(node.children)
    if children[0].data in ("pin", "forbid"):
        verb = str(children.pop(0).data)
    target, pattern, *qualifiers = children
    (name,) = target.children[0].children
    qualifier_values = {str(q.data): int(q.children[0]) if q.children else 1 for q in qualifiers}
    return Statement(
        cast("Verb", verb),
        cast("Kind", str(target.data)),
        str(name).strip('"'),
        pattern_of(pattern, where),
        qualifier_values.get("priority", 0),
        "equal" in qualifier_values,
        where,
    )


def pattern_of(node: Any, where: str) -> Pattern | SignaturePattern:
    """Return the pattern of a parsed statement.

    Raises:
        IrcError: ``placement-syntax``.
    """
    first, second = node.children
    if second is not None:
        return SignaturePattern(_sides(first), _sides(second))
    if all(side.data == "bare" for side in first.children):
        return Pattern(listed=tuple(_placed(side.children[0], where) for side in first.children))
    if len(first.children) > 1:
        raise IrcError(
            "placement-syntax",
            "a pin gives one placement, this gives several",
            where=where,
            help="a signature has an arrow: op n3 = (S(0)), (B) -> (S(0))",
        )
    return _side(first.children[0], where)


def _sides(node: Any, where: str = "") -> tuple[Pattern, ...]:
    sides = [_side(side, where) for side in node.children]
    # `() -> (S(0))` is an op without operands.
    return tuple(sides) if [p for p in sides if p.listed != ()] else ()


def _side(node: Any, where: str) -> Pattern:
    children = [child for child in node.children if child is not None]
    if node.data != "named":
        return Pattern(listed=tuple(_placed(child, where) for child in children))
    named = tuple((str(c.children[0]), _placed(c.children[1], where)) for c in children)
    axes = [axis for axis, _ in named]
    if len(set(axes)) < len(axes):
        raise IrcError("placement-syntax", f"an axis is given twice: {', '.join(axes)}", where)
    return Pattern(named)


def _placed(node: Any, where: str) -> AxisPattern:
    tokens = [str(token) for token in node.children if token is not None]
    match str(node.data):
        case "split":
            dim, order = int(tokens[0]), int(tokens[1]) if len(tokens) > 1 else 0
            return AxisPattern(Split(dim, order), len(tokens) > 1)
        case "partial":
            if tokens[0] not in ("sum", "max", "min"):
                raise IrcError(
                    "placement-syntax",
                    f"a partial value reduces by sum, max or min, not '{tokens[0]}'",
                    where=where,
                    help=did_you_mean(tokens[0], ("sum", "max", "min")),
                )
            return AxisPattern(Partial(tokens[0]))
        case kind:
            return FIXED[kind]


FIXED: Mapping[str, AxisPattern] = {
    "any_split": AxisPattern("S(*)"),
    "any_partial": AxisPattern("P(*)"),
    "partial_sum": AxisPattern(Partial()),
    "broadcast": AxisPattern(B),
    "anything": ANYTHING,
}


def _syntax_error(text: str, source: str, error: Any) -> IrcError:
    """Say where reading stopped, and what could have been there."""
    line = max(int(getattr(error, "line", 1) or 1), 1)
    lines = text.splitlines() or [""]
    wrong = lines[min(line, len(lines)) - 1]
    column = int(getattr(error, "column", 0) or 0)
    # The end of the text has the place of the token before it.
    if getattr(getattr(error, "token", None), "type", "") == "$END" or column < 1:
        column = len(wrong) + 1
    statement = wrong[: column - 1].rpartition(";")[2] + wrong[column - 1 :].partition(";")[0]
    placed = "=" in wrong[: column - 1].rpartition(";")[2]
    unread = wrong[column - 1 : column + 11].strip() or "the end"
    where = f"{source}, line {line}, column {column}" if "\n" in text.strip() else source
    if placed:
        return IrcError(
            "placement-syntax",
            f"cannot read the placement of '{statement.strip()}'",
            where=where,
            because=f"it stops making sense at '{unread}'",
            help="write it as: NAME = [data = S(0), tensor = B]",
        )
    return IrcError(
        "constraint-syntax",
        f"cannot read the constraint '{statement.strip()}'",
        where=where,
        because=f"it stops making sense at '{unread}'",
        help="write it as: [pin|forbid] NAME = PLACEMENT, pin op ID = PLACEMENT, same A, B,"
        " fuse ID, ID, keep ID, ID apart, stage NAME, NAME = 0, use NAME = column-parallel,"
        " result NAME = PLACEMENT, recompute NAME = full, chunk NAME = 4, or"
        " micro-batches = 8",
    )
