"""`irc schedule`: pipeline schedules, shown, drawn, converted, searched and simulated."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from irc.commands import schedule_simulate
from irc.commands.json_output import add_json_option, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from irc.schedule.actions import Schedule
    from irc.schedule.timeline import Timeline, Times

HELP = "show, draw, convert, search or simulate pipeline schedules"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc schedule`."""
    add = parser.add_argument
    add("action", choices=[*ACTIONS], help="list: the schedules that have a name; show: check one, "
        "and print its time, bubble and memory; draw: an SVG picture; convert: as text or as "
        "torch's table; search: the best one by times and memory; simulate: a step on all ranks, "
        "with links, memory, gradients and slow ranks")  # fmt: skip
    add("name", metavar="NAME|FILE|PLAN", nargs="?", help="a name, as 1f1b, interleaved:2 (two "
        "stages a rank) or vocab-1:1f1b (a vocabulary on all ranks); a file: torch's table where "
        "it ends in .csv, else irc's text; or the folder of a plan of stages")  # fmt: skip
    add("--ranks", type=int, metavar="N", help="of the pipeline")
    add("--micro-batches", type=int, metavar="N", help="of a step")
    add("--vocabulary", type=int, choices=(1, 2), metavar="1|2", help="of a named one: weave "
        "in a vocabulary that all ranks share, by this algorithm (arXiv:2411.05288)")  # fmt: skip
    add("--times", metavar="F,I,W[,S,T]", help="what forward, input and weight "
        "gradient of a rank take, in any unit (default 1,1,1); by stage as "
        "F0/F1/..,I0/I1/..,W0/W1/..; and what S and T of a vocabulary take")  # fmt: skip
    add("--transfer", type=float, metavar="T", help="what a message between two ranks takes "
        "(default 0)")  # fmt: skip
    add("--width", type=int, metavar="N", help="show: columns of the picture (default 100)")
    add("-o", "--output", metavar="FILE", help="draw, convert, search: write there")
    add("--to", choices=("text", "csv"), help="convert, search: irc's text, or torch's table; by "
        "default what the name of FILE says")  # fmt: skip
    add("--chunks", type=int, metavar="N", help="search: stages of a rank (default 1)")
    add("--memory", type=float, metavar="N", help="search: micro-batches whose activations a rank "
        "can hold (default: all)")  # fmt: skip
    add("--weight-share", type=float, metavar="X", help="search, simulate: of what F saves, the "
        "part that W reads, 0 to 1; the rest is released at I (default 0)")  # fmt: skip
    add("--span", action="store_true", help="search: shorten each rank's time from its first to "
        "its last action, not the whole")  # fmt: skip
    add("--exact", action="store_true", help="search: compare all orders, of a pipeline with one "
        "stage a rank and at most 36 actions (F, I and W of each micro-batch)")  # fmt: skip
    add_json_option(parser, "list, show, search, simulate: what is said")
    schedule_simulate.add_arguments(parser)


TAKEN_BY = {
    "name": ("show", "draw", "convert", "simulate"),
    "ranks": ("show", "draw", "convert", "search", "simulate"),
    "micro_batches": ("show", "draw", "convert", "search", "simulate"),
    "vocabulary": ("show", "draw", "convert", "simulate"),
    "times": ("show", "draw", "search", "simulate"),
    "transfer": ("show", "draw", "search", "simulate"),
    "width": ("show",),
    "output": ("draw", "convert", "search"),
    "to": ("convert", "search"),
    "chunks": ("search",),
    "memory": ("search",),
    "weight_share": ("search", "simulate"),
    "span": ("search",),
    "exact": ("search",),
    "json": ("list", "show", "search", "simulate"),
    **dict.fromkeys(schedule_simulate.TAKES, ("simulate",)),
}
"""The actions that take each argument."""


def run(args: argparse.Namespace) -> int:
    """Do what the first word says."""
    from irc.errors import IrcError

    for name, actions in TAKEN_BY.items():
        if args.action not in actions and getattr(args, name) not in (None, False):
            option = "a name" if name == "name" else f"--{name.replace('_', '-')}"
            raise IrcError(
                "option-value",
                f"{option} is for irc schedule {', '.join(actions)}, not for {args.action}",
            )
    if args.name is None and args.action in TAKEN_BY["name"]:
        raise IrcError(
            "option-value", f"irc schedule {args.action} needs the name of a schedule, or a file",
            help=f"irc schedule {args.action} 1f1b --ranks 4 --micro-batches 8; "
            "irc schedule list names them",
        )  # fmt: skip
    return ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from irc.entry_points import SCHEDULES, registered
    from irc.installed import disabled
    from irc.schedule.named import BUILTIN, builtin_generator

    rows = [
        (name, (builtin_generator(name).__doc__ or "").strip().partition("\n")[0])
        for name in sorted(BUILTIN)
    ]
    why = disabled(SCHEDULES)
    for each in registered(SCHEDULES):
        clash = f", disabled: {why[each]}" if each in why else ""
        rows.append((each.name, f"[plug-in: {each.package}{clash}]"))
    rows += VOCABULARIES
    if args.json:
        print_json([{"name": name, "about": words} for name, words in rows])
        return 0
    for name, words in rows:
        print(f"{name:14}  {words}")
    return 0


