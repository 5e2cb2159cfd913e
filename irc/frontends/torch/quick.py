"""Guards of a call whose arguments are plain tensors of fixed sizes on the CPU, made to be fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import is_
from typing import Any, TypeAlias

import torch
from torch._C._dynamo.guards import TensorGuards

from irc.frontends.torch.contents import same

Slots: TypeAlias = Sequence[tuple[dict[str, Any], str]]
"""Entries of dictionaries: where modules hold attributes, tensors and layers."""


@dataclass(frozen=True)
class Quick:
    """Checks each of which has to say yes.

    Attributes:
        count: of the arguments.
        grad: whether autograd records; None where that does not matter.
        accepts: checks the arguments, given as one sequence, and autocast.
        holds: checks what the module holds; None where it holds nothing that is guarded.
    """

    count: int
    grad: bool | None
    accepts: Callable[[Sequence[Any]], bool]
    holds: Callable[[], bool] | None

    def __call__(self, args: Sequence[Any]) -> bool:
        """Return whether a call may run."""
        return (
            len(args) == self.count
            and self.grad in (None, torch.is_grad_enabled())
            and self.accepts(args)
            and (self.holds is None or self.holds())
        )


def alike(examples: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return torch's own check, one native call, that tensors are as examples are.

    It compares class, sizes, strides, dtype, device, requires_grad, and how the tensors are
    dispatched in this thread, which autocast, inference mode and a lazy negation change. It holds
    no reference to the examples. Source: ``TensorGuards`` of torch/csrc/dynamo/guards.cpp.
    """
    # torch's stub says otherwise, but each tensor has a list of its sizes, and one of its strides.
    sizes: Any = [[*x.shape] for x in examples]
    strides: Any = [[*x.stride()] for x in examples]
    return TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def accepting(
    wanted: Sequence[tuple[torch.Size, torch.dtype | None, bool]],
) -> Callable[[Sequence[Any]], bool]:
    """Return a check of arguments, contiguous ones, given sizes, dtype and requires_grad of each.

    It says yes to more than one kind of :func:`alike`: to any strides of dims of size 1, to tensors
    made in inference mode and outside.
    """
    is_autocast, plain, strided = torch.is_autocast_enabled, torch.Tensor, torch.strided

    def accepts(args: Sequence[Any]) -> bool:
        if is_autocast("cpu"):
            return False
        for arg, (shape, dtype, requires_grad) in zip(args, wanted, strict=True):
            if (
                type(arg) is not plain
                or arg.dtype is not dtype
                or arg.layout is not strided
                or arg.is_nested
                or arg.shape != shape
                or not arg.is_cpu
                or arg.requires_grad is not requires_grad
                or not arg.is_contiguous()
                or arg.is_neg()
                or arg.is_conj()
            ):
                return False
        return True

    return accepts


def holding(
    slots: Slots,
    values: tuple[Any, ...],
    held_slots: Slots,
    held: tuple[Any, ...],
    tensors: Sequence[torch.Tensor],
    pointers: list[int],
    hooks: tuple[dict[int, Any], ...] = (),
    outside: Callable[[], bool] | None = None,
    sized: tuple[Any, ...] = (),
    counts: tuple[int, ...] = (),
) -> Callable[[], bool]:
    """Return a check of what a module holds.

    Args:
        slots: of plain attributes.
        values: what they were.
        held_slots: of parameters, buffers and layers.
        held: what they were; they have to be the same objects.
        tensors: those among them whose memory has to be the same, too.
        pointers: the addresses of that.
        hooks: what has to be empty.
        outside: checks what else is read.
        sized: dictionaries of modules.
        counts: of their entries.
    """
    get, address = dict[str, Any].get, torch.Tensor.data_ptr

    def holds() -> bool:
        if held and not all(map(is_, starmap(get, held_slots), held)):
            return False
        if tensors and [*map(address, tensors)] != pointers:
            return False
        if any(hooks):
            return False
        if outside is not None and not outside():
            return False
        if sized and (*map(len, sized),) != counts:
            return False
        return (
            not slots
            or all(map(is_, starmap(get, slots), values))
            or same(values, (*starmap(get, slots),))
        )

    return holds
