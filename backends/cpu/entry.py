"""A segment as a builtin function of Python: from the interpreter to the kernels in one call.

``ctypes`` converts the six arguments of the driver anew at each call, which costs as much as a
small kernel. Here a function of CPython's fast calling convention (``METH_FASTCALL``, of the stable
ABI) is compiled once per process, and a :class:`Entry` binds it to one segment and one base table:
it takes the addresses that change with each call, stores them in the table, releases the
interpreter's lock and calls the driver.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakSet

from irc.backends.cpu import openmp
from irc.backends.cpu.jit import compile_module

METH_FASTCALL = 0x80
THREADS = 3
"""Which word of the context is the number of threads."""


class Entry:
    """A segment bound to a base table; calling :attr:`run` runs it.

    Args:
        driver: of the segment.
        calls: the address of the segment's calls, and how many there are.
        threads: for kernels; in a child made by fork there is one.
        scratch: the address of the scratch memory, and the bytes of one thread.
        table: the address of the base table.
        slots: which words of the table the arguments of a call are written to, in order.
        keep: what has to live as long as the entry: the memory that is pointed to.

    Attributes:
        run: takes one address for each slot (SystemError: it was given more or fewer). One thread
            at a time may call it: table and scratch memory are the entry's own.
    """

    def __init__(
        self,
        driver: Callable[..., None],
        *,
        calls: tuple[int, int],
        threads: int,
        scratch: tuple[int, int],
        table: int,
        slots: Sequence[int],
        keep: Sequence[object],
    ) -> None:
        address = ctypes.cast(cast("Any", driver), ctypes.c_void_p).value or 0
        count = 1 if openmp.is_forked() else threads
        words = (address, *calls, count, *scratch, table, len(slots), *slots)
        self._context = (ctypes.c_int64 * len(words))(*words)
        _entries.add(self)
        self._keep = (driver, *keep)
        self.run: Callable[..., None] = _bound(ctypes.addressof(self._context))

    def use_one_thread(self) -> None:
        """Run on the calling thread alone from now on."""
        self._context[THREADS] = 1


_entries: WeakSet[Entry] = WeakSet()


def _after_fork() -> None:
    for each in list(_entries):
        each.use_one_thread()


os.register_at_fork(after_in_child=_after_fork)


class _MethodDef(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _method() -> _MethodDef:
    """Compile the function, once per process; its definition is never freed."""
    api: Any = ctypes.pythonapi
    names = ("PyLong_AsVoidPtr", "PyErr_Occurred", "PyEval_SaveThread", "PyEval_RestoreThread")
    pointers = {n: ctypes.cast(getattr(api, n), ctypes.c_void_p).value for n in (*names, _INCREF)}
    text = _ENTRY.format(**pointers, increment=pointers[_INCREF], none=id(None))
    return _MethodDef(b"run", compile_module(text, "irc_entry"), METH_FASTCALL, None)


def _bound(context: int) -> Callable[..., None]:
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    # What METH_FASTCALL gets as self is the address of the context, as an int.
    return make(ctypes.byref(_method()), context, None)


_INCREF = "Py_IncRef"

# The context is (driver, words, count, threads, scratch, stride, table, number of slots, slots...).
_ENTRY = """
define ptr @irc_entry(ptr %self, ptr %args, i64 %nargs) {{
entry:
  %context = call ptr inttoptr (i64 {PyLong_AsVoidPtr} to ptr)(ptr %self)
  %ptable = getelementptr i64, ptr %context, i64 6
  %table = load ptr, ptr %ptable
  %pcount = getelementptr i64, ptr %context, i64 7
  %slots = load i64, ptr %pcount
  %enough = icmp eq i64 %nargs, %slots
  br i1 %enough, label %fill, label %refused
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %stored ]
  %more = icmp slt i64 %i, %slots
  br i1 %more, label %one, label %ready
one:
  %parg = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %parg
  %address = call ptr inttoptr (i64 {PyLong_AsVoidPtr} to ptr)(ptr %arg)
  %null = icmp eq ptr %address, null
  br i1 %null, label %suspect, label %stored
suspect:
  %error = call ptr inttoptr (i64 {PyErr_Occurred} to ptr)()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %refused, label %stored
stored:
  %nslot = add i64 %i, 8
  %pslot = getelementptr i64, ptr %context, i64 %nslot
  %slot = load i64, ptr %pslot
  %place = getelementptr ptr, ptr %table, i64 %slot
  store ptr %address, ptr %place
  %i1 = add i64 %i, 1
  br label %fill
ready:
  %driver = load ptr, ptr %context
  %pwords = getelementptr i64, ptr %context, i64 1
  %words = load ptr, ptr %pwords
  %pcalls = getelementptr i64, ptr %context, i64 2
  %calls = load i64, ptr %pcalls
  %pthreads = getelementptr i64, ptr %context, i64 3
  %threads = load i64, ptr %pthreads
  %pscratch = getelementptr i64, ptr %context, i64 4
  %scratch = load ptr, ptr %pscratch
  %pstride = getelementptr i64, ptr %context, i64 5
  %stride = load i64, ptr %pstride
  %state = call ptr inttoptr (i64 {PyEval_SaveThread} to ptr)()
  call void %driver(ptr %words, i64 %calls, ptr %table, i64 %threads, ptr %scratch, i64 %stride)
  call void inttoptr (i64 {PyEval_RestoreThread} to ptr)(ptr %state)
  %none = inttoptr i64 {none} to ptr
  call void inttoptr (i64 {increment} to ptr)(ptr %none)
  ret ptr %none
refused:
  ret ptr null
}}
"""
