"""What a user asks of the grouping: ops that must be one kernel, and ops that must not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.ir import Operation

Verb: TypeAlias = Literal["fuse", "keep"]


@dataclass(frozen=True)
class Wish:
    """One statement, on the ops of one block.

    Attributes:
        verb: ``fuse``: all ops are one kernel. ``keep``: no kernel has ops of two of the sets; of
            a single set, no kernel has one of its ops and any other op.
        sets: the ops that each name of the statement means.
        text: the statement, for messages.
        where: the file and line it is from.
    """

    verb: Verb
    sets: tuple[frozenset[Operation], ...]
    text: str = ""
    where: str = ""

    @property
    def ops(self) -> frozenset[Operation]:
        """All ops of the statement."""
        return frozenset[Operation]().union(*self.sets)


class Wishes:
    """The statements on a block, by op."""

    def __init__(self, wishes: Iterable[Wish] = ()) -> None:
        self._forced: dict[Operation, list[Wish]] = {}
        self._apart: dict[Operation, list[Wish]] = {}
        for wish in wishes:
            table = self._forced if wish.verb == "fuse" else self._apart
            for op in wish.ops:
                table.setdefault(op, []).append(wish)

    def of(self, op: Operation) -> list[Wish]:
        """Return the statements that put an op into a kernel with others."""
        return self._forced.get(op, [])

    def parted(self, ops: Sequence[Operation]) -> Wish | None:
        """Return a statement against one kernel of these ops, None where there is none."""
        inside = set(ops)
        for wish in dict.fromkeys(w for op in ops for w in self._apart.get(op, ())):
            held = sum(bool(each & inside) for each in wish.sets)
            if held > 1 or (len(wish.sets) == 1 and len(inside) > 1):
                return wish
        return None
