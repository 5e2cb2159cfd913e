"""What targets share that run kernels one by one: the memory that a launch writes."""

from __future__ import annotations

import torch

from irc.dialects.flow import tensor
from irc.dialects.launches import LaunchOp
from tests.fuzz.bounded import DTYPES


def output_buffers(op: LaunchOp) -> list[torch.Tensor]:
    """Return the results of a launch, filled with what no kernel would store."""
    buffers: list[torch.Tensor] = []
    for value in op.outputs:
        kind = tensor(value)
        dtype = DTYPES[kind.dtype]
        fill = torch.nan if dtype.is_floating_point else 1
        buffers.append(torch.full(kind.static_shape(), fill, dtype=dtype))
    return buffers
