"""Whether operands have the element types that an op takes, by the schemas of onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import onnx
import onnx.defs

from irc.errors import IrcError
from irc.frontends.onnx.node import Node, Value
from irc.frontends.onnx.result_types import ELEMENTS


def check_operand_types(node: Node) -> None:
    """Refuse a node whose operands have element types that its op does not take.

    Raises:
        IrcError: ``onnx-invalid``, naming the operand and the types that it may have.
    """
    allowed = _allowed(node.proto.op_type, node.version, node.proto.domain)
    shared: dict[str, Value] = {}
    for index, value in enumerate(node.inputs if allowed else ()):
        if value is None or value.dtype not in ELEMENTS:
            continue
        variable, types, same = allowed[min(index, len(allowed) - 1)]
        element = _shown(value)
        if types and element not in types:
            raise _refusal(node, index, f"is {element}", f"{variable} is one of {_listed(types)}")
        first = shared.setdefault(variable, value) if same else value
        if first.dtype != value.dtype:
            raise _refusal(
                node,
                index,
                f"is {element}",
                f"another operand of type {variable} is {_shown(first)}",
            )


@cache
def _allowed(op: str, version: int, domain: str) -> Sequence[tuple[str, frozenset[str], bool]]:
    """Return for each formal operand its type variable, its types, and whether all agree on one."""
    if not onnx.defs.has(op, version, domain=domain):
        return ()
    inputs = onnx.defs.get_schema(op, version, domain=domain).inputs
    return [(i.type_str, frozenset(i.types), i.is_homogeneous) for i in inputs]


@cache
def _names() -> Mapping[int, str]:
    return {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}


def _shown(value: Value) -> str:
    return f"tensor({_names()[ELEMENTS[value.dtype]]})"


def _listed(types: frozenset[str]) -> str:
    tensors = sorted(name for name in types if name.startswith("tensor"))
    return ", ".join(tensors or sorted(types))


def _refusal(node: Node, index: int, what: str, because: str) -> IrcError:
    return IrcError(
        "onnx-invalid", f"operand {index} of {node.proto.op_type} {what}", node.owner.b.loc,
        because=because,
    )  # fmt: skip
