"""Products of floats with 8-bit weights, whose left side is quantised by its own range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

EXACT = 1 << 24
"""Sums of integers below this are exact in float32."""
LONGEST = EXACT // (255 * 255)
"""So many products of two numbers of 8 bits, less their zero points, sum to less."""


@dataclass(frozen=True)
class QuantizedProduct:
    """``x @ (weight - zero) * scale``, x rounded to 8 bits as ``DynamicQuantizeLinear`` says.

    Attributes:
        weight: the integers without their zero point, as float32 ``[parts, k / parts, n]``, zeros
            where k ends: each part is so short that its sums are exact.
        scale: of a column, or of all.
    """

    weight: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def of(
        weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, index: int
    ) -> QuantizedProduct:
        """Return the product with ``weight[index]``; i8 or u8 ``[count, k, n]``.

        Args:
            weight: of all.
            scale: f32, ``[count]`` or ``[count, n]``.
            zero: of the weight's dtype, shaped as the scale.
            index: which of them.
        """
        import torch

        whole = (weight[index].int() - zero[index].int()).to(torch.float32)
        k, n = whole.shape
        parts = max(1, -(-k // LONGEST))
        size = -(-k // parts)
        whole = torch.nn.functional.pad(whole, (0, 0, 0, parts * size - k))
        return QuantizedProduct(whole.reshape(parts, size, n), scale[index])

    def __call__(self, x: torch.Tensor, *, by_row: bool = False) -> torch.Tensor:
        """Quantise all of x by one scale, or each of its rows by its own, and multiply."""
        import torch

        if by_row and x.numel():
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        else:
            low, high = x.aminmax() if x.numel() else (torch.zeros(()), torch.zeros(()))
        low, high = low.clamp(max=0), high.clamp(min=0)
        step = torch.where(high > low, (high - low) / 255, torch.ones(()))
        zero = (-low / step).clamp(0, 255).round()
        whole = ((x / step).round() + zero).clamp(0, 255) - zero
        parts, size, n = self.weight.shape
        k = whole.shape[-1]
        rows = whole.reshape(-1, k)
        if parts == 1:
            total = rows @ self.weight[0]
        else:
            apart = torch.nn.functional.pad(rows, (0, parts * size - k))
            sums = torch.bmm(apart.reshape(-1, parts, size).transpose(0, 1), self.weight)
            total = sums.double().sum(0).float()
        return total.reshape(*x.shape[:-1], n) * (step * self.scale)

    @property
    def by_row(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The product that quantises each row of its left side by its own scale."""
        return partial(self, by_row=True)
