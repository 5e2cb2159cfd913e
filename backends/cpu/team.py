"""Threads of a shared object's own: LLVM IR of a team, and of what each of its threads does.

The work of a kernel is divided into as many shares as the program has threads. The caller opens
each other share in its thread's *box* (a counter of requests), does share 0, then itself does those
that nobody has begun, and waits for the others; of shares in parts, which are done as
:mod:`irc.backends.cpu.turns` says, nothing is left then. So a thread that is late, or was never
started, costs time and nothing else; and where another caller has the team, the shares are done one
after the other: the numbers are the same in any case.

A thread that has begun a share and then loses its core is waited for. On a machine where that
happened lately, a small call on few threads is done by its caller alone: this costs less than one
such wait, and the same each time.

A thread looks at its box for a while, then sleeps in a futex (Linux). Memory of the pool:

    0     owner: 1 while a caller has the team
    128*w the box of thread w = 1, 2, ...: requests, asleep?, and what is to be done (function,
          arguments, scratch, stride, threads, parts), in one line; in the next one begun and
          ended, and how many parts of its share are taken, as that of the caller at 64 + 8
"""

from __future__ import annotations

from irc.backends.cpu.loops.units import TURNS
from irc.runtime.native.pool import LINE, PERIOD, UNTIL

FUTEX, YIELD = 202, 24
"""Linux system calls of x86-64."""
WAIT, WAKE = 128, 129
"""Futex operations, private to the process."""
PATIENCE = 4096
"""How often a caller looks at a share that is being done before it offers its core."""

FEW = 4
"""On a busy machine a caller does a small call alone if it is divided among so many at most."""
LATE = 100_000
"""Cycles of the time stamp counter (about 30 us): a caller that has waited for so long, and longer
than it has worked itself, for threads with shares as large takes the machine for busy."""
SHORTEST, LONGEST = 1 << 26, 1 << 33
"""Cycles (about 25 ms and 3 s) for which it is, from the first time on; then twice as long. What is
further ahead is of another counter: of another host, or before the machine slept."""

TAKEN = 72
"""Bytes from a box to the counter of the parts that are taken of its thread's share."""

CALL = """  call void @irc_team(ptr %pool, ptr %function, ptr %args, ptr %scratch, i64 %stride,
                      i64 %pieces, i64 %threads)
"""

_SHARE = """  %{0}.skip = mul i64 %{0}, %stride
  %{0}.own = getelementptr i8, ptr %scratch, i64 %{0}.skip
  call void @irc_turns(ptr %taken, ptr %function, ptr %args, ptr %{0}.own, i64 %pieces, i64 %{0},
                       i64 %threads)
"""

_BOX = f"""  %{{0}}.bytes = mul i64 %{{0}}, {LINE}
  %{{0}}.requests = getelementptr i8, ptr %pool, i64 %{{0}}.bytes
  %{{0}}.asleep = getelementptr i8, ptr %{{0}}.requests, i64 4
  %{{0}}.begun = getelementptr i8, ptr %{{0}}.requests, i64 64
  %{{0}}.ended = getelementptr i8, ptr %{{0}}.requests, i64 68
"""

_JOB = "".join(
    f"  %job{place} = getelementptr i8, ptr %{{0}}, i64 {8 + 8 * place}\n" for place in range(6)
)

