"""The collectives of a plan, and why each is there: which boxing, between which ops."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from irc.dialects.builder import arguments, functions, results
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.sbp import BoxingOp
from irc.plan.schema import Plan, Start
from irc.report.evidence import Evidence
from irc.report.notation import oneflow
from irc.report.ops import label


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind that one boxing asks for.

    Attributes:
        id: of the boxing.
        kind: all_reduce, all_gather, ...
        runs: how often in a call.
        bytes: what a rank holds before or after, the larger, all runs together.
        seconds: all runs together.
        change: from which placement to which the boxing leads.
        why: who made the value and who reads it, with source lines.
        loc: the source line.
        dtype: of what is moved, and added up.
    """

    id: str
    kind: str
    axis: str
    runs: int
    bytes: int
    seconds: float
    change: str
    why: str
    loc: str
    dtype: str


class Traffic:
    """Finds the boxing behind each collective."""

    def __init__(self, evidence: Evidence) -> None:
        self._functions = functions(evidence.logical)
        self._roles = {name: arguments(func) for name, func in self._functions.items()}
        self._boxings = {
            (name, id_of(op)): op
            for name, func in self._functions.items()
            for op in func.body.block.ops
            if isinstance(op, FlowOp)
        }
        self._callee = {
            (name, id_of(op)): op.callee.string_value()
            for name, func in self._functions.items()
            for op in func.body.block.ops
            if isinstance(op, CallOp)
        }
        self._plan: Plan = evidence.plan

    def rows(self) -> list[Collective]:
        """Return the collectives, the dearest first."""
        alike: dict[tuple[str, str, str], list[Start]] = {}
        for start in (a for a in self._plan.actions if isinstance(a, Start)):
            function, own = self._place(start.id)
            alike.setdefault((function, own.removesuffix(".start"), start.op), []).append(start)
        rows = [self._row(function, own, starts) for (function, own, _), starts in alike.items()]
        return sorted(rows, key=lambda row: -row.seconds)

    def _place(self, path: str) -> tuple[str, str]:
        function = "forward"
        *calls, own = path.split("/")
        for call in calls:
            function = self._callee.get((function, call), function)
        return function, own

    def _row(self, function: str, own: str, starts: list[Start]) -> Collective:
        op = self._boxings.get((function, own)) or self._boxings.get(
            (function, own.rpartition(".")[0])
        )
        first = starts[0]
        return Collective(
            own,
            first.op.removeprefix("comm."),
            str(first.attrs["axis"]),
            len(starts),
            sum(self._bytes(start) for start in starts),
            sum(start.seconds or 0.0 for start in starts),
            _change(op),
            self._why(function, op),
            first.loc,
            self._plan.buffers[first.source].dtype,
        )

    def _bytes(self, start: Start) -> int:
        held = (self._plan.buffers[i].size_bytes for i in (*start.inputs, *start.outputs))
        return max(held, default=0)

    def _why(self, function: str, op: FlowOp | None) -> str:
        if op is None:
            return "the plan's IR does not say"
        if not isinstance(op, BoxingOp):
            return f"part of how ranks compute {_name(op)}"
        readers = dict.fromkeys(
            self._reader(function, use.operation, use.index) for use in op.outputs[0].uses
        )
        return f"{self._maker(function, op.x)}; read by {', '.join(readers)}"

    def _maker(self, function: str, value: SSAValue) -> str:
        if isinstance(value, BlockArgument):
            role, name, _ = self._roles[function][value.index]
            return f"{'argument' if role == 'value' else role} {name}"
        owner = value.owner
        if isinstance(owner, BoxingOp):
            return self._maker(function, owner.x)
        return f"made by {_name(owner)}" if isinstance(owner, Operation) else "a value"

    def _reader(self, function: str, reader: Operation, index: int) -> str:
        if isinstance(reader, ReturnOp):
            if function != "forward":
                return f"the end of @{function}"
            role, name = results(self._functions[function])[index]
            return f"{role} {name}"
        return _name(reader)


def _change(op: FlowOp | None) -> str:
    if not isinstance(op, BoxingOp):
        return ""
    source, target = tensor(op.x).placement, tensor(op.outputs[0]).placement
    return f"{oneflow(source)} -> {oneflow(target)}"


def _name(op: Operation) -> str:
    if isinstance(op, CallOp):
        return f"call of @{op.callee.string_value()} ({loc_of(op)})"
    what = label(op) if isinstance(op, FlowOp) else op.name
    return f"{id_of(op)} {what} ({loc_of(op)})"
