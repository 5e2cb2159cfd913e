"""What there is to know and to say of a compiled module or function.

:mod:`irc.calls.compiled_class` makes the first, :mod:`irc.calls.function` the second; each kind of
call (shapes, dtypes, flags: see :mod:`irc.frontends.torch.guards`) is compiled once, by its
:class:`irc.calls.dispatcher.Dispatcher`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from irc.calls.dispatcher import Dispatcher
from irc.calls.recompiles import Statistics
from irc.errors import IrcError
from irc.frontends.torch.faces import face
from irc.pipeline import Options
from irc.record import Record
from irc.report.calls import ModuleReport

DISPATCHERS: WeakKeyDictionary[nn.Module, Dispatcher] = WeakKeyDictionary()
"""Of each compiled module that was called."""


def original(compiled: Any) -> Any:
    """Return what was compiled: a module of the original class, or the function.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    uncompiled = getattr(compiled, "_irc_original", None)
    if uncompiled is None:
        raise IrcError("input-mismatch", f"{type(compiled).__name__} was not made by irc.compile")
    return face(uncompiled, compiled) if isinstance(compiled, nn.Module) else uncompiled


def dispatcher_of(module: nn.Module) -> Dispatcher | None:
    """Return the compiled versions of a module, None before its first call."""
    return DISPATCHERS.get(module)


def statistics(compiled: Any) -> Statistics:
    """Return how often a compiled module or function has been compiled so far, and why.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    dispatcher = getattr(compiled, "_irc_dispatcher", None)
    if isinstance(compiled, nn.Module):
        original(compiled)
        dispatcher = dispatcher_of(compiled)
        return Statistics(0, (), 0) if dispatcher is None else dispatcher.statistics
    if dispatcher is None:
        raise IrcError("input-mismatch", f"{type(compiled).__name__} was not made by irc.compile")
    return dispatcher.statistics


def is_compiled(candidate: Any) -> bool:
    """True for a module, function or method that ``irc.compile`` has returned, or a class."""
    return hasattr(getattr(candidate, "__func__", candidate), "_irc_original")


def explained(compiled: Any) -> tuple[str, Record | None, Options | None]:
    """Return the name of a compiled module or function, what was noted, and its options.

    A module has neither before its first call.

    Raises:
        IrcError: ``input-mismatch`` where the argument is a compiled class.
    """
    target: Any = getattr(compiled, "__func__", compiled)  # of a method
    if isinstance(target, type) and hasattr(target, "_irc_original"):
        name = f"{target.__name__}"
        raise IrcError(
            "input-mismatch",
            f"'{name}' is a class, and each of its modules is compiled by itself",
            help=f"model = {name}(...); model(...); irc.explain(model)",
        )
    if isinstance(target, nn.Module):
        name, known = type(original(target)).__name__, dispatcher_of(target)
        return (name, None, None) if known is None else (name, known.record, known.options)
    name = getattr(compiled, "__qualname__", type(original(target)).__name__)
    dispatcher: Dispatcher = getattr(target, "_irc_dispatcher")  # noqa: B009
    return name, dispatcher.record, dispatcher.options


def module_report(compiled: Any) -> ModuleReport:
    """Return what was compiled of a module or function so far; raises as :func:`explained`."""
    name, record, options = explained(compiled)
    return ModuleReport.of(name, record, backend="" if options is None else options.backend)


def shown(compiled: Any) -> str:
    """Return as a notebook shows it what was compiled of a module or function; never raises."""
    from irc.report.html.notebook import shown_module

    return shown_module(lambda: module_report(compiled), repr(compiled))


def refresh(compiled: Any) -> None:
    """Let a compiled module or function see what was written into its weights through ``.data``.

    Kernels read some weights from packed copies. torch counts writes to a tensor, and a copy of an
    older count is made again before the next call. Writes that it does not count (through
    ``.data``, or memory that it does not know to be shared) are seen by what the weights hold, on
    CPUs: all of it up to 64 KiB, else at places all over each weight. This is for writes of few
    elements to large weights, for those of a GPU, and those that several ranks hold.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    original(compiled)
    dispatcher = getattr(compiled, "_irc_dispatcher", None)
    if isinstance(compiled, nn.Module):
        dispatcher = dispatcher_of(compiled)
    if dispatcher is not None:
        dispatcher.refresh()
