"""Calls of one kind that go straight to torch, and by torch's compiler again now and then.

What such calls do may change where their arguments do not: a module's own attributes, how torch's
compiler is set. A call in many looks whether there is something to compile by now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import call, is_
from typing import Any
from weakref import ref

import torch
from torch import nn

from irc.calls.direct import MISS, Direct, handing
from irc.calls.trial import has_saved_hooks

FIRST_LOOK, APART = 64, 4
"""After how many calls there is a look, and how many times as many lie between it and the next."""

LOOK: Any = object()
"""What :class:`Handed` returns for a call that is to look: torch's compiler runs it."""


class Parts:
    """The modules of a tree and the tensors that they hold; it keeps none of them in memory.

    Args:
        original: the root, or a function, which has no parts.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original if isinstance(original, nn.Module) else None
        self._modules: tuple[Callable[[], Any], ...] = ()
        self._tensors: tuple[Callable[[], Any], ...] = ()
        self.renew()

    def renew(self) -> bool:
        """Look at the tree anew; return whether it has other modules now."""
        root, before = self._original, self._modules
        if root is None:
            return False
        self._modules = tuple(map(ref, root.modules()))
        tensors = (*root.parameters(), *root.buffers())
        self._tensors = tuple([ref(each) for each in tensors if _lies_somewhere(each)])
        same = map(is_, map(call, before), map(call, self._modules))
        return len(before) != len(self._modules) or not all(same)

    def modes(self) -> tuple[bool, ...] | None:
        """Return which modules are in training mode; None where one is gone."""
        try:
            return tuple([module().training for module in self._modules])
        except AttributeError:
            return None

    def admit(self, modes: list[bool]) -> bool | None:
        """Return whether modules are in these modes, and tensors lie somewhere; None: one is gone.

        Each call asks. Most often modes are set from the root on: one that differs there is enough.
        """
        if self._original is not None and self._original.training is not modes[0]:
            return False
        try:
            if [module().training for module in self._modules] != modes:
                return False
            return 0 not in [tensor().data_ptr() for tensor in self._tensors]
        except (AttributeError, RuntimeError):  # of None; of one that another was swapped with
            return None


def _lies_somewhere(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements and one address: sparse and lazy ones have none."""
    try:
        tensor.data_ptr()
        return bool(tensor.numel())
    except (RuntimeError, ValueError):
        return False


class Handed:
    """The short way of one kind of calls.

    Args:
        torchs: runs them.
        args: of one of them.
        parts: of what is called.
        modes: that the parts are in.

    Attributes:
        direct: runs a call; ``MISS`` where it is of another kind, ``LOOK`` where it is of this one
            and is to look. None where such calls go the whole way.
    """

    def __init__(
        self,
        torchs: Callable[..., Any],
        args: Sequence[Any],
        parts: Parts,
        modes: Sequence[bool],
    ) -> None:
        self._torchs, self._parts, self._modes = torchs, parts, [*modes]
        self._left = self._pause = FIRST_LOOK
        # Arguments first: only a call that has them is asked more, and counted.
        self.direct: Direct | None = handing(self._run, args) if self._admits() else None
        self._asked = handing(self._admits, args)

    def _admits(self, *_: Any) -> bool | None:
        return self._parts.admit(self._modes)

    def _run(self, *args: Any) -> Any:
        admits = self._parts.admit(self._modes)
        if not admits:
            return MISS if admits is False else LOOK
        self._left -= 1
        # What a checkpoint computes anew is to go the way that it went.
        if self._left > 0 or has_saved_hooks():
            return self._torchs(*args)
        self._left = self._pause  # a look that comes to nothing is made up for
        return LOOK

    def is_for(self, args: Sequence[Any]) -> bool:
        """Return whether a call is of this kind; it is not counted."""
        return self._asked is not None and self._asked(args) is True

    def stay(self) -> None:
        """Note that a look has shown nothing new: the next one comes later."""
        self._pause *= APART
        self._left = self._pause


def compiles() -> bool:
    """Return whether torch's compiler is set to compile: a call says little where it is not."""
    dynamo: Any = torch._dynamo  # pyright: ignore[reportPrivateUsage]
    return dynamo.eval_frame._stance.stance == "default" and not dynamo.config.disable
