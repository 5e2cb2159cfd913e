"""Example arguments, held against a module's signature before anything is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.kinds import acts_by_itself, peculiar_argument
from irc.runtime.absent import AbsentParameter, absent_error


class ArgumentsError(IrcError, TypeError):
    """A module is called with arguments that it does not take, in eager mode a TypeError."""


def positional(args: Any) -> tuple[Any, ...]:
    """Return positional arguments as a tuple; a tensor by itself is one argument, not its rows.

    >>> [x.shape for x in positional(torch.zeros(2, 8))]
    [torch.Size([2, 8])]

    Raises:
        IrcError: ``option-value`` for what is no sequence.
    """
    if isinstance(args, torch.Tensor):
        return (args,)
    if isinstance(args, Sequence) and not isinstance(args, str):
        return tuple(cast("Sequence[Any]", args))
    raise IrcError(
        "option-value",
        f"the example arguments are of type {type(args).__name__}",
        help="give a tuple of tensors, and named ones as a dict: (x,), {'mask': mask}",
    )


def bound(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return arguments by the names that a module's forward gives them.

    Raises:
        ArgumentsError: ``input-mismatch`` where it takes others.
    """
    signature = inspect.signature(forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = ", ".join(map(str, signature.parameters.values())) or "none"
        raise ArgumentsError(
            "input-mismatch",
            f"the module does not take these arguments: {error}",
            because=f"it takes: {taken}",
            help="give those; targets of a loss come after them, where the loss is named:"
            " loss=FUNCTION, or --loss NAME:FUNCTION",
        ) from None


def check_leaves(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that torch.export cannot trace, or traces wrongly.

    Args:
        names: of the leaves.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        IrcError: ``capture-failed``.
    """
    for name, leaf in zip(names, pytree.tree_leaves((tuple(args), kwargs)), strict=True):
        what = "a module" if isinstance(leaf, nn.Module) else peculiar_argument(leaf)
        if what is not None:
            raise IrcError(
                "capture-failed",
                f"the argument '{name}' is {what}",
                help="take dense tensors, numbers, and lists, tuples, dicts or dataclasses of them",
            )


def check_held(names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse a module that holds tensors which do more than their numbers say.

    Args:
        names: of parameters and buffers.
        values: what they are.

    Raises:
        IrcError: ``capture-failed``; ``weights-apart`` for parameters that are elsewhere.
    """
    for name, value in zip(names, values, strict=True):
        if isinstance(value, AbsentParameter):
            raise absent_error(value)
        if isinstance(value, torch.Tensor) and acts_by_itself(type(value)):
            raise IrcError(
                "capture-failed",
                f"'{name}' is a tensor of class {type(value).__name__}",
                because="its class says what torch's functions do",
            )


def check_devices(args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> None:
    """Refuse tensors on another device than a program is compiled for.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        device: the kind of device.

    Raises:
        IrcError: ``capture-failed``.
    """
    for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != device:
            raise IrcError(
                "capture-failed",
                f"an argument lies on {leaf.device}, and the program is for {device}",
                help=f"move it: tensor.to('{device}')",
            )
