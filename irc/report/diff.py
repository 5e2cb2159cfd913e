"""``irc diff``: what differs between two plans, grouped so that one decision is one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import Mesh, Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.plan.schema import Plan, Start
from irc.report.evidence import Evidence
from irc.report.notation import written
from irc.report.summary import weight_bytes
from irc.report.table import counted, pairs, percent, seconds, size, table
from irc.report.timing import split
from irc.report.weights import NUMBER, merged_names
from irc.sharding.mesh import mesh_of


@dataclass(frozen=True)
class Transition:
    """Ops, or arguments, whose placement changed in the same way.

    Attributes:
        change: ``S(0)R -> S(0)S(1)``.
        names: of all that changed so.
    """

    change: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Changes:
    """How the placements of two logical programs differ.

    Attributes:
        ops: by the placement of the first result.
        arguments: by their placement.
        num_unchanged: ops of both that lie alike.
        removed, added: ops of only one program.
    """

    ops: tuple[Transition, ...]
    arguments: tuple[Transition, ...]
    num_unchanged: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def num_ops(self) -> int:
        """How many ops changed."""
        return sum(len(transition.names) for transition in self.ops)


@dataclass(frozen=True)
class Amount:
    """A number of each plan."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class CollectiveChange:
    """What the collectives of one kind over one axis do in each plan: runs, bytes, seconds."""

    name: str
    runs: tuple[int, int]
    bytes: tuple[int, int]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """All that differs between two plans; JSON has these fields."""

    same: bool
    mesh: tuple[str, str]
    cluster: tuple[str, str]
    changes: Changes
    collectives: tuple[CollectiveChange, ...]
    times: tuple[Amount, ...]
    memory: tuple[Amount, ...]
    kernels_removed: tuple[str, ...]
    kernels_added: tuple[str, ...]


def diff_plans(before: str | Path, after: str | Path, placements: str = "") -> Difference:
    """Compare two plan folders.

    Args:
        before: a folder.
        after: another.
        placements: the notation of placements, as :func:`irc.report.notation.written` has it.

    Raises:
        IrcError: where one is no plan.
    """
    return difference(Evidence.of(before), Evidence.of(after), placements)


def difference(a: Evidence, b: Evidence, placements: str = "") -> Difference:
    """Compare two plans."""
    removed, added = _kernels(a, b)
    times = split(a.plan), split(b.plan)
    return Difference(
        a.loaded.hash == b.loaded.hash,
        (a.plan.mesh, b.plan.mesh),
        (a.cluster, b.cluster),
        placement_changes(a.logical, b.logical, placements),
        _collectives(a.plan, b.plan),
        (
            Amount("a call", times[0].total_s or 0.0, times[1].total_s or 0.0),
            Amount("compute", times[0].compute_s, times[1].compute_s),
            Amount("communication", times[0].communication_s, times[1].communication_s),
        ),
        (
            Amount("weights", weight_bytes(a.plan), weight_bytes(b.plan)),
            Amount("arena", a.plan.arena_bytes, b.plan.arena_bytes),
        ),
        removed,
        added,
    )


def placement_changes(before: ModuleOp, after: ModuleOp, notation: str = "") -> Changes:
    """Compare the placements of two logical programs, ops by ``function/id``, arguments by name."""
    meshes = mesh_of(before), mesh_of(after)
    was, now = _results(before), _results(after)
    both = [name for name in was if name in now]
    changed = [name for name in both if not lie_alike(was[name], now[name])]
    held, holds = _arguments(before), _arguments(after)
    moved = [name for name in held if name in holds and not lie_alike(held[name], holds[name])]
    return Changes(
        transitions(((name, was[name], now[name]) for name in changed), meshes, notation),
        transitions(((name, held[name], holds[name]) for name in moved), meshes, notation),
        len(both) - len(changed),
        tuple(name for name in was if name not in now),
        tuple(name for name in now if name not in was),
    )


def lie_alike(was: Placement | None, now: Placement | None) -> bool:
    """Compare placements; whole on each rank is the same on every mesh, and on one device."""
    if was is None or now is None:
        return all(p is None or p.is_replicated for p in (was, now))
    return was == now or (was.is_replicated and now.is_replicated)


def _results(module: ModuleOp) -> dict[str, Placement | None]:
    placements: dict[str, Placement | None] = {}
    for name, func in functions(module).items():
        for op in func.body.block.ops:
            if isinstance(op, FlowOp) and not isinstance(op, BoxingOp) and op.outputs:
                kind = op.outputs[0].type
                placement = kind.placement if isinstance(kind, TensorType) else None
                placements[f"{name}/{id_of(op)}"] = placement
    return placements


def _arguments(module: ModuleOp) -> dict[str, Placement | None]:
    return {
        name: value.type.placement
        for _, name, value in arguments(entry(module))
        if isinstance(value.type, TensorType)
    }


def transitions(
    changed: Iterable[tuple[str, Placement | None, Placement | None]],
    meshes: tuple[Mesh, Mesh],
    notation: str = "",
) -> tuple[Transition, ...]:
    """Put together what changed in the same way, the most of them first.

    Args:
        changed: names, and how each lay and lies.
        meshes: before and after.
        notation: as :func:`irc.report.notation.written` has it.
    """
    groups: dict[str, list[str]] = {}
    for name, was, now in changed:
        sides = zip((was, now), meshes, strict=True)
        change = " -> ".join(written(placement, mesh, notation) for placement, mesh in sides)
        groups.setdefault(change, []).append(name)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    return tuple(Transition(change, tuple(names)) for change, names in ranked)


