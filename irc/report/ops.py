"""The ops of the logical program: the signature of each, the runner-up, and what both cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import OpResult, SSAValue

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import functions
from irc.dialects.flow import ExternOp, FlowOp, id_of, loc_of, tensor
from irc.dialects.placement import Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.ops.custom import assumed
from irc.ops.rule import RuleError
from irc.ops.work import flops
from irc.report.evidence import Evidence
from irc.report.notation import oneflow
from irc.sharding.boxing import even_shape, step_between
from irc.sharding.mesh import placements_in
from irc.sharding.signatures import NdSignature, axis_signatures, match_signature, signatures


@dataclass(frozen=True)
class RunnerUp:
    """The signature that the op would have had next.

    Attributes:
        signature: in OneFlow's notation.
        more_s: what it costs more, all runs of the op together.
        compute_s: of that, the op's own work; None where it is not known.
        communication_s: of that, boxing to and from what the neighbours keep.
    """

    signature: str
    more_s: float
    compute_s: float | None
    communication_s: float | None


@dataclass(frozen=True)
class OpRow:
    """One op.

    Attributes:
        name: ``function/id``.
        what: the op and what tells it from others of its kind.
        count: how often it runs in a call.
        signature: in OneFlow's notation.
        compute_s: its own work, once; None where nothing prices it.
        communication_s: the boxings of its operands, once.
        flops: of the whole op, once.
        replicated_only: it has one signature, the whole on each rank.
        assumed: what an op of a library does not declare, so that the cost model estimates it.
    """

    name: str
    what: str
    loc: str
    count: int
    shape: tuple[int, ...]
    signature: str
    compute_s: float | None
    communication_s: float | None
    flops: int
    replicated_only: bool
    assumed: tuple[str, ...]
    runner_up: RunnerUp | None

    @property
    def total_s(self) -> float:
        """Compute of all runs."""
        return (self.compute_s or 0.0) * self.count


class Ops:
    """Reads the ops of a plan."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence, self._mesh = evidence, evidence.mesh
        self._priced = {str(row.get("node")): row for row in evidence.search.get("ops", [])}

    @cached_property
    def model(self) -> ClusterCost | None:
        """The prices; None where the cluster's file is not here."""
        try:
            return ClusterCost(find_cluster(self._evidence.cluster), self._mesh)
        except IrcError:
            return None

    def all(self) -> Iterator[tuple[str, FlowOp]]:
        """Yield the function and each op that computes, in program order."""
        for name, func in functions(self._evidence.logical).items():
            yield from ((name, op) for op in _flow_ops(func) if not isinstance(op, BoxingOp))

    def rows(self) -> list[OpRow]:
        """Return every op, with what the search says of it."""
        return [self.row(function, op) for function, op in self.all()]

    def row(self, function: str, op: FlowOp) -> OpRow:
        """Describe one op."""
        name = f"{function}/{id_of(op)}"
        priced = self._priced.get(name, {})
        chosen = match_signature(op, self._mesh) if self._mesh.axes else None
        return OpRow(
            name,
            label(op),
            loc_of(op),
            self._evidence.counts[function],
            _shape(op),
            signature_text(chosen) if chosen else _spelled(op),
            self._compute_s(op, chosen, priced),
            sum((self.boxing_s(value) for value in op.inputs), 0.0),
            _flops(op),
            bool(self._mesh.axes) and _replicated_only(op),
            tuple(assumed(op.plain)) if isinstance(op, ExternOp) else (),
            self._runner_up(op, priced),
        )

    def _compute_s(
        self, op: FlowOp, chosen: NdSignature | None, priced: dict[str, Any]
    ) -> float | None:
        if "seconds" in priced:
            return float(priced["seconds"])
        if self.model is None:
            return None
        try:
            if chosen is not None:
                return self.model.op_seconds(op, chosen)
            return self.model.local_seconds(op)
        except (RuleError, KeyError):
            return None

    def _runner_up(self, op: FlowOp, priced: dict[str, Any]) -> RunnerUp | None:
        if "runner_up" not in priced:
            return None
        text, more = str(priced["runner_up"]), float(priced["more_s"])
        signature = next((s for s in signatures(op, self._mesh) if str(s) == text), None)
        compute: float | None = None
        if signature is not None and "runner_up_s" in priced:
            extra = float(priced["runner_up_s"]) - float(priced["seconds"])
            compute = extra * int(priced.get("count", 1))
        return RunnerUp(
            signature_text(signature) if signature else text,
            more,
            compute,
            None if compute is None else more - compute,
        )

    def boxing_s(self, value: SSAValue) -> float:
        """Return what it takes to box a value as it is read; nothing where it is not boxed."""
        op = value.owner
        if not (isinstance(value, OpResult) and isinstance(op, BoxingOp)) or self.model is None:
            return 0.0
        before, kind = self.boxing_s(op.x), tensor(value)
        source, target = tensor(op.x).placement, kind.placement
        if source is None or target is None:
            return before
        via = placements_in(op.attributes.get("via")) or ()
        shape, total, here = kind.static_shape(), before, source
        for there in (*via, target):
            total += self._step_s(shape, kind.dtype, here, there)
            here = there
        return total

    def _step_s(
        self, shape: tuple[int, ...], dtype: str, here: Placement, there: Placement
    ) -> float:
        step = step_between(here, there, len(shape))
        held, held_after = (even_shape(shape, p, self._mesh) for p in (here, there))
        if step is None or held is None or held_after is None or self.model is None:
            return 0.0
        return self.model.step_seconds(step, held, held_after, dtype)


def label(op: FlowOp) -> str:
    """Name an op with what tells it from others of its kind."""
    name, plain = op.short_name(), op.plain
    detail = next((str(plain[key]) for key in ("fn", "spec", "target") if key in plain), "")
    if name in ("pointwise", "reduce"):
        return detail if name == "pointwise" else f"reduce {detail}"
    return f"{name} {detail}".strip()


def signature_text(signature: NdSignature) -> str:
    """Write a signature in OneFlow's notation."""
    sides = (", ".join(map(oneflow, side)) for side in (signature.operands, signature.results))
    by = sorted(set(signature.strategy) - {"rule"})
    return " -> ".join(side or "()" for side in sides) + (f" by {', '.join(by)}" if by else "")


def _flow_ops(func: FuncOp) -> list[FlowOp]:
    return [op for op in func.body.block.ops if isinstance(op, FlowOp)]


def _spelled(op: FlowOp) -> str:
    placed = [[_placement(v) for v in side] for side in (op.inputs, op.outputs)]
    if not any(p for side in placed for p in side):
        return ""
    return " -> ".join(", ".join(map(oneflow, side)) or "()" for side in placed)


def _placement(value: SSAValue) -> Placement | None:
    return value.type.placement if isinstance(value.type, TensorType) else None


def _shape(op: FlowOp) -> tuple[int, ...]:
    kinds = [v.type for v in op.outputs if isinstance(v.type, TensorType)]
    return kinds[0].static_shape() if kinds else ()


def _flops(op: FlowOp) -> int:
    try:
        return flops(op)
    except (RuleError, KeyError):
        return 0


def _replicated_only(op: FlowOp) -> bool:
    """True where the op reads something and knows no other way than the whole on each rank."""
    if not op.inputs:
        return False
    try:
        return len(axis_signatures(op)) == 1
    except RuleError:
        return False
