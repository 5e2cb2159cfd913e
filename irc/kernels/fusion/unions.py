"""What a union of units is: its kind, its readers, and rules that need no loops to be known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import FlowOp, ReduceOp, loc_of, phase_of
from irc.errors import IrcError
from irc.kernels.axes import Axis
from irc.kernels.fusion.reasons import Reason
from irc.kernels.fusion.units import Kind, Unit
from irc.kernels.fusion.wishes import Wish
from irc.kernels.holds import SHAPE_OPS
from irc.kernels.nest import Nest


def is_forward(op: Operation) -> bool:
    """True for an op of the forward pass, or of a program that has no other."""
    return phase_of(op) in ("", "forward")


def kind_of(units: Sequence[Unit]) -> Kind:
    """Return how the kernel of some units runs."""
    return "matmul" if any(unit.kind == "matmul" for unit in units) else "rows"


def against_matmul(units: Sequence[Unit]) -> str | None:
    """Name the rule that keeps a matmul's neighbours outside, without asking for its loops."""
    matmuls = [unit for unit in units if unit.kind == "matmul"]
    if len(matmuls) > 1:
        return "two-matmuls"
    for matmul in matmuls:
        if any(unit in matmul.reads for unit in units):
            return "matmul-operand"
        if any(isinstance(op, ReduceOp) for unit in units for op in unit.ops):
            return "matmul-reduction"
    return None


def store_orders(nest: Nest) -> set[Axis | None]:
    """The axes along which stores write neighbours; a row's single value is no matter."""
    return {
        next((axis for axis, stride in store.strides.items() if abs(stride) == 1), None)
        for _, node, store in nest.outputs
        if not nest.reduced or node in nest.full
    }


def impossible(wish: Wish, reason: Reason, ops: Sequence[Operation]) -> IrcError:
    """Build the error for a forced fusion that is no kernel."""
    lines = ", ".join(dict.fromkeys(loc_of(op) for op in ops))
    return IrcError(
        "fusion-impossible",
        f"'{wish.text}' asks for one kernel that cannot be",
        where=wish.where,
        because=f"{reason} [{reason.rule}]; the ops are from {lines}",
        help="leave the statement out, or name ops that one loop nest fits:"
        " irc explain plan PLAN --fusion shows the kernels",
    )


def users_of(value: SSAValue) -> Iterable[Operation]:
    """Yield what reads a value, through ops that only rearrange."""
    for use in value.uses:
        if isinstance(use.operation, FlowOp) and use.operation.name in SHAPE_OPS:
            yield from users_of(use.operation.outputs[0])
        else:
            yield use.operation
