"""The buffers of a kernel whose one op names them by role: checked reads, counted stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irc.dialects.task import KernelBodyOp
from irc.errors import InternalError
from irc.runtime.dtypes import dtypes

if TYPE_CHECKING:
    import torch


class RoleMemory:
    """What interpreters of such ops read from and store to.

    Args:
        op: the body of the kernel.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: what floats are computed in; None means their own.
    """

    def __init__(
        self,
        op: KernelBodyOp,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        self.name = op.kernel.sym_name.data
        self.num_inputs = op.kernel.num_inputs.value.data
        self.buffers, self.counts, self.dtype = buffers, counts, dtype

    def read(self, buffer: int, address: torch.Tensor, dtype: str) -> torch.Tensor:
        """Return elements of a buffer, whose dtype has this short name.

        Raises:
            InternalError: where an address lies outside.
        """
        memory = self.buffers[buffer]
        low, high = (int(address.min()), int(address.max())) if address.numel() else (0, -1)
        if low < 0 or high >= memory.numel():
            raise InternalError(
                f"kernel @{self.name} reads elements {low}..{high} of a buffer of {memory.numel()}"
            )
        elements = memory[address]
        is_float = dtypes()[dtype].is_floating_point
        return elements.to(self.dtype) if is_float and self.dtype is not None else elements

    def store(self, buffer: int, address: torch.Tensor, value: torch.Tensor) -> None:
        """Write elements of an output, and count them."""
        import torch

        memory = self.buffers[buffer]
        memory[address] = value.to(memory.dtype)
        ones = torch.ones(address.numel(), dtype=torch.int32)
        self.counts[buffer - self.num_inputs].index_add_(0, address.reshape(-1), ones)