VOCABULARIES = (
    ("vocab-1:NAME", "Weave in a vocabulary that all ranks share: S and T, two barriers."),
    ("vocab-2:NAME", "The same with one barrier: the last backward waits for S alone."),
)
"""What goes before the name of any other schedule."""


def _show(args: argparse.Namespace) -> int:
    from irc.schedule.draw import as_text
    from irc.schedule.timeline import peaks

    timeline = _played(args)
    schedule = timeline.schedule
    held = peaks(schedule)
    if args.json:
        print_json({**_facts(timeline), "activations": held})
        return 0
    print(as_text(timeline, width=max(args.width or 100, 24)))
    print(f"stages          {schedule.num_stages} on {len(schedule.ranks)} ranks")
    print(f"micro-batches   {schedule.num_micro_batches}")
    print(f"makespan        {timeline.makespan:g}")
    print(f"longest rank    {timeline.span:g} from its first to its last action")
    print(f"busiest rank    {timeline.work:g} of work")
    print(f"bubble          {timeline.makespan_bubble:.2%} ({timeline.bubble:.2%} of the rank's)")
    print(f"activations     {' '.join(f'{each:g}' for each in held)} of a rank's stages, at most")
    return 0


def _facts(timeline: Timeline) -> dict[str, object]:
    """Return what there is to say of a schedule that was played, times in the unit of --times."""
    schedule = timeline.schedule
    return {
        "stages": schedule.num_stages,
        "ranks": len(schedule.ranks),
        "micro_batches": schedule.num_micro_batches,
        "makespan": timeline.makespan,
        "longest_rank": timeline.span,
        "busiest_rank": timeline.work,
        "bubble": timeline.makespan_bubble,
        "bubble_of_rank": timeline.bubble,
    }


def _draw(args: argparse.Namespace) -> int:
    from irc.schedule.draw import as_svg

    return write(as_svg(_played(args)), args.output)


def _convert(args: argparse.Namespace) -> int:
    return write(_text(_schedule(args), args), args.output)


def _text(schedule: Schedule, args: argparse.Namespace) -> str:
    from irc.schedule.csv_table import write_csv
    from irc.schedule.notation import print_schedule

    named_so = str(args.output or "").lower().endswith(".csv")
    as_table = args.to == "csv" or (args.to is None and named_so)
    return write_csv(schedule) if as_table else print_schedule(schedule)


def _search(args: argparse.Namespace) -> int:
    from irc.schedule.search import search
    from irc.schedule.timeline import peaks

    ranks, micro_batches = _sizes(args)
    chunks = 1 if args.chunks is None else args.chunks
    share = args.weight_share or 0.0
    if not 1 <= chunks <= MAX_CHUNKS:
        raise _bad("--chunks", str(chunks), f"a rank has 1 to {MAX_CHUNKS} stages")
    if not 0.0 <= share <= 1.0:
        raise _bad("--weight-share", str(share), "it is a part: 0 to 1")
    if args.exact:
        return _exact(args, ranks, micro_batches)
    choice = search(
        _times(args, ranks * chunks, chunks),
        ranks=ranks,
        micro_batches=micro_batches,
        chunks=chunks,
        memory=args.memory,
        weight_share=share,
        objective="span" if args.span else "makespan",
    )
    if args.to and not args.output and not args.json:
        return write(_text(choice.schedule, args), None)
    if args.output:
        write(_text(choice.schedule, args), args.output)
    timeline = choice.timeline
    held = peaks(choice.schedule, weight_share=share, chunks=chunks)
    best = choice.named
    if args.json:
        print_json(
            {
                "chosen": choice.origin,
                "tried": choice.tried,
                **_facts(timeline),
                "activations": held,
                "best_by_name": None if best is None else
                {"name": best.schedule.name, **_facts(best)},
                "schedule": _text(choice.schedule, args),
            }
        )  # fmt: skip
        return 0
    print(f"chosen          {choice.origin}, of {choice.tried} schedules")
    print(f"makespan        {timeline.makespan:g}")
    print(f"longest rank    {timeline.span:g}")
    print(f"bubble          {timeline.makespan_bubble:.2%} ({timeline.bubble:.2%} of the rank's)")
    print(f"activations     {max(held):g} at most")
    if best is not None:
        print(
            f"best by name    {best.schedule.name}: {best.makespan:g}, longest rank {best.span:g}"
        )
    return 0


def _exact(args: argparse.Namespace, ranks: int, micro_batches: int) -> int:
    from irc.schedule.exact import exact

    for option in ("chunks", "weight_share", "span"):
        if getattr(args, option) not in (None, False):
            name = f"--{option.replace('_', '-')}"
            raise _bad("--exact", f"with {name}", "it has one stage a rank, and shortens the whole")
    times = _times(args, ranks, 1)
    timeline = exact(times, ranks=ranks, micro_batches=micro_batches, memory=args.memory)
    text = _text(timeline.schedule, args)
    if args.output or (args.to and not args.json):
        write(text, args.output)
    if args.json:
        print_json({"chosen": "exact", **_facts(timeline), "schedule": text})
        return 0
    if args.output or args.to:
        return 0
    print(f"makespan        {timeline.makespan:g}, the least of all orders")
    return 0