_TEAM = f"""
declare i64 @syscall(i64, ...)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.smin.i64(i64, i64)
define internal i1 @irc_busy(ptr %pool, i64 %now) {{
  %until.at = getelementptr i8, ptr %pool, i64 {UNTIL}
  %until = load atomic i64, ptr %until.at monotonic, align 8
  %ahead = sub i64 %until, %now
  %later = icmp sgt i64 %ahead, 0
  %soon = icmp sle i64 %ahead, {LONGEST}
  %busy = and i1 %later, %soon
  ret i1 %busy
}}
define internal void @irc_note(ptr %pool, i64 %began, i64 %over) {{
  %until.at = getelementptr i8, ptr %pool, i64 {UNTIL}
  %period.at = getelementptr i8, ptr %pool, i64 {PERIOD}
  %until = load atomic i64, ptr %until.at monotonic, align 8
  %period = load atomic i64, ptr %period.at monotonic, align 8
  %since = sub i64 %began, %until
  %again = icmp slt i64 %since, %period
  %doubled = shl i64 %period, 1
  %longer = call i64 @llvm.smin.i64(i64 %doubled, i64 {LONGEST})
  %next.period = select i1 %again, i64 %longer, i64 {SHORTEST}
  store atomic i64 %next.period, ptr %period.at monotonic, align 8
  %next.until = add i64 %over, %next.period
  store atomic i64 %next.until, ptr %until.at monotonic, align 8
  ret void
}}
define internal void @irc_team(ptr %pool, ptr %function, ptr %args, ptr %scratch, i64 %stride,
                               i64 %pieces, i64 %threads) {{
entry:
  %taken = getelementptr i8, ptr %pool, i64 {TAKEN}
  %began = call i64 @llvm.readcyclecounter()
  %busy = call i1 @irc_busy(ptr %pool, i64 %began)
  %small = icmp sle i64 %pieces, 1
  %few = icmp sle i64 %threads, {FEW}
  %light = and i1 %small, %few
  %apart = and i1 %light, %busy
  br i1 %apart, label %whole, label %ask
ask:
  %asked = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic
  %ours = extractvalue {{ i32, i1 }} %asked, 1
  br i1 %ours, label %post, label %whole
whole:
  %turns = getelementptr ptr, ptr %args, i64 {TURNS}
  store i64 1, ptr %turns
  br label %alone
alone:
  %a = phi i64 [ 0, %whole ], [ %a1, %alone ]
  %a.skip = mul i64 %a, %stride
  %a.own = getelementptr i8, ptr %scratch, i64 %a.skip
  call void %function(ptr %args, i64 %a, i64 %threads, ptr %a.own)
  %a1 = add i64 %a, 1
  %a.more = icmp slt i64 %a1, %threads
  br i1 %a.more, label %alone, label %left
left:
  ret void
post:
  call void @irc_clear(ptr %taken, i64 %threads)
  br label %open
open:
  %w = phi i64 [ 1, %post ], [ %w1, %opened ]
{_BOX.format("w")}{_JOB.format("w.requests")}  store ptr %function, ptr %job0
  store ptr %args, ptr %job1
  store ptr %scratch, ptr %job2
  store i64 %stride, ptr %job3
  store i64 %threads, ptr %job4
  store i64 %pieces, ptr %job5
  %w.last = load i32, ptr %w.requests
  %w.next = add i32 %w.last, 1
  store atomic i32 %w.next, ptr %w.requests seq_cst, align 4
  %w.sleeps = load atomic i32, ptr %w.asleep seq_cst, align 4
  %w.dozing = icmp ne i32 %w.sleeps, 0
  br i1 %w.dozing, label %wake, label %opened
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %w.requests, i64 {WAKE}, i64 1, ptr null,
                                        ptr null, i64 0)
  br label %opened
opened:
  %w1 = add i64 %w, 1
  %w.more = icmp slt i64 %w1, %threads
  br i1 %w.more, label %open, label %own
own:
  call void @irc_turns(ptr %taken, ptr %function, ptr %args, ptr %scratch, i64 %pieces, i64 0,
                       i64 %threads)
  %worked.at = call i64 @llvm.readcyclecounter()
  br label %collect
collect:
  %c = phi i64 [ 1, %own ], [ %c1, %collected ]
{_BOX.format("c")}  %c.now = load i32, ptr %c.requests
  %c.last = sub i32 %c.now, 1
  %c.begun_by = load atomic i32, ptr %c.begun monotonic, align 4
  %c.taken = icmp eq i32 %c.begun_by, %c.now
  br i1 %c.taken, label %look, label %try
try:
  %c.tried = cmpxchg ptr %c.begun, i32 %c.last, i32 %c.now acq_rel monotonic
  %c.ours = extractvalue {{ i32, i1 }} %c.tried, 1
  br i1 %c.ours, label %late, label %look
late:
  %c.divided = icmp sgt i64 %pieces, 1
  br i1 %c.divided, label %collected, label %help
help:
{_SHARE.format("c")}  br label %collected
look:
  %looks = phi i64 [ 0, %collect ], [ 0, %try ], [ %looks1, %again ]
  %c.done = load atomic i32, ptr %c.ended acquire, align 4
  %c.ready = icmp eq i32 %c.done, %c.now
  br i1 %c.ready, label %collected, label %not_yet
not_yet:
  %looks1 = add i64 %looks, 1
  %c.long = icmp sgt i64 %looks, {PATIENCE}
  br i1 %c.long, label %offer, label %relax
offer:
  %offered = call i64 (i64, ...) @syscall(i64 {YIELD})
  br label %again
relax:
  call void @llvm.x86.sse2.pause()
  br label %again
again:
  br label %look
collected:
  %c1 = add i64 %c, 1
  %c.more = icmp slt i64 %c1, %threads
  br i1 %c.more, label %collect, label %time
time:
  %over = call i64 @llvm.readcyclecounter()
  %worked = sub i64 %worked.at, %began
  %waited = sub i64 %over, %worked.at
  %patience = add i64 %worked, {LATE}
  %long = icmp sgt i64 %waited, %patience
  %news = xor i1 %busy, true
  %proof = and i1 %long, %news
  br i1 %proof, label %note, label %release
note:
  call void @irc_note(ptr %pool, i64 %began, i64 %over)
  br label %release
release:
  store atomic i32 0, ptr %pool release, align 4
  ret void
}}
"""

