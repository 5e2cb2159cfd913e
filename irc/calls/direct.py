"""The short way through a compiled version: one function that is written for it.

A call of a small model costs more in the interpreter than in its kernels. So for a version whose
arguments are the plan's inputs, and whose plan is one run of kernels, the whole call (guards,
memory, kernels, results) is one generated function without loops or further Python calls::

    def run(args):
        if len(args) != 1 or is_grad() is not False or not holds():
            return MISS
        x0, = args
        if not (matches(x0) or accepts(args)):
            return MISS
        try:
            lease = leases.pop()
        except IndexError:
            lease = new_lease()
        y0 = empty(shape0, strides0, dtype0)
        try:
            lease.entry.run(x0.data_ptr(), y0.data_ptr())
        except SystemError:
            raise refusal(lease, (x0,)) from None
        leases.append(lease)
        return y0

``matches`` is one native check that the arguments are as those of an earlier call, ``accepts`` the
full one. An entry refuses an argument without an address (a storage that was resized to nothing),
which no check looks at, and an index outside its tensor, which kernels see. Nothing of the user's
is part of the text: names stand for objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._C._dynamo.guards import (  # torch's stub leaves it out
    _empty_strided_cpu,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

from irc.frontends.torch.quick import Quick, alike
from irc.frontends.torch.result_memory import View
from irc.runtime.executor import Executor

Direct: TypeAlias = Callable[[Sequence[Any]], Any]

MISS: Any = object()
"""What :data:`Direct` returns for a call that it is not for."""


def direct(
    quick: Quick,
    executor: Executor,
    *,
    is_single: bool,
    views: Sequence[View | None] = (),
) -> Direct | None:
    """Return the function, None where a call takes more than kernels.

    Args:
        quick: the guards.
        executor: of a plan whose inputs are the arguments and whose outputs the results.
        is_single: the module returns one tensor, not a tuple.
        views: of the results, those whose dims lie in another order: all of the memory.
    """
    if executor.show is not None or not executor.is_kernels_alone():
        return None
    takes, makes = range(quick.count), range(len(executor.made))
    names: dict[str, Any] = {
        "MISS": MISS,
        "empty": _empty_strided_cpu,
        "leases": executor.leases,
        "holds": quick.holds,
        "is_grad": torch.is_grad_enabled,
        "is_stale": executor.is_stale,
        "matches": _never,
        "new_lease": executor.new_lease,
        "refusal": executor.refusal,
    }
    names["accepts"] = _Learning(quick, names)
    for i, (shape, strides, dtype) in enumerate(executor.made):
        if views and (view := views[i]) is not None:
            shape, strides = view.shape, view.strides
        names |= {f"shape{i}": shape, f"strides{i}": strides, f"dtype{i}": dtype}
    allocations = "".join(f"    y{i} = empty(shape{i}, strides{i}, dtype{i})\n" for i in makes)
    pointers = ", ".join(f"{v}.data_ptr()" for v in _names("x", takes) + _names("y", makes))
    results = _tuple("y", makes)
    text = _TEXT.format(
        count=quick.count,
        grad="" if quick.grad is None else f" or is_grad() is not {quick.grad}",
        state=" or not holds()" if quick.holds else "",
        stale=" or is_stale()" if executor.is_stale else "",
        inputs=f"    {_tuple('x', takes)} = args\n" if takes else "",
        arguments=", ".join(_names("x", takes)),
        tensors=_tuple("x", takes),
        allocations=allocations,
        pointers=pointers,
        results="y0" if is_single else results,
    )
    exec(compile(text, "<irc direct call>", "exec"), names)
    return names["run"]


def handing(
    torchs: Callable[..., Any], args: Sequence[Any], held: Sequence[torch.Tensor] = ()
) -> Direct | None:
    """Return the short way of calls that torch runs: a check that they are like one, no more.

    Eager mode sees for itself what a module holds; but not all its kernels look whether a tensor
    has memory.

    Args:
        torchs: runs them.
        args: of one of them.
        held: tensors that are read besides.
    """
    if not all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in args):
        return None
    if not have_memory((*args, *held)):
        return None
    matches: Callable[..., bool] = alike(args) if args else _always
    count = len(args)
    is_grad, records = torch.is_grad_enabled, torch.is_grad_enabled()

    def run(args: Sequence[Any]) -> Any:
        if len(args) != count or is_grad() is not records or not matches(*args):
            return MISS
        return torchs(*args) if all(map(_ADDRESS, (*args, *held))) else MISS

    return run


def _never(*_: Any) -> bool:
    return False


def _always(*_: Any) -> bool:
    return True


_ADDRESS = torch.Tensor.data_ptr


def have_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors have elements that lie somewhere."""
    try:
        return all(map(_ADDRESS, tensors))
    except RuntimeError:  # sparse ones, and those of a transform, have no address
        return False


Launch: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def launch(executor: Executor) -> Launch:
    """Return what runs an executor for a caller with guards of its own, the short way if it can.

    Args:
        executor: of one device.
    """

    def whole(args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return executor(*[each.detach() for each in args])

    quick = Quick(len(executor.takes), None, _fitting(executor), None)
    short = direct(quick, executor, is_single=False)
    if short is None:
        return whole

    def run(args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = short(args)
        return whole(args) if results is MISS else results

    return run


def _fitting(executor: Executor) -> Callable[[Sequence[Any]], bool]:
    """Return a check that tensors may be read by their addresses, as the plan's inputs."""

    def fits(args: Sequence[Any]) -> bool:
        return all(
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.shape == shape
            and tensor.dtype is dtype
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not (tensor.is_neg() or tensor.is_conj())
            for tensor, (shape, dtype) in zip(args, executor.takes, strict=True)
        )

    return fits


class _Learning:
    """The slower check of the arguments; what it accepts is what the fast one looks for then."""

    def __init__(self, quick: Quick, names: dict[str, Any]) -> None:
        self._accepts = quick.accepts
        self._names = names
        self._left = MAX_KINDS

    def __call__(self, args: Sequence[Any]) -> bool:
        if not self._accepts(args):
            return False
        if self._left and args:
            self._left -= 1
            self._names["matches"] = alike(args)
        return True


MAX_KINDS = 4
"""So often the fast check is made anew: callers that mix kinds of tensors gain nothing by it."""

_TEXT = """
def run(args):
    if len(args) != {count}{grad}{state}{stale}:
        return MISS
{inputs}    if not (matches({arguments}) or accepts(args)):
        return MISS
    try:
        lease = leases.pop()
    except IndexError:
        lease = new_lease()
{allocations}    try:
        lease.entry.run({pointers})
    except SystemError:
        raise refusal(lease, {tensors}) from None
    leases.append(lease)
    return {results}
"""


def _names(letter: str, numbers: range) -> list[str]:
    return [f"{letter}{i}" for i in numbers]


def _tuple(letter: str, numbers: range) -> str:
    return f"({''.join(f'{name}, ' for name in _names(letter, numbers))})"