def _simulate(args: argparse.Namespace) -> int:
    return schedule_simulate.run(args, *_timed(args))


def _played(args: argparse.Namespace) -> Timeline:
    from irc.schedule.timeline import play

    return play(*_timed(args))


def _timed(args: argparse.Namespace) -> tuple[Schedule, Times]:
    from irc.schedule.check import check

    schedule = _schedule(args)
    check(schedule)
    chunks = max(1, schedule.num_stages // max(len(schedule.ranks), 1))
    return schedule, _times(args, schedule.num_stages, chunks)


def _schedule(args: argparse.Namespace) -> Schedule:
    from pathlib import Path

    from irc.schedule.check import check
    from irc.schedule.named import BUILTIN, generate
    from irc.schedule.notation import load_schedule

    name = str(args.name)
    if name not in BUILTIN and Path(name).is_dir():
        schedule = load_schedule(_of_plan(Path(name)))
    elif Path(name).suffix or "/" in name:
        schedule = load_schedule(name)
    else:
        ranks, micro_batches = _sizes(args)
        schedule = generate(name, ranks=ranks, micro_batches=micro_batches)
    if args.vocabulary:
        from irc.schedule.vocabulary import with_vocabulary

        check(schedule)
        schedule = with_vocabulary(schedule, args.vocabulary)
    return schedule


def _of_plan(folder: Path) -> str:
    """Return the file in which a plan has its schedule."""
    from irc.errors import IrcError
    from irc.plan.parts import SCHEDULE

    if not (folder / SCHEDULE).is_file():
        raise IrcError(
            "option-value", f"'{folder}' has no schedule",
            because="it is no plan of stages, which has its schedule in " + SCHEDULE,
            help="give the name of a schedule, as irc schedule list has them, a file, or a plan of "
            "stages: irc compile with pipe in --mesh, and --loss",
        )  # fmt: skip
    return str(folder / SCHEDULE)


def _sizes(args: argparse.Namespace) -> tuple[int, int]:
    from irc.errors import IrcError

    for option, size in (("--ranks", args.ranks), ("--micro-batches", args.micro_batches)):
        if size is None:
            raise IrcError(
                "option-value", f"irc schedule {args.action} needs {option}",
                help="as in: irc schedule show 1f1b --ranks 4 --micro-batches 8",
            )  # fmt: skip
        if not 1 <= size <= MAX_SIZE:
            raise _bad(option, str(size), f"it is 1 to {MAX_SIZE}")
    return args.ranks, args.micro_batches


MAX_SIZE = 16384
MAX_CHUNKS = 64


def _times(args: argparse.Namespace, num_stages: int, chunks: int) -> Times:
    from irc.schedule.timeline import Times

    text, transfer = args.times or "1,1,1", args.transfer or 0.0
    kinds = text.split(",")
    if len(kinds) not in (3, 5):
        raise _bad("--times", text, "it has three parts: forward, input and weight gradient, and "
                   "two more where there is a vocabulary")  # fmt: skip
    if not 0.0 <= transfer < float("inf"):
        raise _bad("--transfer", str(transfer), "it is a time")
    forward, inputs, weights = (_numbers(part, num_stages, chunks, text) for part in kinds[:3])
    both = [_numbers(part, 1, 1, text)[0] for part in kinds[3:]]
    logits, vocabulary = both or [0.0, 0.0]
    return Times(forward, inputs, weights, None, transfer, logits, vocabulary)


def _numbers(text: str, num_stages: int, chunks: int, whole: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split("/")]
    except ValueError:
        raise _bad("--times", whole, f"'{text}' is no number") from None
    if not all(0.0 <= number < float("inf") for number in numbers):
        raise _bad("--times", whole, "a time is zero or more")
    if len(numbers) == 1:
        # One number is what a rank takes; its stages share it.
        return [numbers[0] / chunks] * num_stages
    if len(numbers) != num_stages:
        raise _bad("--times", whole, f"there are {num_stages} stages, and {len(numbers)} numbers")
    return numbers


def _bad(option: str, value: str, because: str) -> Exception:
    from irc.errors import IrcError

    return IrcError("option-value", f"{option} {value} cannot be", because=because)


def write(text: str, path: str | None) -> int:
    """Write a file, or print where there is no path."""
    from pathlib import Path

    from irc.errors import IrcError

    if path is None:
        print(text, end="")
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise IrcError(
            "output-write", f"cannot write '{path}'", because=error.strerror or str(error)
        ) from None
    return 0


ACTIONS = {
    "list": _list,
    "show": _show,
    "draw": _draw,
    "convert": _convert,
    "search": _search,
    "simulate": _simulate,
}
