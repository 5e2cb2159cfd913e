"""Modules of ``torch.jit``: torch has compiled them already, and runs them."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from irc.calls.left import LeftToTorchWarning, as_warning
from irc.errors import IrcError
from irc.pipeline import Options

WHY = "torch.jit has compiled it already, to code that no trace looks into"
HELP = "give irc.compile the module that it was scripted or traced from"


def is_scripted(target: object) -> bool:
    """Return whether something is a scripted or traced module, or a class of such."""
    scripted: Any = torch.jit.ScriptModule
    return issubclass(target if isinstance(target, type) else type(target), scripted)


def as_it_is(target: Any, options: Options) -> Any:
    """Return a scripted or traced module as it is, with a warning that irc compiles none of it.

    Raises:
        IrcError: ``op-unsupported`` with ``fullgraph`` or ``strict``, on a mesh and on a GPU, where
            a program is irc's as a whole.
    """
    name = target.__name__ if isinstance(target, type) else getattr(target, "original_name", "")
    what = f"'{name or type(target).__name__}', a module of torch.jit"
    if options.fullgraph or options.mesh.num_ranks > 1 or options.backend != "cpu":
        raise IrcError("op-unsupported", f"irc does not compile {what}", because=WHY, help=HELP)
    text = as_warning(
        "left-to-torch", f"torch runs {what}, which irc.compile gives back", "", WHY, HELP
    )
    warnings.warn(text, LeftToTorchWarning, stacklevel=4)
    return target
