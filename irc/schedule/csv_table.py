"""Schedules as torch.distributed.pipelining writes them: a line for each rank, a cell an action.

``2F0`` is the forward of stage 2 for micro-batch 0, ``2I0`` the gradient of its input, ``2W0`` that
of its weights, ``2B0`` both; ``(1F3;2B0)OVERLAP_F_B`` two that run as one. A schedule that spells
out its transfers (``2SEND_F0``) is read and written as well.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from irc.errors import IrcError
from irc.schedule.actions import COMPUTE, OVERLAP, TRANSFER, Action, Schedule, computed, straight

_ACTION = re.compile(
    rf"(\d{{1,9}})({'|'.join(sorted((*COMPUTE, *TRANSFER), key=len, reverse=True))})(\d{{0,9}})"
)
MAX_BYTES = 1 << 28


def read_csv(text: str, *, where: str = "", name: str = "") -> Schedule:
    """Read a table; all micro-batches are taken to go through all stages.

    Args:
        text: of the table.
        where: the file, for errors.
        name: of the schedule.

    Raises:
        IrcError: ``schedule-syntax``, with line and cell.
    """
    if len(text) > MAX_BYTES:
        raise IrcError("schedule-syntax", f"a table of {len(text)} characters", where=where)
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise IrcError("schedule-syntax", f"not a table: {error}", where=where) from None
    ranks: list[tuple[Action, ...]] = []
    blanks: list[tuple[int, ...]] = []
    for line, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        place = f"{where or 'the table'}, line {line}"
        actions = [read_action(c, where=f"{place}, cell {i}") for i, c in enumerate(cells, 1) if c]
        ranks.append(tuple(actions))
        blanks.append(tuple(i for i, cell in enumerate(cells) if not cell))
    return Schedule(tuple(ranks), paths_of(ranks), 0, name, tuple(blanks))


def paths_of(ranks: Sequence[Sequence[Action]]) -> tuple[tuple[int, ...], ...]:
    """Return straight paths through all stages for all micro-batches that some action names."""
    actions = [action for rank in ranks for action in computed(rank)]
    stages = 1 + max((action.stage for action in actions), default=-1)
    return straight(stages, 1 + max((action.micro_batch for action in actions), default=-1))


def read_action(cell: str, *, where: str = "") -> Action:
    """Read one action.

    Raises:
        IrcError: ``schedule-syntax``.

    >>> read_action("(1F3;2B0)OVERLAP_F_B").parts[1].stage
    2
    """
    inner, bracket, kind = cell.rpartition(")")
    if bracket and inner.startswith("(") and kind == OVERLAP:
        parts = tuple(read_action(part.strip(), where=where) for part in inner[1:].split(";"))
        if all(part.kind in COMPUTE for part in parts):
            return Action(-1, OVERLAP, -1, parts)
    if match := _ACTION.fullmatch(cell):
        stage, kind, number = match.groups()
        if number or kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
            return Action(int(stage), kind, int(number) if number else -1)
    raise IrcError(
        "schedule-syntax",
        f"'{cell[:80]}' is no action",
        where=where,
        because="an action is a stage, a letter and a micro-batch",
        help="write it as 2F0, 2B0, 2I0 and 2W0, or (1F3;2B0)OVERLAP_F_B",
    )


def write_csv(schedule: Schedule) -> str:
    """Write a table that torch reads; one that was read comes out as it was.

    Raises:
        IrcError: ``schedule-syntax`` where a schedule has what torch cannot say: S and T, or
            micro-batches that do not go through all stages.
    """
    if schedule.vocabulary or schedule.paths != straight(
        schedule.num_stages, schedule.num_micro_batches
    ):
        raise IrcError(
            "schedule-syntax",
            f"schedule '{schedule.name}' cannot be written for torch",
            because="its tables know no vocabulary (S, T), and no micro-batches that skip stages",
            help="write it as text: irc schedule convert NAME --to text",
        )
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    for rank, actions in enumerate(schedule.ranks):
        blanks = set(schedule.blanks[rank]) if schedule.blanks else frozenset[int]()
        cells, rest = list[str](), iter(actions)
        for position in range(len(actions) + len(blanks)):
            cells.append("" if position in blanks else str(next(rest)))
        writer.writerow(cells)
    return out.getvalue()
