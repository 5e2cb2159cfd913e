"""`irc schedule simulate`: a step of a pipeline on any number of ranks, in time and memory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from irc.commands.byte_options import UNITS, shown_bytes, split_unit
from irc.commands.json_output import print_json

if TYPE_CHECKING:
    from irc.schedule.actions import Schedule
    from irc.schedule.timeline import Times
    from irc.simulate.columns import Column
    from irc.simulate.costs import Costs
    from irc.simulate.schedule import Simulation

TAKES = ("mesh", "link", "saved", "weights", "arena", "message", "slots", "reduce", "update",
         "norm", "slow", "trace")  # fmt: skip
"""The options that only this action has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only `irc schedule simulate` takes."""
    add = parser.add_argument
    add("--mesh", metavar="AXES", help="simulate: the ranks of each rank of the schedule, as "
        "data=64,tensor=16: those along data meet where gradients are added up, the others in "
        "each function (default: one)")  # fmt: skip
    add("--link", type=float, metavar="T", help="simulate: for how long a message has a link to "
        "itself; --transfer is how long it takes after that (default 0)")  # fmt: skip
    add(
        "--saved",
        metavar="BYTES",
        help="simulate: what F of a stage leaves for one micro-batch, as 1.5GB",
    )
    add(
        "--weights",
        metavar="BYTES",
        help="simulate: weights, gradients, optimizer's states of a stage",
    )
    add("--arena", metavar="BYTES", help="simulate: what a function allocates while it runs")
    add("--message", metavar="BYTES", help="simulate: of a message, on either rank")
    add("--slots", metavar="N[,M]", help="simulate: places of a stage for what F leaves, and of "
        "a link for messages on either rank (default: as many as it takes)")  # fmt: skip
    add("--reduce", type=float, metavar="T", help="simulate: to add up the gradients of a stage")
    add("--update", type=float, metavar="T", help="simulate: of the optimizer, for a stage")
    add(
        "--norm", action="store_true", help="simulate: updates wait for the gradients of all stages"
    )
    add("--slow", metavar="RANK=X,..", help="simulate: ranks that take X times as long; those of a "
        "rank of the schedule follow each other")  # fmt: skip
    add("--trace", metavar="FILE", help="simulate: write the timeline there, for Perfetto and irc "
        "compare, packed where the name ends in .gz; a unit of time is a second there")  # fmt: skip


def run(args: argparse.Namespace, schedule: Schedule, times: Times) -> int:
    """Simulate a schedule, and print what each class of ranks does."""
    from irc.simulate.schedule import simulate_schedule

    simulation = simulate_schedule(
        schedule, _costs(args, schedule, times), _columns(args, schedule)
    )
    if args.json:
        print_json(
            {
                "ranks": len(schedule.ranks) * _mesh(args).num_ranks,
                "mesh": args.mesh or "",
                "stages": schedule.num_stages,
                "micro_batches": schedule.num_micro_batches,
                "step": simulation.seconds,
                "classes": classes(simulation),
            }
        )
    else:
        _print(simulation, args)
    if args.trace:
        from irc.simulate.schedule_trace import schedule_trace
        from irc.trace.write import to_json, write_trace

        write_trace(args.trace, to_json(schedule_trace(simulation, args.mesh or "")))
    return 0


def _costs(args: argparse.Namespace, schedule: Schedule, times: Times) -> Costs:
    from dataclasses import replace

    from irc.simulate.costs import Costs, Transfer

    share = args.weight_share or 0.0
    if not 0.0 <= share <= 1.0:
        raise _bad("--weight-share", str(share), "it is a part: 0 to 1")
    saved = _bytes(args, "saved")
    slots = _slots(args.slots)
    costs = Costs.of(times, schedule.num_stages)
    stages = [
        replace(
            stage,
            arena_bytes=dict.fromkeys(("F", "B", "I", "W", "update"), _bytes(args, "arena")),
            saved_bytes=saved,
            kept_bytes=share * saved,
            weight_bytes=_bytes(args, "weights"),
            reduce_seconds=_time(args, "reduce"),
            update_seconds=_time(args, "update"),
            slots=slots[0],
        )
        for stage in costs.stages
    ]
    way = Transfer(_time(args, "link"), times.transfer, _bytes(args, "message"), slots[1])
    return replace(costs, stages=stages, transfer=way, norm=args.norm)


def _columns(args: argparse.Namespace, schedule: Schedule) -> tuple[Column, ...]:
    from irc.simulate.columns import columns_of

    mesh, slow = _mesh(args), dict[tuple[int, int], float]()
    for word in filter(None, (args.slow or "").split(",")):
        rank, equals, factor = word.partition("=")
        number = _number(factor)
        if not equals or not rank.strip().isdecimal() or number is None or number <= 0:
            raise _bad("--slow", args.slow, f"'{word}' is not of the form rank=times")
        at = divmod(int(rank), mesh.num_ranks)
        if at[0] >= len(schedule.ranks):
            total = len(schedule.ranks) * mesh.num_ranks
            raise _bad("--slow", args.slow, f"there are ranks 0 to {total - 1}")
        slow[at] = number
    return columns_of(mesh, slow)


def _mesh(args: argparse.Namespace):
    from irc.dialects.placement import Mesh
    from irc.errors import IrcError

    try:
        return Mesh.parse(args.mesh or "")
    except ValueError as error:
        raise IrcError("mesh-syntax", f"mesh '{args.mesh}': {error}") from None


def _print(simulation: Simulation, args: argparse.Namespace) -> None:
    schedule, mesh = simulation.schedule, _mesh(args)
    num_ranks = len(schedule.ranks) * mesh.num_ranks
    inside = f", {args.mesh} in each of {len(schedule.ranks)}" if args.mesh else ""
    print(f"ranks           {num_ranks}{inside}; {_classes(simulation)}")
    print(f"stages          {schedule.num_stages}, {schedule.num_micro_batches} micro-batches")
    print(f"step            {simulation.seconds:g}")
    print(table(simulation, saved="saved values"))


def table(simulation: Simulation, saved: str = "") -> str:
    """Return a row for each class of ranks: how long it idles, and its memory.

    Args:
        simulation: of a step.
        saved: the registers whose slots are counted, by the start of their names; empty: none.
    """
    stages = simulation.schedule.rank_of.items()
    rows = [["rank", "columns", "idle", "saved at most", "peak", "reserved"]]
    for rank in range(len(simulation.schedule.ranks)):
        for i, column in enumerate(simulation.columns):
            mark = f" of columns {i}" if len(simulation.columns) > 1 else ""
            slots = sum(
                simulation.slots(f"{saved} of stage {s}{mark}") for s, own in stages if own == rank
            )
            peak, reserved = simulation.peak_bytes(rank, i), simulation.reserved_bytes(rank, i)
            rows.append([str(rank), str(column.count), f"{simulation.bubble(rank, i):.2%}",
                         str(slots), shown_bytes(peak), shown_bytes(reserved)])  # fmt: skip
    if not saved:
        rows = [row[:3] + row[4:] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (zip(row, widths, strict=True) for row in rows)
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in line) for line in lines)


def classes(step: Simulation) -> list[dict[str, object]]:
    """Return for each class of ranks that are alike how long it idles, and its memory."""
    return [
        {
            "rank": rank,
            "columns": column.count,
            "idle": step.bubble(rank, number),
            "peak_bytes": step.peak_bytes(rank, number),
            "reserved_bytes": step.reserved_bytes(rank, number),
        }
        for rank in range(len(step.schedule.ranks))
        for number, column in enumerate(step.columns)
    ]


def _classes(simulation: Simulation) -> str:
    count = len(simulation.columns)
    return "all columns alike" if count == 1 else f"{count} classes of columns"


def _bytes(args: argparse.Namespace, name: str) -> float:
    text = str(getattr(args, name) or "0").strip()
    digits, unit = split_unit(text)
    number = _number(digits)
    if number is None:
        raise _bad(f"--{name}", text, f"it is a number and one of {', '.join(filter(None, UNITS))}")
    return number * unit


def _time(args: argparse.Namespace, name: str) -> float:
    number = getattr(args, name) or 0.0
    if not 0.0 <= number < float("inf"):
        raise _bad(f"--{name}", str(number), "it is a time")
    return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0.0 <= number < float("inf") else None


def _slots(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    words = text.split(",")
    if len(words) > 2 or not all(w.isascii() and w.isdecimal() and int(w) for w in words):
        raise _bad("--slots", text, "it is one number above zero, or two")
    return int(words[0]), int(words[1]) if len(words) > 1 else None


def _bad(option: str, value: str, because: str) -> Exception:
    from irc.errors import IrcError

    return IrcError("option-value", f"{option} {value} cannot be", because=because)
