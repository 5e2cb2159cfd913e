"""Determinants beside the factors that they are computed by, which a backward pass reads.

torch factors the transpose of a real matrix that lies row by row, and the matrix itself where it
lies in another way; the gradient's formula asks how it lay. Programs lay all values out in rows.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node
from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import TransposeOp, tensor
from irc.frontends.torch.lowering import Operand

DETERMINANTS = frozenset({"aten::_linalg_det", "aten::_linalg_slogdet"})
"""Ops that give a determinant and the factors of their operand or of its transpose."""


def to_factor(
    b: FlowBuilder, node: Node, target: Any, args: tuple[Operand, ...]
) -> tuple[Operand, ...]:
    """Return the operands of a call with which torch factors what it did in the trace.

    Args:
        b: takes the transpose, whose determinant is the same.
        node: the call, with the fake values of what it takes.
        target: what it calls, an ``OpOverload``.
        args: its operands as values of the program.
    """
    if target._schema.name not in DETERMINANTS or not args or not isinstance(args[0], SSAValue):
        return args
    operand: object = node.args[0]
    traced: Any = operand.meta["val"] if isinstance(operand, Node) else None
    if traced is None or traced.is_complex() or traced.is_contiguous():
        return args
    matrix = args[0]
    *outer, rows, columns = range(tensor(matrix).ndim)
    return b.op(TransposeOp, [matrix], perm=(*outer, columns, rows)), *args[1:]
