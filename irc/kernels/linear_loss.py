"""Cross-entropy of a linear layer by blocks of rows: the logits of one block are all that exist.

The rows n of ``irc.ops.linear_loss`` are cut into blocks of at most as many as the weight has
columns (:func:`irc.ops.linear_loss.block_rows`), so the logits of one, [rows, v], take no more than
the weight [v, d]. Each block is a call of one function of ordinary ops: a matmul that gives logits,
one pass over their rows that leaves the logits' gradients, then a matmul for the gradient of h and
one that adds to that of the weight (Liger kernel, arXiv:2410.10989; arXiv:2411.09009 keeps the
blocks in a GPU's shared memory). The kernels of all full blocks are the same.

Where a program has a loss and its gradients, and what the gradients start from does not depend on
the loss, :func:`join` makes one op of both: three matmuls instead of four.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ConcatOp, ExternOp, FlowOp, SliceOp, carry, id_of, loc_of, tensor
from irc.dialects.noted import noted_placements
from irc.dialects.types import is_float
from irc.kernels.holds import FEW_PIECES, shape_of
from irc.kernels.linear_loss_block import BlockFunctions, Roles
from irc.ops.linear_loss import (
    BACKWARD,
    BOTH,
    LOSS,
    arguments,
    block_rows,
    operand_roles,
    result_roles,
)

TARGETS = frozenset({LOSS, BACKWARD, BOTH})
MIN_BYTES = 64 << 20
"""So many bytes of logits must be saved: below, they stay in the caches of a CPU or of a GPU."""
MAX_AGAIN = 256
"""Pairs of ops that are looked at, to tell whether two values are one."""

BY_ROWS = frozenset({"g", "gs", "h", "index", "sums", "loss", "dh"})
ADDED = {"dw": "dw0", "db": "db0"}


def join(block: Block) -> None:
    """Make one op of each loss and its gradients, where those do not wait for the loss."""
    for op in list(block.ops):
        if isinstance(op, ExternOp) and op.target == BACKWARD:
            loss = _roles(op)["sums"].owner
            if isinstance(loss, ExternOp) and loss.target == LOSS and loss.parent is block:
                _join(block, loss, op)


def _roles(op: ExternOp) -> dict[str, SSAValue]:
    """Return the operands of one of the three by role."""
    roles = operand_roles(op.target, op.arguments)
    return dict(zip(roles, op.inputs, strict=True))


def _join(block: Block, loss: ExternOp, back: ExternOp) -> None:
    ours, theirs = _roles(loss), _roles(back)
    starts = [theirs[role] for role in ("g", "gs") if role in theirs]
    before = _between(block, loss, starts)
    if before is None or not all(_equal(value, theirs[role]) for role, value in ours.items()):
        return
    for op in before:
        op.detach()
        block.insert_op_before(op, loss)
    roles = {"g": theirs["g"], **ours}
    if "gs" in theirs:
        roles["gs"] = theirs["gs"]
    both = ExternOp.make(
        list(roles.values()),
        [value.type for value in (*loss.outputs, *back.outputs)],
        target=BOTH,
        arguments=arguments(BOTH, roles),
    )
    both.attributes.update(loss.attributes)
    both.attributes.pop("sbp", None)
    block.insert_op_before(both, loss)
    for old, new in zip((*loss.outputs, *back.outputs), both.outputs, strict=True):
        old.replace_all_uses_with(new)
    for op in (back, loss):
        op.detach()
        op.erase()


def _equal(one: SSAValue, other: SSAValue) -> bool:
    """True for one value, or two of the same ops: what is cheap is computed again for backward."""
    pending = [(one, other)]
    for _ in range(MAX_AGAIN):
        if not pending:
            return True
        one, other = pending.pop()
        if one is other:
            continue
        a, b = one.owner, other.owner
        if not (isinstance(a, FlowOp) and isinstance(b, FlowOp)) or isinstance(a, ExternOp):
            return False
        if (a.name, one.type, a.properties) != (b.name, other.type, b.properties):
            return False
        if len(a.outputs) != 1 or len(a.inputs) != len(b.inputs):
            return False
        pending += zip(a.inputs, b.inputs, strict=True)
    return False


def _between(block: Block, loss: ExternOp, values: Sequence[SSAValue]) -> list[Operation] | None:
    """Return the ops behind the loss that values need, in order; None where one needs the loss."""
    needed, pending = set[Operation](), list(values)
    position = {op: i for i, op in enumerate(block.ops)}
    while pending:
        op = pending.pop().owner
        if op is loss:
            return None
        if isinstance(op, Operation) and op not in needed and position[op] > position[loss]:
            needed.add(op)
            pending += op.operands
    return sorted(needed, key=lambda op: position[op])


def lower_linear_losses(module: ModuleOp, func: FuncOp) -> None:
    """Write the losses of a function as calls of their blocks, in place.

    It declines where an operand is empty: then there is nothing to save.
    """
    block = func.body.block
    join(block)
    for op in list(block.ops):
        if isinstance(op, ExternOp) and op.target in TARGETS and _is_held(op):
            _Streamed(module, func, op).run()


def _is_held(op: ExternOp) -> bool:
    whole = all(0 not in shape_of(value) for value in op.inputs)
    return is_float(tensor(_roles(op)["h"]).dtype) and whole


class _Streamed:
    """One op on its way to calls."""

    def __init__(self, module: ModuleOp, func: FuncOp, op: ExternOp) -> None:
        self.op = op
        self.roles: Roles = _roles(op)
        names = result_roles(op.target, self.roles)
        # A weight that is not trained has no gradient to be computed.
        self.wanted = {
            role: value
            for role, value in zip(names, op.outputs, strict=True)
            if value.first_use is not None
        }
        parent = op.parent
        assert isinstance(parent, Block)
        self.b = FlowBuilder(parent, f"{id_of(op)}.", before=op)
        self.b.loc = loc_of(op)
        self.functions = BlockFunctions(module, func, op)

    def run(self) -> None:
        """Call a function for each block of rows, and join what they give."""
        rows, width = shape_of(self.roles["h"])
        step = block_rows(rows, width)
        parts: dict[str, list[SSAValue]] = {role: [] for role in self.wanted}
        for first in range(0, rows, step):
            roles = self._block(first, min(first + step, rows))
            roles |= {ADDED[role]: parts[role][-1] for role in ADDED if parts.get(role)}
            for role, value in self.functions.call(self.b, roles, tuple(self.wanted)).items():
                parts[role].append(value)
        for number, (role, old) in enumerate(self.wanted.items()):
            joined = self._joined(role, parts[role])
            if number == 0 and isinstance(joined.owner, FlowOp):
                carry(joined.owner, self.op)
                if (placed := noted_placements([old])) is not None:
                    joined.owner.attributes["sbp"] = placed
            old.replace_all_uses_with(joined)
        self.op.detach()
        self.op.erase()

    def _block(self, first: int, last: int) -> dict[str, SSAValue]:
        return {
            role: self._rows(value, first, last) if role in BY_ROWS else value
            for role, value in self.roles.items()
        }

    def _rows(self, value: SSAValue, first: int, last: int) -> SSAValue:
        rows, *rest = shape_of(value)
        if (first, last) == (0, rows):
            return value
        return self.b.op(
            SliceOp,
            [value],
            starts=(first, *(0 for _ in rest)),
            stops=(last, *rest),
            steps=(1,) * (1 + len(rest)),
        )

    def _joined(self, role: str, parts: Sequence[SSAValue]) -> SSAValue:
        """Join the rows of all blocks, a few at a time, which kernels do; the last sum is all."""
        if role not in BY_ROWS:
            return self.b.cast(parts[-1], tensor(self.wanted[role]).dtype)
        pieces = list(parts)
        while len(pieces) > 1:
            pieces = [
                self._concat(pieces[i : i + FEW_PIECES]) for i in range(0, len(pieces), FEW_PIECES)
            ]
        return pieces[0]

    def _concat(self, pieces: list[SSAValue]) -> SSAValue:
        return pieces[0] if len(pieces) == 1 else self.b.op(ConcatOp, pieces, dim=0)


def saved_bytes(rows: int, classes: int, width: int, item: int) -> int:
    """Return how many bytes of logits are never held: those of all rows but a block's.

    >>> saved_bytes(4096, 50257, 768, 4) >> 20
    687
    """
    return (rows - block_rows(rows, width)) * classes * item if rows else 0
