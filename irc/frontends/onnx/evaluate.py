"""Computing a value whose ops no input reaches, on demand, with the library of flow ops."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.types import TensorType
from irc.runtime import library

if TYPE_CHECKING:
    import torch

MAX_ELEMENTS = 1 << 24


def evaluate(value: SSAValue, known: Mapping[SSAValue, torch.Tensor]) -> torch.Tensor | None:
    """Compute a value from arguments of known content; None where an input reaches it.

    Values of over 2**24 elements are not computed: constants that shape a program are small.
    """
    computed: dict[SSAValue, torch.Tensor] = dict(known)
    stack = [value]
    while stack:
        wanted = stack[-1]
        if wanted in computed:
            stack.pop()
            continue
        op = wanted.owner
        if not isinstance(op, FlowOp):
            return None
        missing = [operand for operand in op.inputs if operand not in computed]
        if missing:
            stack += missing
            continue
        results: list[tuple[tuple[int, ...], str]] = []
        for result in op.outputs:
            kind = result.type
            if not isinstance(kind, TensorType) or not all(isinstance(d, int) for d in kind.shape):
                return None
            results.append((kind.static_shape(), kind.dtype))
        if any(prod(shape) > MAX_ELEMENTS for shape, _ in results):
            return None
        outputs = library.run(op.name, op.plain, [computed[v] for v in op.inputs], results)
        computed.update(zip(op.outputs, outputs, strict=True))
    return computed[value]
