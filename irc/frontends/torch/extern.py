"""ATen ops that have no row: ``flow.extern`` with the arguments as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from irc.dialects.size import Size
from irc.errors import IrcError
from irc.runtime.dtypes import dtype_name

PLACE = ("layout", "pin_memory", "memory_format")
"""Keyword arguments that say how a tensor lies: a plan decides that, as it decides the device."""


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[SSAValue]) -> str:
    """Return the call as JSON, and append its tensors to ``operands``.

    >>> arguments((2, [1.5, float("inf")]), {"device": torch.device("cpu"), "dim": 0}, [])
    '[[2, [1.5, {"float": "inf"}]], {"device": {"device": "here"}, "dim": 0}]'
    """
    positional = [_encoded(value, operands) for value in args]
    keywords = {
        k: _encoded(v, operands) for k, v in kwargs.items() if k not in PLACE and v is not None
    }
    return json.dumps([positional, keywords])


def _encoded(value: Any, operands: list[SSAValue]) -> Any:
    match value:
        case SSAValue():
            operands.append(value)
            return {"operand": len(operands) - 1}
        case list() | tuple():
            return [_encoded(item, operands) for item in value]
        case torch.dtype():
            return {"dtype": dtype_name(value)}
        case torch.device():
            return {"device": "here"}
        case torch.memory_format() | torch.layout():
            return None
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case complex():
            return {"complex": [value.real, value.imag]}
        case None | bool() | int() | float() | str():
            return value
        case Size():
            raise IrcError(
                "op-unsupported",
                f"an operation without flow form takes the dynamic size '{value}' as an argument",
                help="make the size static: leave it out of dynamic_shapes",
            )
        case _:
            raise IrcError(
                "op-unsupported", f"an operation takes {value!r}, which is no tensor or number"
            )


def target(op: torch._ops.OpOverload) -> str:
    """Return ``aten::name.overload``; the default overload is left out."""
    overload = op._overloadname
    return op._schema.name + ("" if overload == "default" else f".{overload}")