_WORKER = f"""
define void @irc_worker(ptr %pool, i64 %t, i64 %spins) {{
entry:
  %taken = getelementptr i8, ptr %pool, i64 {TAKEN}
{_BOX.format("t")}  br label %rest
rest:
  %seen = phi i32 [ 0, %entry ], [ %seen, %risen ], [ %now, %after ]
  br label %spin
spin:
  %looks = phi i64 [ 0, %rest ], [ %looks1, %idle ]
  %now = load atomic i32, ptr %t.requests acquire, align 4
  %asked = icmp ne i32 %now, %seen
  br i1 %asked, label %begin, label %idle_or_sleep
idle_or_sleep:
  %tired = icmp sge i64 %looks, %spins
  br i1 %tired, label %sleep, label %idle
idle:
  call void @llvm.x86.sse2.pause()
  %looks1 = add i64 %looks, 1
  br label %spin
sleep:
  store atomic i32 1, ptr %t.asleep seq_cst, align 4
  %late = load atomic i32, ptr %t.requests seq_cst, align 4
  %missed = icmp ne i32 %late, %seen
  br i1 %missed, label %risen, label %doze
doze:
  %dozed = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %t.requests, i64 {WAIT}, i32 %seen,
                                        ptr null, ptr null, i64 0)
  br label %risen
risen:
  store atomic i32 0, ptr %t.asleep seq_cst, align 4
  br label %rest
begin:
  %last = sub i32 %now, 1
  %tried = cmpxchg ptr %t.begun, i32 %last, i32 %now acq_rel monotonic
  %ours = extractvalue {{ i32, i1 }} %tried, 1
  br i1 %ours, label %work, label %after
work:
{_JOB.format("t.requests")}  %function = load ptr, ptr %job0
  %args = load ptr, ptr %job1
  %scratch = load ptr, ptr %job2
  %stride = load i64, ptr %job3
  %threads = load i64, ptr %job4
  %pieces = load i64, ptr %job5
{_SHARE.format("t")}  store atomic i32 %now, ptr %t.ended release, align 4
  br label %after
after:
  br label %rest
}}
"""

WORKER_TEXT = _WORKER
"""The function ``irc_worker``; what it calls of Linux and of the processor is to be declared."""
TEXT = _TEAM + WORKER_TEXT
"""The functions ``irc_team``, which :data:`CALL` calls, and ``irc_worker``."""
