"""Constraints on a pipeline's stages: which of them computes what (``grammar/sharding.lark``).

``stage l.0-l.3, norm = 0``: the first stage has these. A name is that of a parameter, of a module
that has some, of a run of modules ``l.0-l.3``, or a glob on either: ``l.{0-3}``, ``*.norm``. What
nothing is said of is where the cut is best.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from irc.constraints.pins import INLINE, constraint_tree, place
from irc.dialects.builder import arguments
from irc.dialects.flow import loc_of
from irc.errors import IrcError
from irc.training.projections import known_names
from irc.training.stage_choice import ops_in_line
from irc.training.stage_names import named_by, unknown_name

HELD = ("parameter", "buffer")
"""Roles of what names are of."""


@dataclass(frozen=True)
class StagePin:
    """One constraint on stages.

    Attributes:
        names: of parameters, of modules, of runs of modules, or globs.
        stage: that computes what reads them, counted from 0.
        where: the file and line, for messages.
    """

    names: tuple[str, ...]
    stage: int
    where: str = INLINE

    def __str__(self) -> str:
        return f"stage {', '.join(self.names)} = {self.stage}"


def parse_stages(text: str, source: str = INLINE) -> tuple[StagePin, ...]:
    """Read the constraints on stages among all constraints.

    >>> [str(s) for s in parse_stages("stage l.0-l.3, norm = 0; x = S(0)")]
    ['stage l.0-l.3, norm = 0']

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``, with the line.
    """
    if re.search(r"\bstage\b", text) is None:
        return ()  # as nearly always; the parser of the grammar takes 40 ms to make
    pins: list[StagePin] = []
    for node in constraint_tree(text, source).children:
        if node.data == "stage":
            *names, stage = node.children
            words = tuple(str(name.children[0]).strip('"') for name in names)
            pins.append(StagePin(words, int(stage), place(node, text, source)))
    return tuple(pins)


def fixed_stages(pins: Sequence[StagePin], stages: str, count: int) -> tuple[str, ...]:
    """Return by which names each stage is fixed; empty where it is chosen.

    Args:
        pins: constraints, or
        stages: the text that fixes all of them, with ``;`` between stages.
        count: of stages.

    >>> fixed_stages(parse_stages("stage l.0, tok = 0; stage norm = 0"), "", 2)
    ('l.0, tok, norm', '')
    """
    if stages:
        return tuple(part.strip() for part in stages.split(";"))
    return tuple(
        ", ".join(name for pin in pins if pin.stage == stage for name in pin.names)
        for stage in range(count)
    )


@dataclass(frozen=True)
class _Asked:
    """What fixes an op: a parameter that it reads, and the constraint that names that."""

    name: str
    pin: StagePin

    def __str__(self) -> str:
        return f"'{self.name}' in stage {self.pin.stage}"


def fixed_ops(func: FuncOp, count: int, pins: Sequence[StagePin]) -> dict[Operation, int]:
    """Return the stage of each op that constraints fix.

    A parameter fixes the first op that reads it: what reads a tied weight again is free.

    Args:
        func: the entry.
        count: of stages.
        pins: the constraints.

    Raises:
        IrcError: ``pipeline-stages`` for a stage or a name that is not there, for what is fixed
            twice, and where values would go back to an earlier stage.
    """
    if not pins:
        return {}
    known = known_names(func)
    named = {value: known[value] for role, _, value in arguments(func) if role in HELD}
    names = list(dict.fromkeys(named.values()))
    asked: dict[str, StagePin] = {}
    for pin in pins:
        if not 0 <= pin.stage < count:
            raise _refused(
                f"'{pin}', and there are {count} stages", pin,
                advice=f"they are counted from 0 to {count - 1}",
            )  # fmt: skip
        for word in pin.names:
            chosen = named_by(word, names)
            if not chosen:
                raise unknown_name(word, pin.stage, names, pin.where)
            for name in chosen:
                before = asked.setdefault(name, pin)
                if before.stage != pin.stage:
                    raise _refused(f"'{before}' and '{pin}' both name '{name}'", pin)
    fixed: dict[Operation, _Asked] = {}
    read: set[str] = set()
    for op in ops_in_line(func):
        for value in op.operands:
            name = named.get(value, "")
            if name in read or name not in asked:
                continue
            read.add(name)
            own = _Asked(name, asked[name])
            before = fixed.setdefault(op, own)
            if before.pin.stage != own.pin.stage:
                raise _refused(
                    f"{before} and {own} are computed by one op or block",
                    own.pin, because=f"it comes from {loc_of(op)}, and a block is not cut",
                    advice="name the layer as a whole",
                )  # fmt: skip
    for pin in pins:
        if not any(asked[name] == pin for name in read):
            raise _refused(
                f"'{pin}' fixes nothing", pin,
                because="every stage that needs these computes them for itself, or nothing does",
                advice="name parameters, or modules that have some",
            )  # fmt: skip
    _check_order(list(fixed.values()))
    return {op: own.pin.stage for op, own in fixed.items()}


def _check_order(fixed: Sequence[_Asked]) -> None:
    """Refuse what the model computes later in an earlier stage."""
    for before, after in pairwise(fixed):
        if before.pin.stage > after.pin.stage:
            raise _refused(
                f"{before}, and {after}",
                after.pin,
                because=f"the model computes with '{after.name}' after '{before.name}', and values "
                "go forward only",
                advice=f"give '{after.name}' stage {before.pin.stage} or a later one",
            )


def _refused(
    message: str, pin: StagePin | None = None, *, because: str = "", advice: str = ""
) -> IrcError:
    where = "" if pin is None else pin.where
    return IrcError("pipeline-stages", message, where=where, because=because or (), help=advice)
