"""The text of schedules (``grammar/schedule.lark``), read and printed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, straight
from irc.schedule.csv_table import MAX_BYTES, paths_of, read_action, read_csv


def read_schedule(text: str, *, where: str = "", name: str = "") -> Schedule:
    """Read a schedule.

    Raises:
        IrcError: ``schedule-syntax``, with the line where the text stops making sense.

    >>> str(read_schedule("rank 0: 0F0 0B0").ranks[0][1])
    '0B0'
    """
    from lark.exceptions import UnexpectedInput

    if len(text) > MAX_BYTES:
        raise IrcError("schedule-syntax", f"a text of {len(text)} characters", where=where)
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        line, column = getattr(error, "line", 0), getattr(error, "column", 0)
        raise IrcError(
            "schedule-syntax",
            f"the schedule stops making sense at line {line}, column {column}",
            where=where,
            help="write a line for each rank: rank 0: 0F0 0F1 0B0 0B1",
        ) from None
    ranks: dict[int, tuple[Action, ...]] = {}
    stages_of: dict[int, tuple[int, ...]] = {}
    vocabulary = 0
    for node in tree.children:
        number, *words = map(str, node.children)
        place = f"{where or 'the schedule'}, {node.data} {number}"
        match str(node.data):
            case "rank":
                if int(number) in ranks:
                    raise IrcError("schedule-syntax", f"rank {number} is there twice", where=where)
                ranks[int(number)] = tuple(read_action(word, where=place) for word in words)
            case "path":
                stages_of[int(number)] = tuple(_stage(word, place) for word in words)
            case _:
                vocabulary = int(number)
    if sorted(ranks) != list(range(len(ranks))) or vocabulary > 2:
        raise IrcError(
            "schedule-syntax",
            f"its ranks are {', '.join(map(str, sorted(ranks)))}, not 0 to {len(ranks) - 1}"
            if vocabulary <= 2
            else f"Vocabulary Parallelism has the algorithms 1 and 2, not {vocabulary}",
            where=where,
        )
    orders = tuple(ranks[rank] for rank in range(len(ranks)))
    paths = tuple(stages_of.get(m, path) for m, path in enumerate(paths_of(orders)))
    return Schedule(orders, paths, vocabulary, name)


def _stage(word: str, where: str) -> int:
    if not word.isdigit():
        raise IrcError("schedule-syntax", f"'{word}' is no stage", where=where)
    return int(word)


def print_schedule(schedule: Schedule) -> str:
    """Print a schedule; what is printed reads back the same."""
    lines = [f"# {schedule.name}"] if schedule.name else []
    if schedule.vocabulary:
        lines.append(f"vocabulary {schedule.vocabulary}")
    usual = straight(schedule.num_stages, schedule.num_micro_batches)
    lines += [
        f"path {m}: {' '.join(map(str, path))}"
        for m, (path, other) in enumerate(zip(schedule.paths, usual, strict=True))
        if path != other
    ]
    lines += [f"rank {r}: {' '.join(map(str, a))}".rstrip() for r, a in enumerate(schedule.ranks)]
    return "\n".join(lines) + "\n"


def load_schedule(path: str | Path) -> Schedule:
    """Read a file: torch's table where its name ends in ``.csv``, else the text of irc.

    Raises:
        IrcError: ``schedule-syntax``; ``file-missing`` where there is none.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        because = error.strerror or str(error)
        raise IrcError(
            "file-missing", f"cannot read the schedule in '{path}'", because=because
        ) from None
    except UnicodeDecodeError:
        raise IrcError("schedule-syntax", "it is not UTF-8 text", where=str(path)) from None
    read = read_csv if file.suffix.lower() == ".csv" else read_schedule
    return read(text, where=str(path), name=file.stem)


@cache
def _parser() -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("schedule.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="schedule", parser="lalr")
