"""A digest of what memory holds, by which writes are seen that nobody counts.

torch counts writes to a tensor, but not those through ``.data``, NumPy or another process. A digest
of a weight costs one pass over it, as fast as memory gives it: less than to prepare it again.

Each of 64 lanes of 32 bits takes every 64th word: ``h = rotl(h ^ word, 13) * ODD``. That is another
number for another word, so one changed word is always seen; of several in a lane, all but one of
2 ** 32 changes are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TypeAlias

from irc.backends.cpu.emit import described
from irc.backends.cpu.info import KernelInfo

Piece: TypeAlias = tuple[int, int]
"""Memory: its address, and of how many bytes it is."""

LEAST_BYTES = 1 << 20
"""From so many on threads pay."""
VECTORS, LANES = 8, 8
LINE = 4 * VECTORS * LANES
"""Bytes of a line: a word for each lane."""
ODD = 0x9E3779B1
"""2 ** 32 over the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


def digest_text(num_bytes: int) -> str:
    """Return the kernel: it takes a table of pieces, and gives each thread's lanes.

    The table is the number of pieces, then address and bytes of each. A thread takes a share of the
    lines of each piece, and the last one what is left behind them.

    Args:
        num_bytes: of all pieces together.
    """
    info = KernelInfo("irc_digest", 2, 0, num_bytes >= LEAST_BYTES, "digest")
    vectors = range(VECTORS)
    seeds = ", ".join(f"i32 {lane}" for lane in range(LANES))
    names = {
        "first": "\n".join(
            f"  %p{v} = phi <{LANES} x i32> [ <{seeds}>, %entry ], [ %e{v}, %next ]"
            for v in vectors
        ),
        "lanes": "\n".join(
            f"  %h{v} = phi <{LANES} x i32> [ %p{v}, %piece ], [ %m{v}, %body ]" for v in vectors
        ),
        "mixed": "\n".join(_mixed(v) for v in vectors),
        "last": "\n".join(
            f"  %e{v} = phi <{LANES} x i32> [ %{'t' if v == 0 else 'h'}{v}, %bytes ]"
            for v in vectors
        ),
        "stored": "\n".join(
            f"  %o{v} = getelementptr <{LANES} x i32>, ptr %own, i64 {v}\n"
            f"  store <{LANES} x i32> %p{v}, ptr %o{v}, align 4"
            for v in vectors
        ),
        "odd": ", ".join(f"i32 {ODD}" for _ in range(LANES)),
        "turn": ", ".join("i32 13" for _ in range(LANES)),
    }
    return described(info, _TEXT.format(lanes_of=LANES, line=LINE, **names))


def _mixed(v: int) -> str:
    kind = f"<{LANES} x i32>"
    turn, odd = (", ".join(f"i32 {n}" for _ in range(LANES)) for n in (13, ODD))
    return "\n".join(
        (
            f"  %a{v} = getelementptr {kind}, ptr %at, i64 {v}",
            f"  %w{v} = load {kind}, ptr %a{v}, align 1",
            f"  %x{v} = xor {kind} %h{v}, %w{v}",
            f"  %r{v} = call {kind} @llvm.fshl.v{LANES}i32({kind} %x{v}, {kind} %x{v},"
            f" {kind} <{turn}>)",
            f"  %m{v} = mul {kind} %r{v}, <{odd}>",
        )
    )


_TEXT = """
declare <{lanes_of} x i32> @llvm.fshl.v{lanes_of}i32(<{lanes_of} x i32>, <{lanes_of} x i32>,
                                                     <{lanes_of} x i32>)
define void @"irc_digest"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {{
entry:
  %table = load ptr, ptr %args, align 8
  %place = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %place, align 8
  %skipped = mul i64 %thread, {line}
  %own = getelementptr i8, ptr %out, i64 %skipped
  %count = load i64, ptr %table, align 8
  %after = add i64 %thread, 1
  %is.last = icmp eq i64 %after, %threads
  br label %pieces
pieces:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
{first}
  %some = icmp slt i64 %i, %count
  br i1 %some, label %piece, label %done
piece:
  %twice = mul i64 %i, 2
  %word = add i64 %twice, 1
  %where = getelementptr i64, ptr %table, i64 %word
  %start = load ptr, ptr %where, align 8
  %length = getelementptr i64, ptr %where, i64 1
  %size = load i64, ptr %length, align 8
  %lines = udiv i64 %size, {line}
  %before = mul i64 %lines, %thread
  %begin = udiv i64 %before, %threads
  %through = mul i64 %lines, %after
  %end = udiv i64 %through, %threads
  br label %loop
loop:
  %l = phi i64 [ %begin, %piece ], [ %l1, %body ]
{lanes}
  %more = icmp slt i64 %l, %end
  br i1 %more, label %body, label %rest
body:
  %off = mul i64 %l, {line}
  %at = getelementptr i8, ptr %start, i64 %off
{mixed}
  %l1 = add i64 %l, 1
  br label %loop
rest:
  %whole = mul i64 %lines, {line}
  %left = select i1 %is.last, i64 %whole, i64 %size
  br label %bytes
bytes:
  %b = phi i64 [ %left, %rest ], [ %b1, %byte ]
  %t0 = phi <{lanes_of} x i32> [ %h0, %rest ], [ %tm, %byte ]
  %unread = icmp slt i64 %b, %size
  br i1 %unread, label %byte, label %next
byte:
  %ab = getelementptr i8, ptr %start, i64 %b
  %vb = load i8, ptr %ab, align 1
  %zb = zext i8 %vb to i32
  %ib = insertelement <{lanes_of} x i32> zeroinitializer, i32 %zb, i32 0
  %tx = xor <{lanes_of} x i32> %t0, %ib
  %tr = call <{lanes_of} x i32> @llvm.fshl.v{lanes_of}i32(<{lanes_of} x i32> %tx,
      <{lanes_of} x i32> %tx, <{lanes_of} x i32> <{turn}>)
  %tm = mul <{lanes_of} x i32> %tr, <{odd}>
  %b1 = add i64 %b, 1
  br label %bytes
next:
{last}
  %i1 = add i64 %i, 1
  br label %pieces
done:
{stored}
  ret void
}}
"""


class Digest:
    """The digest of pieces of memory as they are when it is called.

    Args:
        run: the kernel, given the address of a table of its two arguments' addresses.
        pieces: the memory, which somebody else keeps.
        num_threads: how many at most run the kernel.
    """

    def __init__(
        self, run: Callable[[int], None], pieces: Sequence[Piece], num_threads: int
    ) -> None:
        words = [len(pieces), *(word for piece in pieces for word in piece)]
        self._table = (ctypes.c_int64 * len(words))(*words)
        # Two threads that call it at once write the same numbers.
        self._lanes = (ctypes.c_char * (num_threads * LINE))()
        addresses = (ctypes.addressof(self._table), ctypes.addressof(self._lanes))
        self._arguments = (ctypes.c_void_p * 2)(*addresses)
        self._run, self._at = run, ctypes.addressof(self._arguments)

    def __call__(self) -> bytes:
        """Return the digest now."""
        self._run(self._at)
        return self._lanes.raw
