"""The ways in which an entry is tried: a dtype, a compiler, with gradients or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

DTYPES = ("float32", "complex64", "float64", "bfloat16", "float16", "int64", "bool")
COMPILER_NAMES = ("torch.compile", "irc.compile")


@dataclass(frozen=True, order=True)
class Way:
    """What one table of outcomes is of.

    Attributes:
        dtype: the name of the samples' dtype.
        through: the compiler, of :data:`COMPILER_NAMES`.
        backward: gradients are compared too; of a dtype that has none, calls run without
            ``no_grad``.
    """

    dtype: str = "float32"
    through: str = "torch.compile"
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.through} {'backward' if self.backward else 'forward'} {self.dtype}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        return getattr(torch, self.dtype)

    @property
    def differentiates(self) -> bool:
        """True where inputs require gradients."""
        dtype = self.torch_dtype
        return self.backward and (dtype.is_floating_point or dtype.is_complex)


def ways(dtypes: Sequence[str], through: Sequence[str], backward: Sequence[bool]) -> list[Way]:
    """Return all that some dtypes, compilers and directions span."""
    return [Way(*each) for each in product(dtypes, through, backward)]
