"""What a model asks of gradients while it is traced: a trace is made without them.

A parameter, an input and a buffer say truly whether they are trained, until they are written to; of
what is computed a trace does not know whether eager would record it, and a branch by that would be
the wrong one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.detached_writes import DETACH_IN_PLACE
from irc.frontends.torch.locations import LIBRARIES, PACKAGE
from irc.frontends.torch.own_backward import is_differentiated

_TENSOR: Any = torch.Tensor
NAMES = {getattr(_TENSOR, name).__get__: name for name in ("requires_grad", "is_leaf", "grad_fn")}


class GradReads:
    """Answers what a call of a module asks of the gradients of tensors, or refuses to."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[torch.Tensor, int]] = {}

    @contextmanager
    def of_call(self, module: torch.nn.Module, args: object) -> Generator[None]:
        """Know the tensors that a module is given, and those it holds, while it is called."""
        if not is_differentiated():
            yield
            return
        held = [value for layer in module.modules() for value in vars(layer).values()]
        tensors = [*pytree.tree_leaves(args), *module.buffers(), *held]
        before, self._given = (
            self._given,
            {id(x): (x, x._version) for x in tensors if isinstance(x, torch.Tensor)},
        )
        try:
            yield
        finally:
            self._given = before

    def is_given(self, x: Any) -> bool:
        """True for a tensor that is not of the call's making, and has not been written to."""
        if isinstance(x, torch.nn.Parameter):
            return True
        same, version = self._given.get(id(x), (None, 0))
        return same is x and x._version == version

    def refuse(self, func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]) -> None:
        """Refuse to read of a computed tensor whether it has a gradient, in what is trained.

        Code of libraries may: it asks to take a faster way of the same values.

        Raises:
            IrcError: ``capture-failed``.
        """
        if func not in NAMES or not is_differentiated():
            return
        tensor: Any = args[0]
        with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage]
            if tensor.requires_grad or self.is_given(tensor):
                return
            if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                return
        if not _asked_by_library():
            raise _refusal(NAMES[func])

    def detached_in_place(
        self, func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """Return what ``x.detach_()`` gives of a tensor that has no gradient: that, as it is."""
        if func not in DETACH_IN_PLACE or isinstance(args[0], torch.nn.Parameter):
            return None
        is_known = is_differentiated() and self.is_given(args[0])
        return args[0] if is_known and not args[0].requires_grad else None


def _asked_by_library() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back  # of this mode, and of those of torch inside it
    file = frame.f_code.co_filename
    return file.startswith(PACKAGE) or any(part in file for part in LIBRARIES)


def _refusal(name: str) -> IrcError:
    return IrcError(
        "capture-failed",
        f"the {name} of a tensor is read in what is trained",
        because="a trace is made without gradients, and the answer would not be that of eager",
        help="decide by module.training, or by the requires_grad of a parameter or an input",
    )