def _collectives(a: Plan, b: Plan) -> tuple[CollectiveChange, ...]:
    was, now = _traffic(a), _traffic(b)
    rows: list[CollectiveChange] = []
    for name in dict.fromkeys((*was, *now)):
        before, after = was.get(name, (0, 0, 0.0)), now.get(name, (0, 0, 0.0))
        if before != after:
            runs, num_bytes = (before[0], after[0]), (before[1], after[1])
            rows.append(CollectiveChange(name, runs, num_bytes, (before[2], after[2])))
    return tuple(rows)


def _traffic(plan: Plan) -> dict[str, tuple[int, int, float]]:
    traffic: dict[str, tuple[int, int, float]] = {}
    for start in (a for a in plan.actions if isinstance(a, Start)):
        name = f"{start.op.removeprefix('comm.')}[{start.attrs['axis']}]"
        held = max(plan.buffers[i].size_bytes for i in (*start.inputs, *start.outputs))
        runs, num_bytes, time = traffic.get(name, (0, 0, 0.0))
        traffic[name] = (runs + 1, num_bytes + held, time + (start.seconds or 0.0))
    return traffic


def _kernels(a: Evidence, b: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    was, now = Counter(_sources(a)), Counter(_sources(b))
    return tuple(name for name, _ in (was - now).elements()), tuple(
        name for name, _ in (now - was).elements()
    )


def _sources(evidence: Evidence) -> list[tuple[str, str]]:
    """Return each kernel without its number, which says only where it comes in the plan."""
    sources: list[tuple[str, str]] = []
    for name, content in evidence.loaded.texts.items():
        if name.startswith("kernels/"):
            symbol = Path(name).stem
            plain = re.sub(r"^k[0-9]+_", "", symbol)
            text = content.decode("utf-8", "replace").replace(symbol, plain)
            sources.append((plain, text))
    return sources


def write(diff: Difference) -> str:
    """Lay out a difference for a terminal."""
    if diff.same:
        return "the plans are the same"
    sections = [_heading(diff), _placements(diff.changes)]
    if diff.collectives:
        heads = ("collective", "runs", "bytes", "time")
        rows = [
            (
                c.name,
                _arrow(map(str, c.runs)),
                _arrow(map(size, c.bytes)),
                _arrow(map(seconds, c.seconds)),
            )
            for c in diff.collectives
        ]
        sections.append("\n".join(["Collectives", *table(heads, rows)]))
    if diff.kernels_removed or diff.kernels_added:
        sections.append("\n".join(["Kernels", *_kernel_lines(diff)]))
    return "\n\n".join(sections)


def _heading(diff: Difference) -> str:
    rows: list[tuple[str, str]] = []
    if diff.mesh[0] != diff.mesh[1]:
        rows.append(("mesh", _arrow(mesh or "one device" for mesh in diff.mesh)))
    if diff.cluster[0] != diff.cluster[1]:
        rows.append(("priced for", _arrow(diff.cluster)))
    rows += [(f"{a.name}", _amount(a, seconds)) for a in diff.times]
    rows += [(f"{a.name}", _amount(a, size)) for a in diff.memory]
    return "\n".join(pairs(rows, 15))


def _amount(amount: Amount, text: object) -> str:
    assert callable(text)
    if amount.before == amount.after:
        return f"{text(amount.after)}, the same"
    change = amount.after - amount.before
    sign = "+" if change > 0 else "-"
    share = f", {sign}{percent(abs(change), amount.before)}" if amount.before else ""
    return f"{text(amount.before)} -> {text(amount.after)}  ({sign}{text(abs(change))}{share}" + (
        " a rank)" if text is size else ")"
    )


def _placements(changes: Changes) -> str:
    lines = [f"{counted(changes.num_ops, 'op')} changed, {changes.num_unchanged} unchanged"]
    lines += transition_lines(changes.ops, "op")
    for verb, names in (("removed", changes.removed), ("added", changes.added)):
        if names:
            lines.append(f"  {verb}: {counted(len(names), 'op')}, {_few(names)}")
    if changes.arguments:
        number = sum(len(transition.names) for transition in changes.arguments)
        lines.append(f"{counted(number, 'argument')} changed")
        lines += transition_lines(changes.arguments, "argument")
    return "\n".join(lines)


def transition_lines(changes: Iterable[Transition], noun: str) -> list[str]:
    """Write transitions, one a line: ``S(0)R -> S(0)S(1): 8 ops``."""
    return [f"  {t.change}: {counted(len(t.names), noun)}, {_few(alike(t.names))}" for t in changes]


def alike(names: Iterable[str]) -> list[str]:
    """Write names that differ in their numbers as one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(NUMBER.sub("#", name), []).append(name)
    return [merged_names(group) for group in groups.values()]


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def _kernel_lines(diff: Difference) -> list[str]:
    def line(mark: str, names: Mapping[str, int]) -> str:
        parts = (f"{n} {name}" if n > 1 else name for name, n in sorted(names.items()))
        return f"  {mark} {', '.join(parts)}"

    lines: list[str] = []
    if diff.kernels_removed:
        lines.append(line("-", Counter(diff.kernels_removed)))
    if diff.kernels_added:
        lines.append(line("+", Counter(diff.kernels_added)))
    return lines


def _arrow(pair: Iterable[str]) -> str:
    before, after = pair
    return before if before == after else f"{before} -> {after}"
