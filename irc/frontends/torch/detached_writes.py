"""Writes that eager does not record: under ``torch.no_grad()``, or to what is detached.

Such a write changes numbers, and not the way of gradients: they go to what was there before, as if
it had not been written to. In a trace, what is read afterwards is computed from what was written.
So that is written once more, by an op whose gradient goes to what was there; and what is read of a
detached tensor is detached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from irc.errors import IrcError
from irc.frontends.torch.own_backward import is_differentiated
from irc.frontends.torch.real_writes import written_by_call
from irc.frontends.torch.written import gives_view, is_written, writes_to

_library: Any = torch.library
"""torch's way to add ops, whose types are unknown in part."""
_LIBRARY = _library.Library("irc_capture", "FRAGMENT")
_LIBRARY.define("detach(Tensor x) -> Tensor")
_LIBRARY.define("written(Tensor before, Tensor value) -> Tensor")


def _like(x: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty_strided(x.size(), x.stride())


for _name in ("detach", "written"):
    _library.register_fake(f"irc_capture::{_name}", _like, lib=_LIBRARY)


def _below_autograd(x: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage]
        return DETACHED(x)


def _below_vmap(_: object, dims: Sequence[Any], x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    return DETACHED(x), dims[0]


def _copy(_: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value.clone()


_LIBRARY.impl("detach", torch.clone, "CompositeExplicitAutograd")
_LIBRARY.impl("detach", _below_autograd, "Autograd")
_library.register_vmap("irc_capture::detach", _below_vmap, lib=_LIBRARY)
_LIBRARY.impl("written", _copy, "CompositeExplicitAutograd")

DETACHED: Any = torch.ops.irc_capture.detach.default
WRITTEN: Any = torch.ops.irc_capture.written.default
DETACH: Any = torch.ops.aten.detach.default
aten: Any = torch.ops.aten
DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]  # a descriptor of C
DETACH_IN_PLACE: Any = (torch.Tensor.detach_, torch.detach_)
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # likewise


def kept_before(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what a call without gradients writes to, each with what it holds before the call."""
    if not is_differentiated():
        return []
    return [(x, x.clone()) for x in written_by_call(func, args, kwargs) if is_inexact(x)]


def write_again(x: torch.Tensor, before: torch.Tensor) -> None:
    """Write what was written once more, with the gradient of what was there.

    What ``out=`` has resized was nothing before.
    """
    same = x.shape == before.shape and x.dtype is before.dtype
    x.copy_(WRITTEN(before, x.clone()) if same else x.detach().clone())


def data_as_detached(
    func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]
) -> torch.Tensor | None:
    """Return what reads ``x.data`` in a trace: torch gives a tensor there that no trace knows.

    It differs from ``x.detach()`` in that writes to it are not counted.
    """
    return args[0].detach() if func == DATA else None


def refuse_other_data(
    func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]
) -> IrcError | None:
    """Return the error for ``x.data = y`` in a trace, which does not have it."""
    if func != _SET_DATA:
        return None
    return IrcError(
        "capture-failed",
        "the .data of a tensor is set",
        because="the tensor is another one then, and what was made of it before is not",
        help="write to it, x.copy_(y), below torch.no_grad() if gradients are to stay as they are",
    )


def refuse_detach_in_place(
    func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]
) -> IrcError | None:
    """Return the error for ``x.detach_()`` in a trace of what is trained, which does not follow."""
    if func not in DETACH_IN_PLACE or not is_differentiated() or not is_inexact(args[0]):
        return None
    return IrcError(
        "capture-failed",
        "a tensor is detached in place in what is trained",
        because="what is read of it from there on has no gradient, and what was read before has",
        help="write x = x.detach()",
    )


def is_inexact(x: torch.Tensor) -> bool:
    """True for a tensor of numbers that have gradients."""
    return x.dtype.is_floating_point or x.dtype.is_complex


def keep_detached(module: GraphModule) -> None:
    """Note the detached values of a trace, which may be written to."""
    for child in module.modules():
        if not isinstance(child, GraphModule):
            continue
        apart: set[Node] = set()
        for node in list(child.graph.nodes):
            if node.op != "call_function" or node.target is not DETACH or node in apart:
                continue
            if not is_written(node):
                node.target = DETACHED
            elif is_differentiated() and is_inexact(node.meta["val"]):
                _set_apart(node, apart)


def _set_apart(node: Node, apart: set[Node]) -> None:
    """Detach what is read of a tensor, or of its views, and write once more what is written.

    Views, and what is detached of what is detached, join those that are set apart.
    """
    apart.add(node)
    for user in list(node.users):
        written = writes_to(user, node)
        if written:
            _write_again_behind(user, node)
        if gives_view(user, node):
            _set_apart(user, apart)
        elif not written and user.op != "output":
            with node.graph.inserting_before(user):
                user.replace_input_with(node, _called(DETACHED, node))


def _write_again_behind(write: Node, node: Node) -> None:
    graph = node.graph
    with graph.inserting_before(write):
        before = _called(aten.clone.default, node)
    with graph.inserting_before(write.next):
        value = _called(aten.clone.default, node)
        again = _called(WRITTEN, before, value)
        _called(aten.copy_.default, node, again)


def _called(op: Any, node: Node, *more: Node) -> Node:
    """Return the node of a call, with fake values like that of its first operand."""
    call = node.graph.call_function(op, (node, *more))
    call.meta = dict(node.meta)
    return call
