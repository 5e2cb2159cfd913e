"""How threads share a kernel's work as they go: LLVM IR of one thread's part in a call.

A thread's share of a large kernel is divided into parts. Each thread does those of its own share in
order, then takes what the others have not begun: one that is held up, by another program on its
core or because the core is slower, keeps nobody waiting for more than a part. Where all go on at
one pace parts stay with their thread, and so does what its caches hold: affinity scheduling with
work stealing (E. Markatos, T. LeBlanc, Using processor affinity in loop scheduling on shared-memory
multiprocessors, IEEE TPDS 5(4), 1994). Which thread does a part changes no number.
"""

from __future__ import annotations

from irc.runtime.native.pool import LINE

APART = LINE
"""Bytes between the counters of threads: how many parts of a share are taken, as an i64."""

_CLEAR = f"""define internal void @irc_clear(ptr %taken, i64 %threads) {{
entry:
  br label %clear
clear:
  %t = phi i64 [ 0, %entry ], [ %t1, %clear ]
  %skip = mul i64 %t, {APART}
  %count = getelementptr i8, ptr %taken, i64 %skip
  store i64 0, ptr %count
  %t1 = add i64 %t, 1
  %more = icmp slt i64 %t1, %threads
  br i1 %more, label %clear, label %done
done:
  ret void
}}
"""

# A counter is looked at before it is raised: at the end of a kernel all threads look at all.
_TURNS = f"""define internal void @irc_turns(ptr %taken, ptr %function, ptr %args, ptr %own,
                                i64 %pieces, i64 %thread, i64 %threads) {{
entry:
  %undivided = icmp sle i64 %pieces, 1
  br i1 %undivided, label %whole, label %divided
whole:
  call void %function(ptr %args, i64 %thread, i64 %threads, ptr %own)
  ret void
divided:
  %shares = mul i64 %threads, %pieces
  br label %owner
owner:
  %beyond = phi i64 [ 0, %divided ], [ %beyond1, %empty ]
  %sum = add i64 %thread, %beyond
  %wraps = icmp sge i64 %sum, %threads
  %wrapped = sub i64 %sum, %threads
  %whose = select i1 %wraps, i64 %wrapped, i64 %sum
  %skip = mul i64 %whose, {APART}
  %count = getelementptr i8, ptr %taken, i64 %skip
  %first = mul i64 %whose, %pieces
  br label %take
take:
  %seen = load atomic i64, ptr %count monotonic, align 8
  %perhaps = icmp slt i64 %seen, %pieces
  br i1 %perhaps, label %ask, label %empty
ask:
  %i = atomicrmw add ptr %count, i64 1 monotonic
  %left = icmp slt i64 %i, %pieces
  br i1 %left, label %one, label %empty
one:
  %share = add i64 %first, %i
  call void %function(ptr %args, i64 %share, i64 %shares, ptr %own)
  br label %take
empty:
  %beyond1 = add i64 %beyond, 1
  %others = icmp slt i64 %beyond1, %threads
  br i1 %others, label %owner, label %done
done:
  ret void
}}
"""

TEXT = _CLEAR + _TURNS
"""``irc_clear`` makes the counters of a call zero, before any thread begins ``irc_turns``."""
