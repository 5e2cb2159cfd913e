"""The schedule space of a matmul on a GPU: few candidates, each made of what the hardware has.

As in Hidet (arXiv:2210.09603, section 4.3) a schedule is a tile of the output, a step of k, warps
and stages; the sizes of the problem only exclude candidates. What cannot run is left out by static
checks (threads, shared memory, registers); what is left is ranked by a model of waves over the
multiprocessors. A tuner times the first few where there is a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from irc.dialects.types import ITEM_BYTES
from irc.kernels.arithmetic import power_of_two
from irc.kernels.gpu.limits import MAX_REGISTERS, REGISTERS, THREADS, Gpu

LEAST_TILE = 16
"""Rows, columns or products of the smallest tensor-core instruction."""
GROUP = 8
"""Rows of tiles that are computed together, so that their columns are read once into the cache."""
OVERHEAD_REGISTERS = 40
"""Registers for addresses, masks and the loop."""
EPILOGUE_REGISTERS = 0.65
"""Registers a result for each tensor beside it: ptxas orders some loads behind their use."""
LAUNCH_S = 3e-6
"""What one more kernel costs in a stream: between two that depend on each other."""
STEP_S = 6e-7
"""Latency of a step of k whose loads nothing hides: a trip to memory."""
BARRIER_S = 3e-8
"""What the barriers of a step of k cost a block."""
SHARED_BYTES_PER_CLOCK = 128
CLOCK_HZ = 1.7e9
MAX_PARTS = 16
REACHED = 0.8
"""Of a peak, what a good kernel reaches."""


@dataclass(frozen=True)
class Problem:
    """One contraction.

    Attributes:
        batch: matmuls of this size.
        m, n, k: its sizes.
        dtype: of the operands.
        tf32: whether float32 operands may be rounded to TF32.
        epilogue: tensors of the result's size that the epilogue reads.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    tf32: bool = False
    epilogue: int = 0

    @property
    def rate(self) -> str:
        """The row of the peaks that it runs at."""
        return "tf32" if self.tf32 and self.dtype == "f32" else self.dtype

    @property
    def is_plain(self) -> bool:
        """True where the products run on the plain units: no tensor core multiplies float32."""
        return self.rate not in ("f16", "bf16", "tf32")


