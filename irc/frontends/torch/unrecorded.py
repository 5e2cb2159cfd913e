"""What a model detaches, or computes under ``torch.no_grad()``, is detached in its trace.

A trace is made without gradients, so that what the model itself turns off leaves nothing in it. A
step of training would then train what eager leaves alone. Here the results of torch's functions are
detached while the model's own code has gradients off. Traces that are made functional have further
detaches, of torch's own, which mean nothing: those of the model are noted before, by an op
(:mod:`irc.frontends.torch.detached_writes`).
"""

# pyright: basic
from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from irc.frontends.torch.detached_writes import is_inexact, kept_before, write_again
from irc.frontends.torch.locations import LAYERS

TORCH = str(Path(torch.__file__).parent)
OWN = str(Path(__file__).parents[2])
DECORATED = str(Path(TORCH, "utils", "_contextlib.py"))
"""Where ``@torch.no_grad()`` enters for the function below it."""

SWITCHES: tuple[tuple[Any, bool | None], ...] = (
    (torch.no_grad, False),
    (torch.enable_grad, True),
    (torch.set_grad_enabled, None),
    (torch.inference_mode, None),
)
"""Contexts that turn gradients on or off; None: by what they are given, as ``mode``."""


class _Detaching(TorchFunctionMode):
    """Detaches the results of functions while the innermost switch is off."""

    def __init__(self) -> None:
        super().__init__()
        self.switches: list[bool] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self.switches or self.switches[-1]:
            return func(*args, **(kwargs or {}))
        kept = kept_before(func, args, kwargs or {})
        results = func(*args, **(kwargs or {}))
        for written, before in kept:
            write_again(written, before)
        given = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}

        def detached(leaf: Any) -> Any:
            # What a function wrote to and gives back stays the tensor that it was.
            is_new = isinstance(leaf, torch.Tensor) and id(leaf) not in given
            return leaf.detach() if is_new and is_inexact(leaf) else leaf

        return pytree.tree_map(detached, results)


_LOCK = threading.Lock()
_HERE = threading.local()
"""``mode``: of the trace that runs in a thread."""


class _Patches:
    """The switches of torch, patched from the first of some traces until the last one ends."""

    def __init__(self) -> None:
        self._traces, self._stack = 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with _LOCK:
            if not self._traces:
                for each in SWITCHES:
                    self._stack.enter_context(_patched(*each))
            self._traces += 1

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            self._traces -= 1
            if not self._traces:
                self._stack.close()


_PATCHES = _Patches()


@contextlib.contextmanager
def unrecorded() -> Generator[None]:
    """While a model is traced, detach what its own code computes with gradients off."""
    before, _HERE.mode = getattr(_HERE, "mode", None), _Detaching()
    try:
        with _PATCHES:
            yield
    finally:
        _HERE.mode = before


@contextlib.contextmanager
def as_it_is() -> Generator[None]:
    """Inside of a trace, run code with gradients on and off as in eager."""
    before, _HERE.mode = getattr(_HERE, "mode", None), None
    try:
        yield
    finally:
        _HERE.mode = before


def _patched(switch: Any, state: bool | None) -> Any:
    """Return what lets a switch tell the trace of this thread, if there is one."""
    enter, leave = switch.__enter__, switch.__exit__

    def entered(self: Any) -> Any:
        mode = getattr(_HERE, "mode", None)
        if mode is not None and _is_of_model(sys._getframe(1)):
            is_on = self.mode if state is None else state
            mode.switches.append(not is_on if isinstance(self, torch.inference_mode) else is_on)
            if len(mode.switches) == 1:
                mode.__enter__()
            self.__dict__["_irc_entered"] = mode
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        mode = self.__dict__.pop("_irc_entered", None)
        if mode is not None:
            mode.switches.pop()
            if not mode.switches:
                mode.__exit__(*error)
        return leave(self, *error)

    return mock.patch.multiple(switch, __enter__=entered, __exit__=left)


def _is_of_model(frame: FrameType | None) -> bool:
    """True where code that is neither torch's nor irc's enters a switch, or decorates by it."""
    while frame is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back  # a stack of contexts, whoever has made it
    if frame is not None and frame.f_code.co_filename == DECORATED:
        function = frame.f_locals.get("func")
        code = getattr(function, "__code__", None)
        return code is not None and _is_of_layers(code.co_filename)
    return frame is not None and _is_of_layers(frame.f_code.co_filename)


def _is_of_layers(file: str) -> bool:
    return file.startswith(LAYERS) or not file.startswith((TORCH, OWN))
