"""A segment as a builtin function of Python: from the interpreter to the kernels in one call.

``ctypes`` converts the arguments of the driver anew at each call, which costs as much as a small
kernel. A function of CPython's fast calling convention (``METH_FASTCALL``, of the stable ABI) does
not: an :class:`Entry` binds it to one segment and one base table. It takes the addresses that
change with each call, stores them in the table, releases the interpreter's lock and calls the
driver. :mod:`irc.backends.cpu.entry` writes the function.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakSet

from irc.errors import IrcError

METH_FASTCALL = 0x80
API = ("PyLong_AsVoidPtr", "PyErr_Occurred", "PyEval_SaveThread", "PyEval_RestoreThread",
       "Py_IncRef", "None")  # fmt: skip
"""What the function uses of Python: functions, and the object None."""
CONTEXT = ("driver", "words", "count", "table", "threads", "scratch", "stride", "pool", "fault",
           "slots")  # fmt: skip
"""The words of the context, in order; behind them the slots. ``fault`` is where, in bytes from a
thread's scratch memory, kernels say that an index lies outside its tensor; 0 where none can."""


class Entry:
    """A base table and the segment that runs on it; calling :attr:`run` runs it.

    Args:
        function: the address of the builtin function.
        table: the address of the base table.
        slots: which words of the table the arguments of a call are written to, in order.

    Attributes:
        run: takes one address for each slot (SystemError: it was given more or fewer, or an index
            lies outside its tensor; then the entry is not to be used again). One thread at a time
            may call it: table and scratch memory are the entry's own. :meth:`turn` has to be called
            before.
        workspace: of the segment that it runs.
        outside: returns the error of a run in which an index lay outside its tensor.
    """

    def __init__(self, function: int, table: int, slots: Sequence[int]) -> None:
        self._threads: Callable[[], tuple[int, int]] = lambda: (1, 0)
        words = dict.fromkeys(CONTEXT, 0) | {"table": table, "slots": len(slots)}
        self._context = (ctypes.c_int64 * (len(words) + len(slots)))(*words.values(), *slots)
        _entries.add(self)
        self._keep: tuple[object, ...] = ()
        self.workspace: Any = None
        self.outside: Callable[[], IrcError]
        self.run: Callable[..., None] = _bound(function, ctypes.addressof(self._context))

    def turn(
        self,
        driver: Callable[..., None],
        *,
        calls: tuple[int, int],
        threads: Callable[[], tuple[int, int]],
        scratch: tuple[int, int],
        fault: int,
        outside: Callable[[], IrcError],
        keep: Sequence[object],
    ) -> None:
        """Run this segment from now on.

        Args:
            driver: of the segment.
            calls: the address of its calls, and how many there are.
            threads: how many threads a call may use now, and their pool; asked again after a fork.
            scratch: the address of the scratch memory, and the bytes of one thread.
            fault: see :data:`CONTEXT`.
            outside: see :class:`Entry`.
            keep: what has to live as long: the memory that is pointed to.
        """
        address = ctypes.cast(cast("Any", driver), ctypes.c_void_p).value or 0
        self._threads = threads
        for name, word in zip(
            ("driver", "words", "count", "scratch", "stride", "fault"),
            (address, *calls, *scratch, fault),
            strict=True,
        ):
            self._context[CONTEXT.index(name)] = word
        self._keep, self.outside = (driver, *keep), outside
        self.refresh()

    def refresh(self) -> None:
        """Ask again which threads there are."""
        threads, pool = self._threads()
        self._context[CONTEXT.index("threads")] = threads
        self._context[CONTEXT.index("pool")] = pool


_entries: WeakSet[Entry] = WeakSet()


def refresh_entries() -> None:
    """Ask again which threads there are: those who know call it in a child made by fork."""
    for each in list(_entries):
        each.refresh()


class _MethodDef(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _method(function: int) -> _MethodDef:
    """Return the definition of a function; it is never freed."""
    return _MethodDef(b"run", function, METH_FASTCALL, None)


@functools.cache
def api_addresses() -> tuple[int, ...]:
    """Return the addresses of :data:`API` in this process."""
    api: Any = ctypes.pythonapi
    functions = [ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0 for name in API[:-1]]
    return (*functions, id(None))


def _bound(function: int, context: int) -> Callable[..., None]:
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    # What METH_FASTCALL gets as self is the address of the context, as an int.
    return make(ctypes.byref(_method(function)), context, None)
