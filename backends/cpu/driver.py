"""The native loop over a segment's calls.

It never changes with the program, so it is written out. In this process, where it is compiled once,
the threads are those of the OpenMP runtime, whose addresses are filled in; in a shared object they
are those of :mod:`irc.backends.cpu.team`.
"""

from __future__ import annotations

import functools

from irc.backends.cpu import openmp, team, turns
from irc.backends.cpu.jit import compile_module
from irc.backends.cpu.loops.steps import FAULT
from irc.backends.cpu.loops.units import MAX_ARGS, NEXT_BYTES, NEXT_WEIGHT, SIZE_VALUES, TURNS
from irc.runtime.native.pool import LAST, WORKER, Worker
from irc.runtime.native.segment import DRIVER, Driver

PATIENCE = 300_000
"""Cycles of the time stamp counter (about 0.1 ms): a caller that has waited at the OpenMP runtime's
barriers for so long, and longer than it has worked between them, takes the machine for busy. It
waits for each thread at both, also for one that has no core and nothing to do."""
AWAKE = 1 << 21
"""Cycles (about 0.8 ms) after a region in which the OpenMP runtime's threads still look for work. A
later one may have to wake them, which takes as long as a busy machine does: it proves nothing."""


@functools.cache
def driver(*, pool: bool) -> Driver:
    """Return the native function; without ``pool`` it must be called with one thread."""
    parallel, number, size = openmp.functions() if pool else (0, 0, 0)
    with_openmp = _OPENMP.format(number=number, size=size)
    region = _REGION.format(
        parallel=parallel, aside=team.CALL, last=LAST, patience=PATIENCE, awake=AWAKE
    )  # fmt: skip
    text = _text(region, _COUNTERS.format(apart=turns.APART))
    return DRIVER(compile_module(text + turns.TEXT + team.TEXT + with_openmp, _NAME))


@functools.cache
def worker() -> Worker:
    """Return what a thread of a team of irc's own runs, beside those of the OpenMP runtime."""
    text = "\n".join(("declare void @llvm.x86.sse2.pause()", "declare i64 @syscall(i64, ...)"))
    return WORKER(compile_module(text + turns.TEXT + team.WORKER_TEXT, "irc_worker"))


def standalone_text() -> str:
    """Return the function with threads of its own, as a shared object has it."""
    return _text(team.CALL) + turns.TEXT + team.TEXT


def _text(region: str, counters: str = "") -> str:
    return _DRIVER.format(
        most=MAX_ARGS + 4,
        next=NEXT_WEIGHT,
        bytes=NEXT_BYTES,
        sizes=SIZE_VALUES,
        fault=FAULT,
        turns=TURNS,
        counters=counters,
        region=region,
    )


_NAME = "irc_driver"


# A call is (function, number of arguments, parts of each thread's share or 0 where one thread does
# all, the next weight: base, offset and bytes, checks?, where among the words the values of its
# sizes are; then base and offset of each argument). Where a kernel that checks its indices has set
# a thread's fault word, nothing more is run: what comes later may write to the caller's states.
_DRIVER = """
define void @irc_driver(ptr %words, i64 %count, ptr %table, i64 %threads,
                        ptr %scratch, i64 %stride, ptr %pool) {{
entry:
  %args = alloca [{most} x ptr], align 64
  %work = alloca [8 x i64], align 16
{counters}  br label %calls
calls:
  %i = phi i64 [ 0, %entry ], [ %i1, %onward ]
  %at = phi ptr [ %words, %entry ], [ %at1, %onward ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %function = load ptr, ptr %at
  %pn = getelementptr i64, ptr %at, i64 1
  %n = load i64, ptr %pn
  %pp = getelementptr i64, ptr %at, i64 2
  %pieces = load i64, ptr %pp
  %pnext = getelementptr i64, ptr %at, i64 3
  %nbase = load i64, ptr %pnext
  %pnoff = getelementptr i64, ptr %at, i64 4
  %noff = load i64, ptr %pnoff
  %pnbytes = getelementptr i64, ptr %at, i64 5
  %nbytes = load i64, ptr %pnbytes
  %pchecks = getelementptr i64, ptr %at, i64 6
  %checks = load i64, ptr %pchecks
  %nslot = getelementptr ptr, ptr %table, i64 %nbase
  %nstart = load ptr, ptr %nslot
  %nweight = getelementptr i8, ptr %nstart, i64 %noff
  %slot0 = getelementptr ptr, ptr %args, i64 {next}
  store ptr %nweight, ptr %slot0
  %slot1 = getelementptr ptr, ptr %args, i64 {bytes}
  store i64 %nbytes, ptr %slot1
  %psizes = getelementptr i64, ptr %at, i64 7
  %nsizes = load i64, ptr %psizes
  %values = getelementptr i64, ptr %words, i64 %nsizes
  %slot2 = getelementptr ptr, ptr %args, i64 {sizes}
  store ptr %values, ptr %slot2
  %slot3 = getelementptr ptr, ptr %args, i64 {turns}
  %first = getelementptr i64, ptr %at, i64 8
  br label %fill
fill:
  %a = phi i64 [ 0, %one ], [ %a1, %arg ]
  %at1 = phi ptr [ %first, %one ], [ %next, %arg ]
  %unfilled = icmp slt i64 %a, %n
  br i1 %unfilled, label %arg, label %ready
arg:
  %base = load i64, ptr %at1
  %poff = getelementptr i64, ptr %at1, i64 1
  %off = load i64, ptr %poff
  %next = getelementptr i64, ptr %at1, i64 2
  %pbase = getelementptr ptr, ptr %table, i64 %base
  %pointer = load ptr, ptr %pbase
  %moved = getelementptr i8, ptr %pointer, i64 %off
  %slot = getelementptr ptr, ptr %args, i64 %a
  store ptr %moved, ptr %slot
  %a1 = add i64 %a, 1
  br label %fill
ready:
  %several = icmp sgt i64 %threads, 1
  %wanted = icmp ne i64 %pieces, 0
  %region = and i1 %several, %wanted
  br i1 %region, label %team, label %alone
alone:
  store i64 1, ptr %slot3
  call void %function(ptr %args, i64 0, i64 1, ptr %scratch)
  br label %called
team:
  store i64 %pieces, ptr %slot3
{region}  br label %called
called:
  %checked = icmp ne i64 %checks, 0
  br i1 %checked, label %inspect, label %onward
inspect:
  %t = phi i64 [ 0, %called ], [ %t1, %clean ]
  %unseen = icmp slt i64 %t, %threads
  br i1 %unseen, label %word, label %onward
word:
  %skipped = mul i64 %t, %stride
  %place = sub i64 %skipped, {fault}
  %pword = getelementptr i8, ptr %scratch, i64 %place
  %set = load i32, ptr %pword
  %fault = icmp ne i32 %set, 0
  br i1 %fault, label %done, label %clean
clean:
  %t1 = add i64 %t, 1
  br label %inspect
onward:
  %i1 = add i64 %i, 1
  br label %calls
done:
  ret void
}}
"""

