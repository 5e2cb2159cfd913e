"""``--fusion``: the kernels of a plan, what each saves, and why neighbours are two.

The grouping is decided again from the plan's own IR, by the pass that made it and under the same
constraints; so each answer is the judge's, not a guess from the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias, cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from irc.cluster.load import find_cluster
from irc.dialects.attributes import to_python
from irc.dialects.builder import functions
from irc.dialects.flow import FlowOp, id_of, loc_of
from irc.dialects.task import KernelOp
from irc.errors import IrcError, did_you_mean
from irc.kernels.fusion.groups import Grouping, anchor
from irc.kernels.fusion.profit import describe, saved_bytes
from irc.kernels.fusion.reasons import Reason
from irc.kernels.fusion.units import Unit
from irc.kernels.source import wrapped
from irc.ops.linear_loss import STREAMED
from irc.report.choice import convolution_choice
from irc.report.evidence import Evidence
from irc.report.ops import label
from irc.report.table import counted, size
from irc.search.facts import call_counts

GroupAgain: TypeAlias = Callable[[ModuleOp, str], list[tuple[FuncOp, Grouping]]]
"""Decides on the groups of a module's functions, under constraints."""

PINS = "irc.fusion"


@dataclass(frozen=True)
class OpName:
    """An op as the user knows it."""

    id: str
    what: str
    loc: str

    def __str__(self) -> str:
        return f"{self.id} {self.what}"


@dataclass(frozen=True)
class KernelRow:
    """One kernel, or one library op.

    Attributes:
        saved_bytes: what it need not write and read back, in one run.
        choice: of a convolution, whose kernel computes it and why; else empty.
    """

    id: str
    kind: str
    runs: int
    ops: tuple[OpName, ...]
    why: str
    saved_bytes: int
    loc: str
    choice: str = ""


@dataclass(frozen=True)
class ApartRow:
    """Two ops, of which the second reads the first, in two kernels."""

    first: OpName
    second: OpName
    rule: str
    because: str


@dataclass(frozen=True)
class JoinedRow:
    """Kernels of one body for tensors of different sizes, that one launch does.

    Attributes:
        parts: how many kernels it stands for.
        points: elements of all of them.
        ops: the flow ids of the ops that it computes.
    """

    kernel: str
    parts: int
    points: int
    ops: tuple[str, ...]
    loc: str


@dataclass(frozen=True)
class FusionReport:
    """All kernels, all pairs that are not fused, and what was done about losses of linear layers.

    ``joined`` are kernels that one launch does together.
    """

    kernels: list[KernelRow]
    apart: list[ApartRow]
    losses: list[str] = field(default_factory=list[str])
    joined: list[JoinedRow] = field(default_factory=list[JoinedRow])


class Fusion:
    """The grouping of a plan, decided again."""

    def __init__(self, evidence: Evidence, group_again: GroupAgain) -> None:
        self.module = evidence.before("fuse")
        self.counts = call_counts(functions(self.module))
        self.device = find_cluster(evidence.cluster).device
        self.backend = evidence.plan.backend
        attr = evidence.after("fuse").attributes.get(PINS)
        pins = attr.data if isinstance(attr, StringAttr) else ""
        self.joined = _joined(evidence.last)
        self.groupings = [
            (func.sym_name.data, grouping) for func, grouping in group_again(self.module, pins)
        ]

    def report(self) -> FusionReport:
        """Return every kernel and every pair apart, in program order."""
        kernels = [
            self._kernel(name, grouping, unit)
            for name, grouping in self.groupings
            for unit in grouping.units
        ]
        apart = [row for name, grouping in self.groupings for row in _apart(name, grouping)]
        return FusionReport(kernels, apart, self._losses(), self.joined)

    def _losses(self) -> list[str]:
        """Return what pass stream-cross-entropy did, and where it did not act why."""
        attr = self.module.attributes.get(STREAMED)
        return [] if attr is None else list(to_python(cast("ArrayAttr[StringAttr]", attr)))

    def why_not(self, one: str, other: str) -> str:
        """Say why two ops are one kernel, or by which rule they are not.

        Raises:
            IrcError: ``option-value`` for ops that the plan does not have.
        """
        name, grouping, first = self._find(one)
        others = [(n, g, op) for n, g, op in self._all() if _is_named(n, op, other)]
        (second,) = [op for n, _, op in others if n == name][:1] or [self._find(other)[2]]
        if second not in grouping.owner:
            return f"{one} and {other} are in different functions: a call lies between them"
        pair = sorted((first, second), key=lambda op: grouping.position[op])
        units = [grouping.owner[op] for op in pair]
        heads = [f"{_named(name, op)}  {loc_of(op)}" for op in pair]
        if units[0] is units[1]:
            members = grouping.members(units[0].ops)
            why = describe(units[0].kind, members, grouping.outputs(members))
            return "\n".join([*heads, f"  one kernel: {why}"])
        reason = _reason(grouping, units)
        return "\n".join([*heads, f"  two kernels [{reason.rule}]: {reason}"])

    def _all(self) -> Iterator[tuple[str, Grouping, Operation]]:
        for name, grouping in self.groupings:
            for op in grouping.owner:
                yield name, grouping, op

    def _find(self, wanted: str) -> tuple[str, Grouping, Operation]:
        for name, grouping, op in self._all():
            if _is_named(name, op, wanted):
                return name, grouping, op
        known = [f"{name}/{id_of(op)}" for name, _, op in self._all()]
        raise IrcError(
            "option-value",
            f"no kernel or library call computes an op '{wanted}'",
            because="constants, and ops that only rearrange, are part of what reads them",
            help=did_you_mean(wanted, [*known, *(k.partition("/")[2] for k in known)]),
        )

    def _kernel(self, name: str, grouping: Grouping, unit: Unit) -> KernelRow:
        ops: Sequence[Operation] = unit.ops
        saved, why = 0, "a library computes it, or ranks exchange it"
        outputs: Sequence[SSAValue] = ()
        if unit.kind != "library":
            members = grouping.members(unit.ops)
            outputs = grouping.outputs(members)
            ops, saved = members, saved_bytes(members, outputs)
            why = describe(unit.kind, members, outputs)
        names = tuple(_named("", op) for op in ops)
        last = unit.ops[-1]
        runs = self.counts.get(name, 1)
        choice = convolution_choice(unit.kind, ops, outputs, self.device, self.backend)
        place = f"{name}/{id_of(last)}"
        return KernelRow(place, unit.kind, runs, names, why, saved, loc_of(last), choice)


