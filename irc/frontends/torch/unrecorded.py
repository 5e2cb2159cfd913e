"""What a model detaches, or computes under ``torch.no_grad()``, is detached in its trace.

A trace is made without gradients, so that what the model itself turns off leaves nothing in it. A
step of training would then train what eager leaves alone. Here the results of torch's functions are
detached while the model's own code has gradients off. Traces that are made functional have further
detaches, of torch's own, which mean nothing: those of the model are noted before, by an op
(:mod:`irc.frontends.torch.detached_writes`).
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.detached_writes import is_inexact, kept_before, write_again
from irc.frontends.torch.locations import LAYERS
from irc.frontends.torch.own_backward import is_differentiated

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


class _Switch(NamedTuple):
    """Gradients are on or off until a block ends, or until the next switch that is called."""

    is_on: bool
    block: Any
    """The context that is entered; None for one that was called as a function."""


class _Detaching(TorchFunctionMode):
    """Detaches the results of functions while the innermost switch is off.

    Attributes:
        switches: those that hold, outermost first.
        called: the ``set_grad_enabled`` that the model has made last, and the switches before: it
            acts as it is made, and is another one where it is entered then, or decorates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.switches: tuple[_Switch, ...] = ()
        self.called: tuple[Any, tuple[_Switch, ...]] = (None, ())
        self._depth = 0

    @property
    def is_on(self) -> bool:
        """Whether gradients are on."""
        return not self.switches or self.switches[-1].is_on

    def switch(self, switches: tuple[_Switch, ...], *error: Any) -> None:
        """Let other switches hold.

        Raises:
            IrcError: ``capture-failed``, where another mode would have to be left before.
        """
        if self.switches and not switches and _num_modes() != self._depth:
            raise _switched("turns gradients on inside of another mode of torch's functions")
        before, self.switches = self.switches, switches
        if switches and not before:
            self.__enter__()
            self._depth = _num_modes()
        elif before and not switches:
            what = error or (None, None, None)
            self.__exit__(*what)  # pyright: ignore[reportUnknownMemberType]

    def call(self, switch: Any, *, is_on: bool) -> None:
        """Turn gradients on or off from here on."""
        before = kept = self.switches
        while kept and kept[-1].block is None:
            kept = kept[:-1]
        self.called = switch, before
        is_same = is_on is (not kept or kept[-1].is_on)
        self.switch(kept if is_same else (*kept, _Switch(is_on, None)))

    def take_back(self, switch: Any) -> None:
        """Undo a call that has turned out to make a context, or a decorator."""
        if self.called[0] is switch:
            self.switch(self.called[1])
            self.called = None, ()

    def enter(self, switch: Any, *, is_on: bool) -> None:
        """Turn gradients on or off for a block."""
        self.take_back(switch)
        self.switch((*self.switches, _Switch(is_on, switch)))

    def leave(self, switch: Any, *error: Any) -> None:
        """Leave a block, and what was called inside of it."""
        kept = self.switches
        while kept and kept[-1].block is not switch:
            kept = kept[:-1]
        self.switch(kept[:-1], *error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.is_on:
            return func(*args, **(kwargs or {}))
        kept = kept_before(func, args, kwargs or {})
        results = func(*args, **(kwargs or {}))
        for written, before in kept:
            write_again(written, before)
        argument_ids = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}

        def detached(leaf: Any) -> Any:
            # What a function wrote to and gives back stays the tensor that it was.
            is_new = isinstance(leaf, torch.Tensor) and id(leaf) not in argument_ids
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
                self._stack.enter_context(_noted(torch.set_grad_enabled))
                for module in [torch, *_others()]:
                    for name in [n for n, v in [*vars(module).items()] if v is _is_enabled]:
                        self._stack.enter_context(mock.patch.object(module, name, _is_grad_enabled))
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
def one_call() -> Generator[None]:
    """Refuse a call of a model that ends with gradients turned off, as it is traced.

    Raises:
        IrcError: ``capture-failed``.
    """
    mode = getattr(_HERE, "mode", None)
    try:
        yield
        if mode is not None and not mode.is_on:
            raise _switched("leaves gradients off for the backward pass, which eager refuses then")
    finally:
        if mode is not None:
            mode.switch(())


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
            mode.enter(self, is_on=bool(is_on) is not isinstance(self, torch.inference_mode))
            self.__dict__["_irc_entered"] = mode
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        mode = self.__dict__.pop("_irc_entered", None)
        if mode is not None:
            mode.leave(self, *error)
        return leave(self, *error)

    return mock.patch.multiple(switch, __enter__=entered, __exit__=left)


def _noted(switch: Any) -> Any:
    """Return what notes that a switch is made: it acts then, whether it is entered or not."""
    make, decorate = switch.__init__, switch.__call__

    def made(self: Any, mode: bool) -> None:
        here = getattr(_HERE, "mode", None)
        if here is not None and is_differentiated() and _is_of_model(sys._getframe(1)):
            self.prev, self.mode = _is_enabled(), mode  # the trace itself goes on as it is
            here.call(self, is_on=mode)
        else:
            make(self, mode)

    def used(self: Any, function: Any) -> Any:
        here = getattr(_HERE, "mode", None)
        if here is not None:
            here.take_back(self)
        return decorate(self, function)

    return mock.patch.multiple(switch, __init__=made, __call__=used)


_is_enabled = torch.is_grad_enabled


def _is_grad_enabled() -> bool:
    """Answer a model that is trained as eager does: a trace is made without gradients."""
    mode = getattr(_HERE, "mode", None)
    if mode is None or not is_differentiated() or not _is_of_model(sys._getframe(1)):
        return _is_enabled()
    return mode.is_on


def _others() -> list[ModuleType]:
    """Return the modules that are not torch's: their own names may stand for torch's functions."""
    entries: list[object] = list(sys.modules.values())
    modules = [entry for entry in entries if isinstance(entry, ModuleType)]
    return [m for m in modules if m.__name__.partition(".")[0] not in ("torch", "irc")]


def _num_modes() -> int:
    return torch._C._len_torch_function_stack()


def _switched(because: str) -> IrcError:
    return IrcError(
        "capture-failed",
        "torch.set_grad_enabled is called as a function in what is trained",
        because=f"it {because}",
        help="enter it for a block, with torch.set_grad_enabled(False):, or turn gradients on "
        "again in the same function",
    )


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
