"""The function that :class:`irc.runtime.native.entry.Entry` binds: from Python to the kernels."""

from __future__ import annotations

import functools

from irc.backends.cpu.jit import compile_module
from irc.runtime.native.entry import API, CONTEXT, api_addresses

NAME = "irc_entry"
NUMBERS = ("count", "threads", "stride", "fault", "slots")
"""Words of the context that are no addresses."""


@functools.cache
def entry_function() -> int:
    """Compile the function, once per process; its address. It refuses addresses that are 0."""
    known = zip(API, api_addresses(), strict=True)
    loads = (f"  %{name} = inttoptr i64 {address} to ptr\n" for name, address in known)
    return compile_module(_text("".join(loads), null="refused"), NAME)


def standalone_text() -> str:
    """Return the function as a shared object has it: who loads that fills in ``irc_api``."""
    kind = f"[{len(API)} x ptr]"
    loads = (
        f"  %p.{name} = getelementptr {kind}, ptr @irc_api, i64 0, i64 {place}\n"
        f"  %{name} = load ptr, ptr %p.{name}\n"
        for place, name in enumerate(API)
    )
    # Arrays of other libraries may have no address where they are empty.
    return f"@irc_api = global {kind} zeroinitializer\n" + _text("".join(loads), null="stored")


def _text(api: str, *, null: str) -> str:
    words = (
        f"  %c.{name} = getelementptr i64, ptr %context, i64 {place}\n"
        f"  %{name} = load {'i64' if name in NUMBERS else 'ptr'}, ptr %c.{name}\n"
        for place, name in enumerate(CONTEXT)
    )
    return _ENTRY.format(api=api, null=null, words="".join(words), first=len(CONTEXT))


_ENTRY = """
define ptr @irc_entry(ptr %self, ptr %args, i64 %nargs) {{
entry:
{api}  %context = call ptr %PyLong_AsVoidPtr(ptr %self)
{words}  %enough = icmp eq i64 %nargs, %slots
  br i1 %enough, label %fill, label %refused
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %stored ]
  %more = icmp slt i64 %i, %slots
  br i1 %more, label %one, label %ready
one:
  %parg = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %parg
  %address = call ptr %PyLong_AsVoidPtr(ptr %arg)
  %null = icmp eq ptr %address, null
  br i1 %null, label %suspect, label %stored
suspect:
  %error = call ptr %PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %refused, label %{null}
stored:
  %nslot = add i64 %i, {first}
  %pslot = getelementptr i64, ptr %context, i64 %nslot
  %slot = load i64, ptr %pslot
  %place = getelementptr ptr, ptr %table, i64 %slot
  store ptr %address, ptr %place
  %i1 = add i64 %i, 1
  br label %fill
ready:
  %state = call ptr %PyEval_SaveThread()
  call void %driver(ptr %words, i64 %count, ptr %table, i64 %threads, ptr %scratch, i64 %stride,
                    ptr %pool)
  call void %PyEval_RestoreThread(ptr %state)
  %checks = icmp ne i64 %fault, 0
  br i1 %checks, label %inspect, label %done
inspect:
  %t = phi i64 [ 0, %ready ], [ %t1, %clean ]
  %unseen = icmp slt i64 %t, %threads
  br i1 %unseen, label %word, label %done
word:
  %skipped = mul i64 %t, %stride
  %behind = add i64 %skipped, %fault
  %pword = getelementptr i8, ptr %scratch, i64 %behind
  %set = load i32, ptr %pword
  %outside = icmp ne i32 %set, 0
  br i1 %outside, label %refused, label %clean
clean:
  %t1 = add i64 %t, 1
  br label %inspect
done:
  call void %Py_IncRef(ptr %None)
  ret ptr %None
refused:
  ret ptr null
}}
"""