def _joined(module: ModuleOp) -> list[JoinedRow]:
    """Return the kernels of several parts of a program of level task."""
    return [
        JoinedRow(
            op.sym_name.data,
            len(op.part_lengths),
            sum(op.part_lengths),
            () if op.sources is None else tuple(source.data for source in op.sources),
            loc_of(op),
        )
        for op in module.body.block.ops
        if isinstance(op, KernelOp) and op.part_lengths
    ]


def _apart(name: str, grouping: Grouping) -> Iterator[ApartRow]:
    """Yield the pairs of a function: a producer and a reader in two kernels; each once."""
    seen: set[tuple[Operation, Operation]] = set()
    for op, unit in grouping.owner.items():
        for value in op.operands:
            source = anchor(value).owner
            if not isinstance(source, Operation) or (source, op) in seen:
                continue
            other = grouping.owner.get(source, unit)
            if other is unit or "library" == unit.kind == other.kind:
                continue
            seen.add((source, op))
            reason = _reason(grouping, (other, unit))
            yield ApartRow(_named(name, source), _named(name, op), reason.rule, str(reason))


def _reason(grouping: Grouping, units: Sequence[Unit]) -> Reason:
    """Return the rule against two whole kernels."""
    reason = grouping.refusal(units)
    if reason is not None:
        return reason
    linked = units[0] in units[1].reads or units[1] in units[0].reads
    return Reason("greedy" if linked else "unrelated")


def _named(function: str, op: Operation) -> OpName:
    prefix = f"{function}/" if function else ""
    what = label(op) if isinstance(op, FlowOp) else op.name
    return OpName(f"{prefix}{id_of(op)}", what, loc_of(op))


def _is_named(function: str, op: Operation, wanted: str) -> bool:
    name = id_of(op)
    return fnmatchcase(name, wanted) or fnmatchcase(f"{function}/{name}", wanted)


def write(report: FusionReport) -> str:
    """Lay out the report for a terminal."""
    lines: list[str] = []
    for row in report.kernels:
        saved = f", saves {size(row.saved_bytes)}" if row.saved_bytes else ""
        lines.append(f"{row.id}  {row.kind}, {counted(row.runs, 'run')}{saved}, {row.loc}")
        lines.append(f"  why  {row.why}")
        lines += [f"  who  {row.choice}"] if row.choice else []
        lines += [f"       {op}  {op.loc}" for op in row.ops]
    if report.joined:
        lines += ["", "One launch for tensors of different sizes"]
    for row in report.joined:
        lines.append(
            f"{row.kernel}  {row.parts} kernels of one body, {row.points:,} elements, {row.loc}"
        )
        lines += [f"       {line}" for line in wrapped(row.ops)]
    if report.apart:
        lines += ["", "Not fused, though the second reads the first"]
    for pair in report.apart:
        lines.append(f"{pair.first} -> {pair.second}  {pair.first.loc} -> {pair.second.loc}")
        lines.append(f"  [{pair.rule}] {pair.because}")
    if report.losses:
        lines += ["", "Cross-entropy of linear layers", *(f"  {line}" for line in report.losses)]
    return "\n".join(lines)