_COUNTERS = """  %bytes = mul i64 %threads, {apart}
  %taken = alloca i8, i64 %bytes, align {apart}
"""

_REGION = """  %last.at = getelementptr i8, ptr %pool, i64 {last}
  %began = call i64 @llvm.readcyclecounter()
  %busy = call i1 @irc_busy(ptr %pool, i64 %began)
  br i1 %busy, label %aside, label %together
aside:
{aside}  br label %joined
together:
  call void @irc_clear(ptr %taken, i64 %threads)
  store ptr %function, ptr %work
  %w1 = getelementptr i64, ptr %work, i64 1
  store ptr %args, ptr %w1
  %w2 = getelementptr i64, ptr %work, i64 2
  store ptr %scratch, ptr %w2
  %w3 = getelementptr i64, ptr %work, i64 3
  store i64 %stride, ptr %w3
  %w4 = getelementptr i64, ptr %work, i64 4
  store ptr %taken, ptr %w4
  %w5 = getelementptr i64, ptr %work, i64 5
  store i64 %pieces, ptr %w5
  %w6 = getelementptr i64, ptr %work, i64 6
  %t32 = trunc i64 %threads to i32
  call void inttoptr (i64 {parallel} to ptr)(ptr @irc_member, ptr %work, i32 %t32, i32 0)
  %over = call i64 @llvm.readcyclecounter()
  %w7 = getelementptr i64, ptr %work, i64 7
  %started = load i64, ptr %w6
  %ended = load i64, ptr %w7
  %worked = sub i64 %ended, %started
  %passed = sub i64 %over, %began
  %waited = sub i64 %passed, %worked
  %patience = add i64 %worked, {patience}
  %late = icmp sgt i64 %waited, %patience
  %last = load atomic i64, ptr %last.at monotonic, align 8
  store atomic i64 %over, ptr %last.at monotonic, align 8
  %idle = sub i64 %began, %last
  %awake = icmp ult i64 %idle, {awake}
  %proof = and i1 %late, %awake
  br i1 %proof, label %note, label %joined
note:
  call void @irc_note(ptr %pool, i64 %began, i64 %over)
  br label %joined
joined:
"""

_OPENMP = """define internal void @irc_member(ptr %work) {{
  %started = call i64 @llvm.readcyclecounter()
  %function = load ptr, ptr %work
  %w1 = getelementptr i64, ptr %work, i64 1
  %args = load ptr, ptr %w1
  %w2 = getelementptr i64, ptr %work, i64 2
  %scratch = load ptr, ptr %w2
  %w3 = getelementptr i64, ptr %work, i64 3
  %stride = load i64, ptr %w3
  %w4 = getelementptr i64, ptr %work, i64 4
  %taken = load ptr, ptr %w4
  %w5 = getelementptr i64, ptr %work, i64 5
  %pieces = load i64, ptr %w5
  %thread32 = call i32 inttoptr (i64 {number} to ptr)()
  %threads32 = call i32 inttoptr (i64 {size} to ptr)()
  %thread = sext i32 %thread32 to i64
  %threads = sext i32 %threads32 to i64
  %skip = mul i64 %thread, %stride
  %own = getelementptr i8, ptr %scratch, i64 %skip
  call void @irc_turns(ptr %taken, ptr %function, ptr %args, ptr %own, i64 %pieces, i64 %thread,
                       i64 %threads)
  %caller = icmp eq i64 %thread, 0
  br i1 %caller, label %time, label %left
time:
  %ended = call i64 @llvm.readcyclecounter()
  %w6 = getelementptr i64, ptr %work, i64 6
  store i64 %started, ptr %w6
  %w7 = getelementptr i64, ptr %work, i64 7
  store i64 %ended, ptr %w7
  br label %left
left:
  ret void
}}
"""
