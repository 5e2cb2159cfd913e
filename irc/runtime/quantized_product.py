"""Products of floats with 8-bit weights, whose left side is quantised by its own range."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

EXACT = 1 << 24
"""Sums of integers below this are exact in float32."""


@dataclass(frozen=True)
class QuantizedProduct:
    """``x @ (weight - zero) * scale``, x rounded to 8 bits as ``DynamicQuantizeLinear`` says.

    Attributes:
        weight: the integers without their zero point, as floats in which their sums are exact,
            ``[k, n]``.
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

        whole = weight[index].int() - zero[index].int()
        exact = whole.shape[0] * 255 * 255 < EXACT
        return QuantizedProduct(whole.to(torch.float32 if exact else torch.float64), scale[index])

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
        found = whole.to(self.weight.dtype) @ self.weight
        return found.float() * (step * self.scale)
