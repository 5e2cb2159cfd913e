"""A module and a loss function as one module that gives the loss, with the module's own names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from irc.errors import IrcError
from irc.frontends.torch.examples import bound

Loss = Callable[..., Any]


def num_targets(loss: Loss) -> int:
    """Return how many arguments a loss takes beside the module's output: those without default.

    >>> num_targets(nn.CrossEntropyLoss()), num_targets(lambda output: output.sum())
    (1, 0)

    Raises:
        IrcError: ``input-mismatch`` where it takes any number.
    """
    return len(_target_names(loss))


def _target_names(loss: Loss) -> list[str]:
    called = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return ["target"]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise IrcError(
            "input-mismatch",
            "the loss takes any number of arguments, so that no batch can be told apart",
            help="give a function of fixed arguments: lambda output, target: ...",
        )
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    if not needed:
        raise IrcError(
            "input-mismatch",
            "the loss takes no argument, so it cannot depend on what the module gives",
            help="give a function of the module's output: lambda output, target: ...",
        )
    return needed[1:]


def with_loss(
    module: nn.Module, loss: Loss, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> nn.Module:
    """Return a second face of a module: its forward gives ``loss(output, *targets)``.

    Parameters, buffers and their names are the module's own. The last arguments of a call are the
    targets, as many as the loss needs.

    Args:
        module: what is trained.
        loss: takes the module's output and the targets.
        args: example arguments, targets last; they say what the module's arguments are called.
        kwargs: example keyword arguments, all of which are the module's.

    Raises:
        IrcError: ``input-mismatch``.
    """
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise IrcError(
            "input-mismatch",
            f"the loss {type(loss).__name__} has parameters of its own, which would not be trained",
            help="make it a part of the module, whose forward then returns the loss",
        )
    targets = _target_names(loss)
    count = len(args) - len(targets)
    if count < 0:
        raise IrcError(
            "input-mismatch",
            f"the loss takes {len(targets)} targets and the batch has {len(args)} tensors",
        )
    cls = type(module)

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        return loss(cls.forward(self, *arguments[:count], **named), *arguments[count:])

    forward.__signature__ = _signature(module, args[:count], kwargs, targets)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    face = object.__new__(type(cls.__name__, (cls,), {**names, "forward": forward}))
    object.__setattr__(face, "__dict__", module.__dict__)
    return face


def _signature(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[str]
) -> inspect.Signature:
    """Name the arguments: as the module's forward and the loss do, each name once."""
    bound_arguments = bound(module.forward, args, kwargs)
    kinds = bound_arguments.signature.parameters
    names: list[str] = []
    for name, value in bound_arguments.arguments.items():
        if kinds[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}_{i}" for i in range(len(value))]
        elif name not in kwargs and kinds[name].kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(name)
    for name in targets:
        while name in (*names, *kwargs, "self"):
            name = f"{name}_"
        names.append(name)
    plain, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([
        inspect.Parameter("self", plain),
        *(inspect.Parameter(name, plain) for name in names),
        *(inspect.Parameter(name, only) for name in kwargs),
    ])  # fmt: skip
