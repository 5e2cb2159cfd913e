"""The modules behind a plan's parameters: what a Linear or an Embedding of the user's became.

A plan knows names of parameters and the ops that read them. A weight ``a.b.weight`` that a product
contracts along its second dim is that of an ``nn.Linear`` called ``a.b``; a table that rows are
taken from, that of an ``nn.Embedding``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import OpResult, SSAValue

from irc.dialects.builder import arguments, functions
from irc.dialects.flow import ContractOp, FlowOp
from irc.dialects.indexing import TakeOp
from irc.dialects.placement import AxisPlacement, B, Split
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.ops.rules_naming import dim_of
from irc.report.evidence import Evidence

Kind: TypeAlias = Literal["linear", "embedding"]
Origins: TypeAlias = Mapping[SSAValue, str]
"""The parameter that a value is, boxed or not."""


@dataclass(frozen=True)
class Use:
    """A module's product or look-up, once for each call of its block.

    Attributes:
        module: the dotted name.
        kind: what torch calls such a module.
        op: the contract or take.
        weight: the index of the weight among the operands; the other is the input.
    """

    module: str
    kind: Kind
    op: FlowOp
    weight: int

    @property
    def input(self) -> SSAValue:
        """What the module is given, as the op reads it."""
        return self.op.operands[1 - self.weight]

    @property
    def result(self) -> SSAValue:
        """What the product or look-up gives, before a bias."""
        return self.op.outputs[0]


def walk(evidence: Evidence) -> Iterator[tuple[FlowOp, Origins]]:
    """Yield every op as often as its block is called, with the parameters that its values are."""
    known = functions(evidence.logical)
    roles = {"parameter", "buffer", "constant"}
    forward = known["forward"]
    named: dict[SSAValue, str] = {v: name for role, name, v in arguments(forward) if role in roles}
    yield from _walk(forward, known, named)


def _walk(
    func: FuncOp, known: Mapping[str, FuncOp], named: Origins
) -> Iterator[tuple[FlowOp, Origins]]:
    origins = dict(named)
    for op in func.body.block.ops:
        if isinstance(op, BoxingOp) and op.x in origins:
            origins[op.outputs[0]] = origins[op.x]
        elif isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            inside: dict[SSAValue, str] = {
                argument: origins[operand]
                for argument, operand in zip(callee.body.block.args, op.operands, strict=True)
                if operand in origins
            }
            yield from _walk(callee, known, inside)
        if isinstance(op, FlowOp):
            yield op, origins


def module_use(op: FlowOp, origins: Origins) -> Use | None:
    """Return the module that an op is, None where it is no Linear or Embedding of torch."""
    for index, value in enumerate(op.operands[:2]):
        module, dot, leaf = origins.get(value, "").rpartition(".")
        if not dot or leaf != "weight" or len(op.inputs) != 2:
            continue
        if isinstance(op, ContractOp) and _is_linear(op.spec, index):
            return Use(module, "linear", op, index)
        if isinstance(op, TakeOp) and index == 0 and dim_of(op.plain) == 0:
            return Use(module, "embedding", op, index)
    return None


def _is_linear(spec: str, weight: int) -> bool:
    """Return whether a contraction is ``x @ weight.T``.

    >>> _is_linear("abY,ZY->abZ", 1), _is_linear("abY,YZ->abZ", 1)
    (True, False)
    """
    terms, result = spec.replace(" ", "").split("->")
    sides = terms.split(",")
    matrix, x = sides[weight], sides[1 - weight]
    return len(matrix) == 2 and x[-1:] == matrix[1] and result == x[:-1] + matrix[0]


def module_uses(evidence: Evidence) -> dict[str, list[Use]]:
    """Return the uses of each module, in program order; two of one weight are a tied one."""
    uses: dict[str, list[Use]] = {}
    for op, origins in walk(evidence):
        use = module_use(op, origins)
        if use is not None:
            uses.setdefault(use.module, []).append(use)
    return uses


def on(value: SSAValue, axis: str) -> AxisPlacement:
    """Return how a value lies on one axis, orders of application left out."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.placement is None:
        return B
    placed = kind.placement[axis]
    return Split(placed.dim) if isinstance(placed, Split) else placed


def unboxed(value: SSAValue) -> SSAValue:
    """Return the value before its boxings."""
    while isinstance(value, OpResult) and isinstance(value.op, BoxingOp):
        value = value.op.x
    return value


def last_dim(value: SSAValue) -> Split:
    """Return the split of a value's last dim."""
    assert isinstance(value.type, TensorType)
    return Split(value.type.ndim - 1)
