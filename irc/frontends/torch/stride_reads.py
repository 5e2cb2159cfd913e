"""What a trace depends on of how its arguments lie in memory, besides the numbers in it.

A program is traced for arguments that lie in one way. Where an op gives its operand itself or a
copy (``contiguous``, ``reshape``), strides decide whether what writes to that writes to an
argument; and traced code may ask a tensor how it lies, and branch on the answer.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from irc.frontends.torch.locations import LAYERS, OURS, TORCH
from irc.frontends.torch.result_memory import may_own

OF_STRIDES = frozenset({torch.Tensor.stride, torch.Tensor.is_contiguous})
"""What says in which steps a tensor lies."""

OF_MEMORY = frozenset(
    {
        torch.Tensor.storage_offset,
        torch.Tensor.untyped_storage,
        torch.Tensor._typed_storage,
        torch.Tensor.storage,
        torch.Tensor._is_view,
        vars(torch._C.TensorBase)["_base"].__get__,
    }
)
"""What says in whose memory, and where in it."""


class StrideReads:
    """Notes what traced code asks tensors of how they lie.

    Torch itself asks all the time; of it only layers are traced code.

    Attributes:
        of_strides: it asked for strides.
        of_memory: it asked for the memory around a tensor.
    """

    of_strides = False
    of_memory = False

    def note(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note what a call asks."""
        if func in OF_STRIDES and _is_traced_code():
            self.of_strides = True
        elif func in OF_MEMORY and _is_traced_code():
            self.of_memory = True


ANGLES = frozenset({torch.angle, torch.Tensor.angle})
"""Angles of complex numbers lie in order, whatever fake tensors say (torch 2.11 to 2.13)."""


def lying_as_angles(
    func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], value: Any
) -> Any:
    """Return the result of a call as it lies in memory."""
    return value.contiguous() if func in ANGLES and args[0].is_complex() else value


def _is_traced_code() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_in_between(frame.f_code):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return file.startswith(LAYERS) or not file.startswith((TORCH, OURS))


def _is_in_between(code: CodeType) -> bool:
    """True for what other modes and methods of tensors in Python run on the way to a call."""
    return code.co_name == "__torch_function__" or code.co_filename.startswith(OF_TENSORS)


OF_TENSORS = (f"{TORCH}/_tensor.py", f"{TORCH}/_prims_common")
"""Methods of tensors that are written in Python."""


def reaches_around(operand: object, node: Node) -> bool:
    """True for an ``as_strided`` that looks at memory in which its operand is a part.

    Args:
        operand: its fake value.
        node: the call.
    """
    if not isinstance(operand, torch.Tensor) or operand.layout is not torch.strided:
        return False
    names = ("size", "stride", "storage_offset")
    asked: dict[str, Any] = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    start, size, stride = (asked.get(name) for name in ("storage_offset", "size", "stride"))
    first = operand.storage_offset()
    start = first if start is None else start
    lasts = [first + _span(operand.shape, operand.stride()), start + _span(size, stride)]
    known = all(isinstance(n, int) for n in (first, start, *lasts))
    # Within that, too, there are places of others where it is not row after row.
    is_around = not known or start < first or lasts[1] > lasts[0] or 0 in operand.shape
    return is_around or not operand.is_contiguous()


def _span(size: Any, stride: Any) -> Any:
    return sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def writes_around(traced: ExportedProgram) -> bool:
    """True where memory may be written, or read after a write, in which a tensor is a part.

    A functional graph has new values of tensors, not of what lies around them.
    """
    nodes = traced.graph.nodes
    looks = [n for n in nodes if isinstance(op := n.target, OpOverload) and op in LOOKS]
    is_among = any(n.op == "placeholder" and _is_part(n.meta.get("val")) for n in nodes)
    return any(map(_writes, nodes)) and any(
        is_among or reaches_around(n.args[0].meta.get("val"), n)
        for n in looks
        if isinstance(n.args[0], Node)
    )


def _is_part(value: object) -> bool:
    """True for a tensor in whose memory there are other numbers: its new value has none there."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.untyped_storage().nbytes() != value.numel() * value.itemsize


LOOKS = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default)


def _writes(node: Node) -> bool:
    op = node.target
    return isinstance(op, OpOverload) and op._schema.is_mutable


def decided_by_strides(traced: ExportedProgram) -> frozenset[str]:
    """Return the placeholders that are written to, or returned, or not, as their strides decide.

    Where torch makes the trace functional, an op that gives its operand itself or a copy becomes
    the copy that it was in this trace.

    Args:
        traced: as torch gives it, with its writes.
    """
    nodes: list[Node] = []
    for node in traced.graph.nodes:
        if _writes(node):
            for told, operand in zip(node.target._schema.arguments, node.args, strict=False):
                is_written = told.alias_info is not None and told.alias_info.is_write
                if is_written and isinstance(operand, Node):
                    nodes.append(operand)
        elif node.op == "output":
            nodes += node.all_input_nodes
    return frozenset(source.name for node in nodes if (source := may_own(node)) is not None)
