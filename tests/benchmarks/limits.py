"""What the machine can do: the peak of fused multiply-adds, and the bandwidth of memory.

A roofline is drawn from figures of its own run: clocks, neighbours and hypervisors change them.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch

CHAINS = 12
"""Independent accumulators: two ports times a latency of four, and some."""

LOOPS = 4_000_000


def _kernel(lanes: int, dots: bool) -> str:
    """Return LLVM IR of ``peak(loops, out)``: chains of multiply-adds that stay in registers.

    With ``dots`` they are dot products of pairs of bfloat16, twice the arithmetic.
    """
    kind, fma = f"<{lanes} x float>", f"@llvm.fma.v{lanes}f32"
    operand_types, sums = f"{kind}, {kind}, {kind}", "{kind} %a{i}, {kind} %s, {kind} %t"
    halves = pairs = ""
    if dots:
        pairs, fma = f"<{2 * lanes} x bfloat>", "@llvm.x86.avx512bf16.dpbf16ps.512"
        operand_types, sums = f"{kind}, {pairs}, {pairs}", "{kind} %a{i}, {pairs} %h, {pairs} %h"
        halves = f"%h = bitcast {kind} %t to {pairs}"
    phis = "\n".join(
        f"  %a{i} = phi {kind} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(CHAINS)
    )
    steps = "\n".join(
        f"  %b{i} = call {kind} {fma}({sums.format(i=i, kind=kind, pairs=pairs)})"
        for i in range(CHAINS)
    )
    adds = "\n".join(
        f"  %c{i} = fadd {kind} %{'b0' if i == 1 else f'c{i - 1}'}, %b{i}" for i in range(1, CHAINS)
    )
    return f"""
declare {kind} {fma}({operand_types})
define void @peak(i64 %loops, ptr %out) {{
entry:
  %x = load float, ptr %out
  %s0 = insertelement {kind} undef, float %x, i32 0
  %s = shufflevector {kind} %s0, {kind} undef, <{lanes} x i32> zeroinitializer
  %t = fadd {kind} %s, %s
  {halves}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %loops
  br i1 %more, label %loop, label %done
done:
{adds}
  %r = extractelement {kind} %c{CHAINS - 1}, i32 0
  store float %r, ptr %out
  ret void
}}
"""


def _tiles_kernel() -> str:
    """Return LLVM IR of ``peak(loops, out)``: products of tile registers that load nothing.

    The tiles hold ordinary numbers, from ``out`` on: products of zeros take less power, and clocks
    follow power.
    """
    from irc.backends.cpu.amx import tiles
    from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand

    b = Builder()
    tiles.configure(b, [tiles.Shape()] * tiles.TILES)
    for tile in range(tiles.TILES):
        if tile < 4:
            tiles.zero(b, tile)
            continue
        at = b.address(Operand(PTR, "%out"), "i8", b.i64((tile - 4) * TILE_BYTES))
        tiles.load(b, tile, at, b.i64(tiles.ROW_BYTES))

    def step(_: Operand, carried: list[Operand]) -> list[Operand]:
        for total in range(4):
            tiles.dot(b, "bf16ps", total, 4 + total // 2, 6 + total % 2)
        return carried

    b.loop(b.i64(0), Operand(I64, "%loops"), 1, [], step)
    tiles.release(b)
    b.do("ret void")
    text = b.function("define void @peak(i64 %loops, ptr %out)")
    return "\n".join([text, *b.functions.values()])


TILE_BYTES = 1024
TILE_LOOPS, TILE_WORK = 1_000_000, 4 * 2 * 16 * 16 * 32
"""Steps, and the operations of one: four products of 16 x 32 by 32 x 16."""


def peak_flops(threads: int, dtype: str = "f32") -> float:
    """Return operations a second that some threads reach together, in registers.

    Of bfloat16 they are products of tiles, or dot products of pairs, where the machine has them,
    else those of float32.
    """
    run, loops, work = _peak(dtype)
    numbers = torch.randn(threads, 2 * TILE_BYTES).bfloat16()

    def once() -> float:
        scratch = numbers.clone()
        workers = [threading.Thread(target=run, args=(loops, row.data_ptr())) for row in scratch]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - start

    return threads * loops * work / min(once() for _ in range(5))


@cache
def _peak(dtype: str) -> tuple[Callable[[int, int], None], int, int]:
    """Return the kernel of :func:`peak_flops`, its steps and the operations of one."""
    from irc.backends.cpu.features import host
    from irc.backends.cpu.jit import compile_module

    lanes, dots = host().float_lanes, dtype == "bf16" and host().dot_bf16
    loops, work = LOOPS, CHAINS * lanes * (4 if dots else 2)
    text = _kernel(lanes, dots)
    if dtype == "bf16" and host().tiles:
        loops, work, text = TILE_LOOPS, TILE_WORK, _tiles_kernel()
    address = compile_module(text, "peak")
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(address), loops, work


def bandwidth(threads: int) -> tuple[float, float]:
    """Return bytes a second of reading (a sum) and of copying (read plus written)."""
    torch.set_num_threads(threads)
    source, target = _arrays()

    def best(run: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(7):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    size = source.numel() * 4
    return size / best(source.sum), 2 * size / best(lambda: target.copy_(source))


@cache
def _arrays() -> tuple[torch.Tensor, torch.Tensor]:
    """Return two arrays, 256 MiB each, that :func:`bandwidth` reads and writes."""
    source = torch.ones(64 << 20, dtype=torch.float32)
    return source, torch.empty_like(source)


def work_of(module: Any, inputs: tuple[Any, ...]) -> dict[str, float]:
    """Return the arithmetic of a call, and the bytes that it cannot but read or write.

    These are the weights (of a table that is only looked up in, the rows that are read), the inputs
    and the results; what lies between could stay in caches.
    """
    import irc
    from irc.dialects.builder import arguments, entry, functions
    from irc.dialects.flow import FlowOp
    from irc.ops.work import flops
    from irc.search.facts import call_counts

    captured = irc.capture(module, inputs)
    known = functions(captured.program.module)
    counts = call_counts(known)
    total = sum(
        counts[name] * flops(op)
        for name, func in known.items()
        for op in func.body.block.ops
        if isinstance(op, FlowOp)
    )
    bytes_read = sum(x.nbytes for x in inputs)
    for _, name, value in arguments(entry(captured.program.module)):
        weight = captured.program.tensors.get(name)
        if weight is not None:
            rows = [_rows_read(use.operation, use.index, weight) for use in value.uses]
            bytes_read += min(weight.nbytes, sum(rows))
    results = module(*inputs)
    bytes_written = sum(x.nbytes for x in (results if isinstance(results, tuple) else (results,)))
    return {"flops": float(total), "bytes": float(bytes_read + bytes_written)}


def _rows_read(op: Any, operand: int, weight: Any) -> int:
    """Return the bytes of a weight that one of its readers looks at."""
    if op.name != "flow.take" or operand != 0:
        return weight.nbytes
    from irc.dialects.flow import tensor

    return prod(tensor(op.results[0]).static_shape()) * weight.element_size()
