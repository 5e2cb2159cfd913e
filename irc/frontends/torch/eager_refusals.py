"""What eager refuses for the element types of its operands, asked of eager itself.

Traces run on fake tensors, and torch's fakes and decompositions take many mixtures that its kernels
refuse: ``heaviside`` of two dtypes, ``-`` of booleans, ``//`` by the number 0. What the kernels do
not take stays one op, which raises eager's own error when it runs. Of a few mixtures the fakes have
another dtype than the kernels give: ``huber_loss`` of bfloat16 and float32.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, wraps
from itertools import zip_longest
from math import prod
from typing import Any, TypeAlias, cast

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from irc.errors import IrcError
from irc.frontends.torch.real_writes import IN_PLACE
from irc.frontends.torch.result_memory import hint_of

ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "floor_divide", "rsub", "subtract", "multiply", "divide", "clip", "absolute", "negative",
        "hardswish", "hardshrink", "isclose", "l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss",
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


READS = frozenset(
    {
        "__get__", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset",
        "element_size", "untyped_storage", "_typed_storage", "storage", "data_ptr", "get_device",
        "device", "is_contiguous", "is_complex", "is_floating_point", "is_conj", "is_neg",
        "is_inference", "is_signed", "is_same_size", "is_set_to", "is_shared", "is_pinned",
        "_is_view", "has_names", "sym_max", "sym_min", "sym_int", "sym_float", "sym_ite", "sym_not",
    }
)  # fmt: skip
"""Functions that say of a tensor what it is and how it lies, for any element type; and of sizes."""


SIZED = frozenset({"nansum", "topk", "linalg_cross"})
"""Ops with sizes of their own that refuse element types in other words than kernels do."""


Answer: TypeAlias = "Exception | tuple[torch.dtype, ...]"
"""What eager gives for operands of some element types: an error, or tensors of these."""


def is_known(op: torch._ops.OpOverload) -> bool:
    """True for ops of which eager can be asked: functions of elements that draw no numbers."""
    name, tags = op._schema.name, op.tags
    if torch.Tag.nondeterministic_seeded in tags or op._schema.is_mutable:
        return False
    is_sized = name.removeprefix("aten::") in SIZED
    return torch.Tag.pointwise in tags or name in ELEMENTWISE or is_sized


def refuses(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where eager raises for operands of these element types.

    Args:
        op: of those that are not known (:func:`is_known`), it is false.
        args: tensors, which may be fake, or the nodes of a graph that stand for them; and numbers.
        kwargs: likewise.
    """
    if not is_known(op):
        return False
    sized = op._schema.name.removeprefix("aten::") in SIZED
    return isinstance(_asked(op, args, kwargs, sized=sized), Exception)


