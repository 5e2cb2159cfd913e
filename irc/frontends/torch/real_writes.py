"""What a trace writes for real: into tensors that are neither arguments nor the module's own.

torch.export puts fake tensors in the places of arguments, parameters and buffers. A tensor that
traced code finds elsewhere (a variable of an enclosing function, a list) is itself there, and so is
what is written to it: the call that is traced would count twice.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

MOVES_STATISTICS = ("batch_norm", "instance_norm")

WRITING = ("out", "inplace", "max_norm")
"""Options with which functions write."""

IN_PLACE = frozenset(
    {"__setitem__", "__set__"}
    | {
        f"__i{name}__"
        for name in (
            "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul",
            "and", "or", "xor", "lshift", "rshift",
        )
    }
)  # fmt: skip
"""Special methods that write; ``__invert__`` and ``__index__`` do not."""


class RealWrites:
    """Keeps what real tensors hold before calls write to them."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Keep the operands of a call that may write to them."""
        if writes(func, named):
            for operand in pytree.tree_leaves((args, named)):
                if type(operand) in (torch.Tensor, torch.nn.Parameter):
                    self._keep(operand)

    def _keep(self, operand: torch.Tensor) -> None:
        while is_functorch_wrapped_tensor(operand):
            operand = get_unwrapped(operand)
        if isinstance(operand, FakeTensor) or not torch._C._has_storage(operand):
            return
        memory = operand.untyped_storage()
        if memory.device.type != "meta" and memory._cdata not in self._kept:
            # The copy is ours, and none of the graph that is traced.
            with _disable_current_modes():
                self._kept[memory._cdata] = memory, memory.clone()

    def undo(self) -> None:
        """Give the tensors back what they held."""
        for memory, was in self._kept.values():
            memory.copy_(was)
        self._kept.clear()


def writes(func: Callable[..., Any] | str, named: Mapping[str, Any]) -> bool:
    """True for a call that may write to its operands.

    Args:
        func: of torch, of an operator, or the name of a method.
        named: its keyword arguments.
    """
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    name = func if isinstance(func, str) else getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in IN_PLACE
    return (
        name.endswith("_")
        or f"__{name}__" in IN_PLACE
        or name in MOVES_STATISTICS
        or any(named.get(option) is not None and named[option] is not False for option in WRITING)
    )


def written_by_call(
    func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Return the tensors that a call writes to, as far as its name and its options say.

    Args:
        func: of torch, or of an operator.
        args: its positional arguments.
        named: its keyword arguments.
    """
    if not writes(func, named):
        return []
    name = getattr(func, "__name__", "")
    if isinstance(func, torch._ops.OpOverload):
        told = func._schema.arguments
        picked = [
            args[place] if place < len(args) else named.get(each.name)
            for place, each in enumerate(told)
            if each.alias_info is not None and each.alias_info.is_write
        ]
    elif named.get("out") is not None:
        picked = [named["out"]]
    elif name in MOVES_STATISTICS:
        # The function of torch has the weight and the bias in front of them.
        first = 1 if func.__module__ == torch.nn.functional.__name__ else 3
        picked = [*args[first : first + 2], named.get("running_mean"), named.get("running_var")]
    else:
        picked = [args[0] if args else named.get("self", named.get("input"))]
    return [each for each in pytree.tree_leaves(picked) if isinstance(each, torch.Tensor)]
