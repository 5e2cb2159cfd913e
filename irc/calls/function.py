"""Compiled functions: objects that are called, bound, stored and copied as functions are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

from irc.calls.compiled import shown
from irc.calls.dispatcher import Dispatcher
from irc.calls.tracing import is_traced
from irc.pipeline import Options


class CompiledFunction:
    """A function that is compiled for each kind of call.

    It is stored under its name where it stands there, as a decorated function does; one that has
    another name is stored as what it was made from.

    Args:
        function: what runs uncompiled.
        options: of the pipeline.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        update_wrapper(self, function)
        self._irc_original = function  # what irc.original returns
        self._irc_dispatcher = Dispatcher(function, options)  # what statistics reads

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        # Inside another capture this function is part of what is captured.
        if is_traced():
            return self._irc_original(*args, **kwargs)
        return self._irc_dispatcher(args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return what a class that holds it has as a method."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self._irc_original!r}>"

    def _repr_html_(self) -> str:
        """Return what was compiled as a notebook shows it."""
        return shown(self)

    def __reduce__(self) -> str | tuple[type[CompiledFunction], tuple[Any, ...]]:
        name = getattr(self, "__qualname__", "")
        if name and _named(getattr(self, "__module__", ""), name) is self:
            return name
        return CompiledFunction, (self._irc_original, self._irc_dispatcher.options)


def _named(module: str, name: str) -> object:
    """Return what a Python module has under a dotted name; None where there is nothing."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