def refused(
    function: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """Return the error that eager raises for a call with operands of these element types.

    Args:
        function: of torch or its operators, or the name of a method.
        args: as :func:`refuses` takes them.
        kwargs: likewise; with ``out``, a call writes there.
    """
    answer = _answer_to(function, args, kwargs)
    # The one that is kept gathers no frames.
    return type(answer)(*answer.args) if isinstance(answer, Exception) else None


def of_other_dtype(
    function: Callable[..., Any] | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    value: Any,
) -> Any:
    """Return the result of a call; an error where a trace takes it for another dtype than it has.

    Args:
        function: as :func:`refused` takes it.
        args: likewise.
        kwargs: likewise.
        value: what the trace has as its result.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name in READS:
        return value
    plain = _op_name(name)
    if not (plain in SIZED or _is_elementwise(plain)):  # of others errors alone are asked
        return value
    answer = _answer_to(function, args, kwargs)
    if not isinstance(answer, tuple) or (traced := _dtypes(value)) == answer:
        return value
    return IrcError(
        "op-unsupported",
        f"'{name}' gives {', '.join(map(str, answer))} for these operands, and torch's traces take"
        f" it to give {', '.join(map(str, traced))}",
    )


def _answer_to(
    function: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Answer | None:
    """Return what eager gives for a call of torch; None where it cannot be asked."""
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name in READS:  # most calls of a trace, torch's own
        return None
    plain = _op_name(name)
    call = _method(name) if isinstance(function, str) else function
    writes = "out" in kwargs or plain != name
    is_elementwise = _is_elementwise(plain) if writes else _is_always_elementwise(plain)
    if is_elementwise or plain in SIZED:
        return _asked(call, args, kwargs, sized=plain in SIZED)
    if name.startswith("__") or not _is_torchs(function):
        return None
    if kwargs.get("out") is not None:
        return _answer_with_out(call, args, kwargs)
    answer = _asked(call, args, kwargs, sized=True)
    # No kernel for these element types: all else may come of what the stand-ins hold.
    is_of_dtypes = isinstance(answer, Exception) and any(word in f"{answer}" for word in OF_DTYPES)
    return answer if is_of_dtypes or isinstance(answer, NotImplementedError) else None


def _answer_with_out(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Answer | None:
    """Return what eager gives where a call writes to ``out``; None where ``out`` is not the cause.

    Kernels refuse the element types of ``out`` each in words of its own; and they may refuse what
    the stand-ins hold. What is refused with ``out`` and answered without it is refused for it.
    """
    answer = _asked(call, args, kwargs, sized=True, usual=True)
    if not isinstance(answer, Exception):
        return answer
    others = {name: value for name, value in kwargs.items() if name != "out"}
    is_of_out = isinstance(_asked(call, args, others, sized=True, usual=True), tuple)
    return answer if is_of_out else None


OF_DTYPES = ("dtype", "scalar type", "can't be cast")
"""What errors say that come of element types, whatever the numbers are."""


def _is_torchs(function: Callable[..., Any] | str) -> bool:
    """True for a function of tensors that torch itself has: to run it does nothing else."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace == "aten"
    return (getattr(function, "__module__", None) or "torch") in HOMES


HOMES = ("torch", "builtins", "torch._C._nn", "torch._tensor", "torch.functional",
         "torch.nn.functional")  # fmt: skip
"""Modules of torch with functions of tensors."""


def _op_name(name: str) -> str:
    """Return the name of an op that writes nothing: add for add_, __iadd__ and operator.iadd."""
    if name in IN_PLACE:
        name = name.strip("_")
    if name in OPERATORS:
        return SPELT.get(name[1:], name[1:])
    return name.removesuffix("_")


_PACKET: Any = torch._ops.OpOverloadPacket
"""Of type Any: what its ops return would be unknown else."""


@cache
def _is_elementwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or not isinstance(packet, _PACKET):
        return False
    return any(is_known(getattr(packet, overload)) for overload in packet.overloads())


@cache
def _is_always_elementwise(name: str) -> bool:
    """True for a function of elements whatever its arguments; ``max`` is one of two tensors."""
    if not _is_elementwise(name):
        return False
    packet = getattr(torch.ops.aten, name)
    ops = [getattr(packet, overload) for overload in packet.overloads()]
    # ``torch.Tag.out`` says the same, from torch 2.13 on.
    return all(is_known(op) or any(each.is_out for each in op._schema.arguments) for op in ops)


@cache
def _method(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return call


def as_eager_takes(
    op: torch._ops.OpOverload, decomposition: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a decomposition that leaves to the op what eager refuses."""

    @wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if refuses(op, args, kwargs) else decomposition(*args, **kwargs)

    return decompose


def _asked(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    sized: bool,
    usual: bool = False,
) -> Answer | None:
    if sized and not usual and _is_usual(args, kwargs):
        return None
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    kinds = tuple(_kind(leaf, sized) for leaf in leaves)
    if None in kinds or (sized and not _is_small(kinds)):
        return None
    casts = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return _answer(call, kinds, spec, (casts, torch.get_default_dtype()))


def _is_small(kinds: Sequence[tuple[Any, ...] | None]) -> bool:
    """True where what the tensors may be broadcast to has few elements."""
    shapes = [kind[2] for kind in kinds if kind and kind[0] is torch.Tensor]
    dims = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return prod(map(max, dims)) <= LARGEST


def _is_usual(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where all tensors are of one dtype that is a float, whose kernels there are.

    Integers beside it are indices, mostly.
    """
    dtypes = set(_operand_dtypes((*args, *kwargs.values())))
    floats = {dtype for dtype in dtypes if dtype.is_floating_point}
    return not dtypes or (len(floats) == 1 and not any(dtype.is_complex for dtype in dtypes))


def _operand_dtypes(values: Iterable[Any]) -> Iterator[torch.dtype]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _operand_dtypes(cast("Sequence[Any]", value))
        elif isinstance(value, dict):
            yield from _operand_dtypes(cast("dict[Any, Any]", value).values())
        elif isinstance(known := _value(value), torch.Tensor):
            yield known.dtype


def _value(leaf: Any) -> Any:
    """Return what a node of a graph stands for; all else is itself."""
    if isinstance(leaf, Node):
        return leaf.meta.get("val", leaf.meta.get("example_value"))
    return leaf


def _kind(leaf: Any, sized: bool) -> tuple[Any, ...] | None:
    """Return what eager's answer depends on; None where it cannot be asked."""
    value = _value(leaf)
    if isinstance(value, torch.Tensor):
        is_here = value.device.type in ("cpu", "meta") and value.layout is torch.strided
        # Tensors with dims outrank those without: only whether there are some matters.
        shape: tuple[Any, ...] = (
            tuple(map(hint_of, value.shape)) if sized else (1,) * min(value.ndim, 1)
        )
        is_here = is_here and all(type(size) is int for size in shape) and prod(shape) <= LARGEST
        return (torch.Tensor, value.dtype, shape) if is_here else None
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value),)
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
        return (type(value), value)
    return None


LARGEST = 1 << 20
"""Elements of a stand-in: to ask must cost little, and a tensor on the meta device has no bound."""

STAND_INS = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}


@lru_cache(4096)
def _answer(
    call: Callable[..., Any], kinds: Sequence[tuple[Any, ...]], spec: Any, _set: Any
) -> Answer | None:
    with (
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),  # of transforms of functions
        torch._C._DisablePythonDispatcher(),  # it has other kernels, of torch's references
        torch.no_grad(),
        torch.random.fork_rng(devices=()),  # pyright: ignore[reportUnknownMemberType]
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            leaves = [_stand_in(*kind) for kind in kinds]
        except NotImplementedError:  # not even ones are there in the dtype
            return None
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        try:
            return _dtypes(call(*args, **kwargs))
        except Exception as error:
            return error.with_traceback(None)


def _dtypes(value: Any) -> tuple[torch.dtype, ...]:
    return tuple(x.dtype for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor))


def _stand_in(kind: type, value: Any = None, shape: Sequence[int] = ()) -> Any:
    if kind is torch.Tensor:
        return torch.ones(shape, dtype=value)
    return STAND_INS.get(kind, value)
