"""What eager refuses for the element types of its operands, asked of eager itself.

Traces run on fake tensors, and torch's fakes and decompositions take many mixtures that its kernels
refuse: ``heaviside`` of two dtypes, ``-`` of booleans, ``//`` by the number 0. What the kernels do
not take stays one op, which raises eager's own error when it runs.
"""

# pyright: basic
from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, wraps
from typing import Any

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from irc.frontends.torch.real_writes import IN_PLACE

ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "floor_divide", "rsub", "subtract", "multiply", "divide", "clip", "absolute", "negative",
        "hardswish", "hardshrink", "isclose", "l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits",
    )
)  # fmt: skip
"""Ops that look at their operands element by element, though torch does not tag them so."""


OPERATORS = frozenset(
    name for name in vars(operator) if name.startswith("i") and f"__{name}__" in IN_PLACE
)
"""Functions for in-place operators, which graphs call in their places."""


SPELT = {
    "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
"""Operators by Python's names: their ops."""


OF_ONE_DTYPE = frozenset({"aten::linalg_cross"})
"""Ops with sizes of their own that refuse tensors of several dtypes, where their fakes do not."""


def is_known(op: torch._ops.OpOverload) -> bool:
    """True for ops of which eager can be asked: functions of elements that draw no numbers."""
    name, tags = op._schema.name, op.tags
    if torch.Tag.nondeterministic_seeded in tags or op._schema.is_mutable:
        return False
    return torch.Tag.pointwise in tags or name in ELEMENTWISE or name in OF_ONE_DTYPE


def refuses(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where eager raises for operands of these element types.

    Args:
        op: of those that are not known (:func:`is_known`), it is false.
        args: tensors, which may be fake, or the nodes of a graph that stand for them; and numbers.
        kwargs: likewise.
    """
    if not is_known(op):
        return False
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    kinds = tuple(map(_kind, leaves))
    if op._schema.name in OF_ONE_DTYPE:
        return len({kind[1] for kind in kinds if kind and kind[0] is torch.Tensor}) > 1
    return None not in kinds and _refusal(op, kinds, spec) is not None


class RefusedWrites(TorchFunctionMode):
    """Raises eager's own errors for calls inside that write what their operand does not hold.

    A trace makes such a call one that does not write, and a cast: it would answer.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a call."""
        named = kwargs or {}
        if (refusal := refused_write(func, args, named)) is not None:
            raise type(refusal)(*refusal.args)  # the one that is kept gathers no frames
        return func(*args, **named)


def refused_write(
    function: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """Return the error that eager raises where a call writes elements into its first operand.

    Args:
        function: of torch or its operators, or the name of a method.
        args: as :func:`refuses` takes them.
        kwargs: likewise; with ``out``, a call writes there.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if "out" not in kwargs and not (name.endswith("_") or name in IN_PLACE or name in OPERATORS):
        return None
    if not _is_elementwise(_op_name(name)):
        return None
    call = _method(name) if isinstance(function, str) else function
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    kinds = tuple(map(_kind, leaves))
    return None if None in kinds else _refusal(call, kinds, spec)


def _op_name(name: str) -> str:
    """Return the name of an op that writes nothing: add for add_, __iadd__ and operator.iadd."""
    if name in IN_PLACE:
        name = name.strip("_")
    if name in OPERATORS:
        return SPELT.get(name[1:], name[1:])
    return name.removesuffix("_")


@cache
def _is_elementwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    return any(is_known(getattr(packet, overload)) for overload in packet.overloads())


@cache
def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)


def as_eager_takes(
    op: torch._ops.OpOverload, decomposition: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a decomposition that leaves to the op what eager refuses."""

    @wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if refuses(op, args, kwargs) else decomposition(*args, **kwargs)

    return decompose


def _kind(leaf: Any) -> tuple[Any, ...] | None:
    """Return what eager's answer depends on; None where it cannot be asked."""
    value = leaf
    if isinstance(leaf, Node):
        value = leaf.meta.get("val", leaf.meta.get("example_value"))
    if isinstance(value, torch.Tensor):
        is_here = value.device.type in ("cpu", "meta") and value.layout is torch.strided
        # Tensors with dims outrank those without: only whether there are some matters.
        return (torch.Tensor, value.dtype, min(value.ndim, 1)) if is_here else None
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value),)
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
        return (type(value), value)
    return None


STAND_INS = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}


@lru_cache(4096)
def _refusal(
    call: Callable[..., Any], kinds: Sequence[tuple[Any, ...]], spec: Any
) -> Exception | None:
    with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = pytree.tree_unflatten([_stand_in(*kind) for kind in kinds], spec)
        try:
            call(*args, **kwargs)
        except Exception as error:
            return error.with_traceback(None)
    return None


def _stand_in(kind: type, value: Any = None, ndim: int = 0) -> Any:
    if kind is torch.Tensor:
        return torch.ones((1,) * ndim, dtype=value)
    return STAND_INS.get(kind, value)
