"""Products of floats with 8-bit weights, whose left side is quantised by its own range."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Quantise all of x by one scale, and multiply."""
        import torch

        low, high = (float(bound) for bound in (x.min(), x.max())) if x.numel() else (0.0, 0.0)
        low, high = (
            torch.tensor(min(low, 0.0), dtype=torch.float32),
            torch.tensor(max(high, 0.0), dtype=torch.float32),
        )
        step = (high - low) / 255 if high > low else torch.ones(())
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