@dataclass(frozen=True)
class Tile:
    """A candidate: tile of the output, step of k, warps, stages, and parts of k in parallel."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    parts: int = 1

    def options(self) -> dict[str, int]:
        """Return it as a kernel's tile attribute has it; parts are a dim of their own there."""
        return {
            "block_m": self.m,
            "block_n": self.n,
            "block_k": self.k,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def candidates(problem: Problem, gpu: Gpu, *, parts: bool = False) -> list[Tile]:
    """Return the tiles that can run, best first by the model.

    Args:
        problem: what is multiplied.
        gpu: where.
        parts: also with k in parts, which another kernel adds up.

    >>> from irc.kernels.gpu.limits import gpu
    >>> candidates(Problem(1, 4096, 4096, 4096, "f16"), gpu("sm_90"))[0].m
    128
    """
    tiles = [t for t in _space(problem, parts=parts) if refusal(t, problem, gpu) is None]
    return sorted(tiles, key=lambda t: (seconds(t, problem, gpu), _order(t)))


def _order(tile: Tile) -> tuple[int, ...]:
    return (tile.parts, tile.warps, tile.stages, tile.m, tile.n, tile.k)


def _space(problem: Problem, *, parts: bool) -> Iterator[Tile]:
    """The combinations of the hardware's sizes that suit the problem's."""
    # 128 bytes of k are a line of memory, and the widest swizzle of shared memory.
    line = 128 // ITEM_BYTES[problem.dtype]
    steps = (16, 32) if problem.is_plain else (max(line, 32), 2 * line)
    stages = (2, 3) if problem.is_plain else (3, 4)
    split = [p for p in (1, 2, 4, 8, MAX_PARTS) if problem.k % p == 0] if parts else [1]
    for m, n, k, warps, depth, p in product(
        _fitting((16, 32, 64, 128), problem.m),
        _fitting((16, 32, 64, 128, 256), problem.n),
        _fitting(steps, problem.k),
        (4, 8),
        stages,
        split,
    ):
        yield Tile(m, n, k, warps, depth, p)


def _fitting(sizes: Sequence[int], extent: int) -> list[int]:
    """Sizes up to the first that holds the whole extent."""
    enough = [s for s in sizes if s >= extent]
    return [s for s in sizes if not enough or s <= enough[0]]


def refusal(tile: Tile, problem: Problem, gpu: Gpu) -> str | None:
    """Say why a tile cannot run, would spill, or is worse than another; None where it may do."""
    results = tile.m * tile.n / (32 * tile.warps)
    most = power_of_two(max(problem.m, LEAST_TILE)), power_of_two(max(problem.n, LEAST_TILE))
    is_whole = tile.m == min(most[0], 128) or tile.n == min(most[1], 256)
    if results < 2 or (tile.warps > 4 and results < 32):
        return "few results a thread"
    if max(tile.m, tile.n) > 4 * min(tile.m, tile.n) and not is_whole:
        return "a long tile reads more than a square one"
    if shared_bytes(tile, problem) > gpu.block_bytes:
        return "more shared memory than a block may have"
    if registers(tile, problem) > MAX_REGISTERS:
        return "more registers than a thread has"
    if problem.is_plain and tile.k > LEAST_TILE and tile.k * tile.parts >= problem.k:
        return "a single step, whose products are all unrolled into registers"
    if tile.parts > 1 and problem.k // tile.parts < 4 * tile.k:
        return "parts of less than four steps"
    least = 2 if problem.is_plain else 3
    if tile.stages > least and tile.stages > -(-problem.k // (tile.k * tile.parts)):
        return "more stages than steps"
    return None


def shared_bytes(tile: Tile, problem: Problem) -> int:
    """Return the bytes of the stages' operands."""
    return tile.stages * (tile.m + tile.n) * tile.k * ITEM_BYTES[problem.dtype]


def registers(tile: Tile, problem: Problem) -> int:
    """Estimate the registers of a thread.

    Accumulators and what an epilogue computes of them; operands of a step of 16 for the tensor
    cores; for the plain units, whose sums Triton unrolls over the step, a row and a column of the
    thread's tile besides. Each tensor that an epilogue reads is there for all results at once (an
    optimizer's step reads three). Held against ptxas in tests/backends/triton/test_schedules.py.
    """
    threads = 32 * tile.warps
    results = tile.m * tile.n / threads
    width = ITEM_BYTES[problem.dtype] / 4
    beside = EPILOGUE_REGISTERS * results * problem.epilogue
    if problem.is_plain:
        return round(OVERHEAD_REGISTERS + 3 * results * max(width, 1) + beside)
    operands = 2 * LEAST_TILE * (tile.m + tile.n) * width / threads
    return round(OVERHEAD_REGISTERS + 1.6 * results + operands + beside)


def seconds(tile: Tile, problem: Problem, gpu: Gpu) -> float:
    """Return the modelled time of a tile's kernel, and of what adds up its parts.

    The most loaded multiprocessor does ``waves`` of blocks; a block's steps take as long as the
    slowest of arithmetic, reads of shared memory, what a multiprocessor can load, and latency over
    the stages; the whole not less than its bytes from memory and from the cache.
    """
    item = ITEM_BYTES[problem.dtype]
    rows, columns = -(-problem.m // tile.m), -(-problem.n // tile.n)
    blocks = problem.batch * rows * columns * tile.parts
    steps = -(-problem.k // (tile.k * tile.parts))
    resident = max(1, min(
        gpu.shared_bytes // (shared_bytes(tile, problem) + 1024),
        REGISTERS // (32 * tile.warps * registers(tile, problem)),
        THREADS // (32 * tile.warps),
    ))  # fmt: skip
    per_unit = -(-blocks // gpu.multiprocessors)
    rate = REACHED * gpu.flops(problem.rate) / gpu.multiprocessors
    arithmetic = 2 * max(tile.m, LEAST_TILE) * tile.n * tile.k / rate
    shared = _shared_reads(tile, problem, gpu) * item / (SHARED_BYTES_PER_CLOCK * CLOCK_HZ)
    together = min(resident, per_unit)
    latency = STEP_S / ((tile.stages - 1) * together)
    arriving = (tile.m + tile.n) * tile.k * item / (gpu.cache_bytes_per_s / gpu.multiprocessors)
    step = max(arithmetic, shared, latency, arriving) + BARRIER_S / together
    whole = per_unit * steps * step + -(-per_unit // resident) * STEP_S
    cached = blocks * steps * (tile.m + tile.n) * tile.k * item / gpu.cache_bytes_per_s
    moved = (
        problem.batch
        * item
        * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
    )
    # What is hidden is not free: of two tiles that are as fast, the one that reads less.
    time_s = max(whole, cached, moved / gpu.bytes_per_s) + 0.2 * cached
    if tile.parts > 1:
        partial = 4 * problem.batch * problem.m * problem.n * tile.parts
        time_s += LAUNCH_S + 2 * partial / gpu.cache_bytes_per_s
    return time_s


def _shared_reads(tile: Tile, problem: Problem, gpu: Gpu) -> float:
    """Return the elements that a step reads from shared memory: fewer where readers are larger.

    What multiplies together reads its rows and columns once: a thread (half of a warp's threads
    read what others read as well) on the plain units, a warp for mma, four warps for wgmma, the
    whole block for tcgen05.
    """
    tensor = {80: tile.warps, 90: max(1, tile.warps // 4)}.get(gpu.arch, 1)
    readers = 16 * tile.warps if problem.is_plain else tensor
    return 2 * tile.m * tile.n * tile.k / (tile.m * tile.n / readers) ** 0.5


def best_parts(problem: Problem, gpu: Gpu) -> int:
    """Return how many parts of k pay: 1 unless the saving is a fifth, since memory is rewritten.

    >>> from irc.kernels.gpu.limits import gpu
    >>> best_parts(Problem(1, 4096, 4096, 4096, "f16"), gpu("sm_90"))
    1
    >>> best_parts(Problem(1, 64, 512, 16384, "f16"), gpu("sm_90")) > 1
    True
    """
    every = candidates(problem, gpu, parts=True)
    if not every or every[0].parts == 1:
        return 1
    whole = next((t for t in every if t.parts == 1), None)
    if whole is None:
        return every[0].parts
    ratio = seconds(every[0], problem, gpu) / seconds(whole, problem, gpu)
    return every[0].parts if ratio < 0.8 else 1
