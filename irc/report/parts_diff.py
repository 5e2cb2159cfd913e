"""``irc diff`` of two plans of several programs: schedule, stages, channels, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from irc.plan.parts import PartsPlan
from irc.plan.parts_files import load_parts
from irc.report.diff import Transition, lie_alike, transition_lines, transitions
from irc.report.parts_facts import (
    ChannelTraffic,
    PartFacts,
    PartsFactsReport,
    gather_parts,
    held_buffers,
    held_placement,
)
from irc.report.table import counted, pairs, percent, seconds, size


@dataclass(frozen=True)
class Change:
    """Something that differs, as text of each plan; empty where one has no such thing."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class PartsDifference:
    """All that differs between two plans of several programs; JSON has these fields.

    Attributes:
        same: whether they are the same plan.
        whole: of the plan: mesh, schedule, predicted step.
        stages: by stage: layers, ranks, bytes of a rank, share of the step that is idle.
        functions: whose programs differ; ``stage 0 F``.
        channels: what goes between stages.
        weights: parameters and states that lie otherwise on the ranks of a stage.
    """

    same: bool
    whole: tuple[Change, ...]
    stages: tuple[Change, ...]
    functions: tuple[str, ...]
    channels: tuple[Change, ...]
    weights: tuple[Transition, ...] = ()


def diff_parts(before: str | Path, after: str | Path, placements: str = "") -> PartsDifference:
    """Compare two folders.

    Args:
        before: a folder.
        after: another.
        placements: the notation of placements, as :func:`irc.report.notation.written` has it.

    Raises:
        IrcError: where one is no plan of several programs.
    """
    plans = load_parts(before), load_parts(after)
    a, b = (gather_parts(plan, placements=placements) for plan in plans)
    return parts_difference(a, b, _moved(*plans, placements))


def _moved(a: PartsPlan, b: PartsPlan, notation: str) -> tuple[Transition, ...]:
    """Compare how weights and states lie on the meshes of stages."""
    was, now = (
        {
            name: held_placement(plan, buffer)
            for part in plan.parts
            for name, buffer in held_buffers(part).items()
        }
        for plan in (a, b)
    )
    both = [name for name in was if name in now and not lie_alike(was[name], now[name])]
    moved = ((name, was[name], now[name]) for name in both)
    return transitions(moved, (a.part_mesh, b.part_mesh), notation)


def parts_difference(
    a: PartsFactsReport, b: PartsFactsReport, weights: tuple[Transition, ...] = ()
) -> PartsDifference:
    """Compare the facts of two plans.

    Args:
        a: a plan.
        b: another.
        weights: of both, that lie otherwise.
    """
    whole = [
        Change("mesh", a.mesh or "one device", b.mesh or "one device"),
        Change("priced for", a.cluster, b.cluster),
        Change("schedule", a.schedule, b.schedule),
        Change("micro-batches", f"{a.micro_batches}", f"{b.micro_batches}"),
        Change("offload", a.offload or "none", b.offload or "none"),
        Change("stages", f"{len(a.parts)}", f"{len(b.parts)}"),
        Change("a step", seconds(a.predicted_s), seconds(b.predicted_s)),
    ]
    return PartsDifference(
        a.hash == b.hash,
        tuple(_changed(whole)),
        tuple(_changed(_stages(a, b))),
        tuple(_functions(a, b)),
        tuple(_changed(_channels(a, b))),
        weights,
    )


def _changed(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if change.before != change.after]


ROWS: tuple[tuple[str, Callable[[PartFacts], str]], ...] = (
    ("layers", lambda p: ", ".join(p.layers)),
    ("fixed by", lambda p: p.fixed or "nobody"),
    ("ranks", lambda p: ", ".join(map(str, p.ranks))),
    ("weights", lambda p: size(p.parameter_bytes)),
    ("states", lambda p: size(p.state_bytes)),
    ("gradients", lambda p: size(p.accumulator_bytes)),
    ("registers", lambda p: size(p.register_bytes)),
    ("arena", lambda p: size(p.arena_bytes)),
    ("idle", lambda p: percent(p.idle, 1.0)),
)


def _stages(a: PartsFactsReport, b: PartsFactsReport) -> Iterable[Change]:
    for number in range(max(len(a.parts), len(b.parts))):
        sides = [facts.parts[number : number + 1] for facts in (a, b)]
        for name, text in ROWS:
            before, after = (text(part[0]) if part else "" for part in sides)
            yield Change(f"stage {number} {name}", before, after)


def _functions(a: PartsFactsReport, b: PartsFactsReport) -> Iterable[str]:
    was, now = (
        {(i, f.kind): f.hash for i, part in enumerate(facts.parts) for f in part.functions}
        for facts in (a, b)
    )
    for number, kind in dict.fromkeys((*was, *now)):
        if was.get((number, kind)) != now.get((number, kind)):
            yield f"stage {number} {kind}"


def _channels(a: PartsFactsReport, b: PartsFactsReport) -> Iterable[Change]:
    was, now = (
        {f"{c.name} from {c.producer} to {c.consumer}": c for c in facts.channels}
        for facts in (a, b)
    )
    for name in dict.fromkeys((*was, *now)):
        yield Change(name, _channel(was.get(name)), _channel(now.get(name)))


def _channel(traffic: ChannelTraffic | None) -> str:
    if traffic is None:
        return ""
    return (
        f"{traffic.dtype}{list(traffic.shape)} {traffic.before} to {traffic.after},"
        f" {size(traffic.bytes)}"
    )


def write_parts(difference: PartsDifference) -> str:
    """Lay out a difference for a terminal."""
    if difference.same:
        return "the plans are the same"
    sections = [_lines("", difference.whole)]
    sections.append(_lines("Stages, bytes of a rank", difference.stages))
    sections.append(_lines("Channels, of a micro-batch", difference.channels))
    if difference.weights:
        lines = transition_lines(difference.weights, "weight")
        sections.append("\n".join(["Weights and states on the ranks of a stage", *lines]))
    if difference.functions:
        number = counted(len(difference.functions), "function")
        sections.append(f"Functions\n  {number} differ: {', '.join(difference.functions)}")
    return "\n\n".join(filter(None, sections))


def _lines(head: str, changes: Iterable[Change]) -> str:
    rows = [(c.name, f"{c.before or 'none'} -> {c.after or 'none'}") for c in changes]
    if not rows:
        return ""
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([*([head] if head else []), *pairs(rows, width)])
