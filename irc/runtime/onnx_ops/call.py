"""What a kernel sees: one call of an op, with its operands and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from irc.runtime.onnx_ops.values import Array, Item


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        op: the op type.
        version: the opset in whose meaning it is read.
        inputs: operands in order; None where an optional one is absent.
        attributes: Python values; tensors are arrays, subgraphs are functions from operands to
            results.
        outputs: how many results are wanted.
        memo: what kernels keep from call to call of the same node; it depends on attributes alone.
    """

    op: str
    version: int
    inputs: Sequence[Item]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, index: int) -> Any:
        return next(islice(self.inputs, index, None), None)

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what is made of the attributes, once for all calls of this node."""
        if name not in self.memo:
            self.memo[name] = make()
        return self.memo[name]

    def has(self, index: int) -> bool:
        """True where an operand is given."""
        return self[index] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.attributes.get(name, default)

    def ints(self, index: int) -> list[int]:
        """Return an operand that must be there as a list of integers."""
        return [int(n) for n in self[index].reshape(-1).tolist()]

    def some_ints(self, index: int) -> list[int] | None:
        """Return an optional operand as a list of integers, or None."""
        return self.ints(index) if self.has(index) else None

    def number(self, index: int, default: Any = None) -> Any:
        """Return an operand of one element as a Python number, or the default."""
        value = self[index]
        return default if value is None else value.reshape(-1)[0].item()

    def axes(self, index: int) -> tuple[int, ...] | None:
        """Return axes from the attribute (older opsets) or an operand; None where neither is."""
        axes = self.attr("axes")
        if axes is None:
            axes = self.some_ints(index)
        return None if axes is None else tuple(int(axis) for axis in axes)


Kernel: TypeAlias = Callable[[Call], "Array | Sequence[Item] | Any"]
"""Gives one array, or a tuple of results (a list is one result: a sequence)."""

Kernels: TypeAlias = Mapping[str, Kernel]
