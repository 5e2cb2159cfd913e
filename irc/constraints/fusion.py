"""Constraints on kernels: ops that are one, and ops that stay apart (``grammar/sharding.lark``).

``fuse n3, n4``: all of these are one kernel. ``keep n3, at "model.py:42" apart``: no kernel has ops
of two of these. ``keep n7 apart``: a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.patterns import Pattern
from irc.constraints.pins import INLINE, Statement, constraint_tree, place
from irc.dialects.builder import functions
from irc.dialects.flow import FlowOp, id_of, loc_of
from irc.errors import IrcError, did_you_mean

Kernel: TypeAlias = Literal["fuse", "keep"]


@dataclass(frozen=True)
class FusionStatement:
    """One constraint on kernels.

    Attributes:
        verb: ``fuse`` or ``keep`` (apart).
        names: globs on ids of ops, and source lines.
        where: the file and line, for messages.
    """

    verb: Kernel
    names: tuple[Statement, ...]
    where: str = INLINE

    def __str__(self) -> str:
        names = ", ".join(f'at "{n.glob}"' if n.kind == "line" else n.glob for n in self.names)
        return f"fuse {names}" if self.verb == "fuse" else f"keep {names} apart"


def parse_fusion(text: str, source: str = INLINE) -> tuple[FusionStatement, ...]:
    """Read the constraints on kernels among all constraints.

    >>> [str(s) for s in parse_fusion("fuse n1, n2; x = S(0); keep block_0/n7 apart")]
    ['fuse n1, n2', 'keep block_0/n7 apart']

    Raises:
        IrcError: ``constraint-syntax`` or ``placement-syntax``, with the line.
    """
    statements: list[FusionStatement] = []
    for node in constraint_tree(text, source).children:
        if node.data not in ("fuse", "apart"):
            continue
        where = place(node, text, source)
        names: list[Statement] = []
        for target in node.children:
            glob = str(target.children[0].children[0]).strip('"')
            kind = "line" if target.data == "line" else "op"
            names.append(Statement("same", kind, glob, Pattern(), where=where))
        verb: Kernel = "fuse" if node.data == "fuse" else "keep"
        statements.append(_checked(FusionStatement(verb, tuple(names), where)))
    return tuple(statements)


def _checked(statement: FusionStatement) -> FusionStatement:
    """Refuse a statement that asks for nothing: one op with itself."""
    names = [(name.kind, name.glob) for name in statement.names]
    (kind, glob), *others = names
    if others and len(set(names)) < len(names):
        raise IrcError(
            "constraint-syntax", f"'{statement}' names an op twice", where=statement.where,
            help="name each op once",
        )  # fmt: skip
    if statement.verb == "fuse" and not others and kind == "op" and not set(glob) & set("*?{"):
        raise IrcError(
            "constraint-syntax", f"'{statement}' names one op", where=statement.where,
            because="a kernel is fused from two ops or more",
            help=f"name them: fuse {glob}, ID, or a kernel of its own: keep {glob} apart",
        )  # fmt: skip
    return statement


def named_ops(name: Statement, module: ModuleOp) -> list[tuple[str, FlowOp]]:
    """Return the ops that a name means, each with its function.

    Raises:
        IrcError: ``input-mismatch`` where there is none.
    """
    ops = [
        (function, op)
        for function, func in functions(module).items()
        for op in func.body.block.ops
        if isinstance(op, FlowOp)
    ]
    fitting = [(function, op) for function, op in ops if _fits(name, function, op)]
    if not fitting:
        known = [loc_of(op) if name.kind == "line" else id_of(op) for _, op in ops]
        what = "no op comes from line" if name.kind == "line" else "there is no op"
        raise IrcError(
            "input-mismatch",
            f"{what} '{name.glob}'",
            where=name.where,
            help=did_you_mean(name.glob, known),
        )
    return fitting


def _fits(name: Statement, function: str, op: FlowOp) -> bool:
    if name.kind == "line":
        return name.matches(loc_of(op)) or loc_of(op).endswith("/" + name.glob)
    return any(map(name.matches, _ids(function, op)))


def _ids(function: str, op: FlowOp) -> Sequence[str]:
    return (id_of(op), f"{function}/{id_of(op)}")
