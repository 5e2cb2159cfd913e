"""The mapping and the tile of a kernel, by target: small closed rules, no search.

A tuner may replace the choice later; whatever it writes is checked by the same verifier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.errors import IrcError, did_you_mean
from irc.kernels.gpu.limits import GPUS, gpu
from irc.kernels.gpu.matmul import Problem, candidates

Template: TypeAlias = Literal["rows", "matmul", "packed", "grouped", "convolution", "outer"]

TARGETS = ("cpu", *GPUS)


def require_target(name: str, known: Collection[str] = TARGETS) -> None:
    """Refuse a target that kernels cannot be made for.

    Raises:
        IrcError: ``target-unknown``.
    """
    if name not in known:
        what = "target" if "cpu" in known else "GPU target"
        raise IrcError("target-unknown", f"no {what} '{name}'", help=did_you_mean(name, known))


CPU_CHUNKS = 32
"""Chunks of a large kernel: enough for 32 threads, and for an even split over a few."""
CPU_CHUNK_POINTS = 8192
"""Points below which a chunk costs more to hand out than to compute (about 2 us)."""
PLACES = 512
"""Places of a convolution that a worker computes: their windows and a panel share a cache."""
CHANNELS = 32
"""Output channels of a worker: a panel of packed weights."""
LINE = 16
"""Float32 elements of a cache line: chunks of contiguous output do not share one."""
GPU_POINTS = 1024
"""Points of one program of a GPU kernel."""
GPU_REDUCED = 4096
"""The longest reduced block that one GPU program holds at once; a longer one loops."""


@dataclass(frozen=True)
class Schedule:
    """How a kernel is divided: the mapping, and the tile sizes that go with it."""

    mapping: TaskMapping
    tile: Mapping[str, int]


def schedule(
    template: Template,
    space: Sequence[int],
    parallel: int,
    target: str,
    dtype: str = "f32",
    epilogue: int = 0,
) -> Schedule:
    """Choose the mapping and tile of a kernel.

    Args:
        template: how it runs.
        space: its iteration space.
        parallel: how many dims of it are tasks.
        target: what it runs on.
        dtype: of a matmul's operands.
        epilogue: tensors of a matmul's size that what follows it reads.

    >>> str(schedule("rows", (1000, 768), 1, "cpu").mapping)
    'spatial(32) * repeat(32)'
    >>> str(schedule("matmul", (64, 2304, 768), 2, "cpu").mapping)
    'spatial(1, 36) * repeat(64, 64)'
    """
    tasks = [max(size, 1) for size in space[:parallel]]
    inner = max(prod(space[parallel:]), 1)
    match template, target:
        case "matmul", "cpu":
            return _cpu_matmul(tasks, inner)
        case "convolution", _:
            return _convolution(tasks)
        case "matmul", _:
            return _gpu_matmul(tasks, inner, target, dtype, epilogue)
        case "rows" | "packed" | "grouped" | "outer", "cpu":
            return _cpu_rows(tasks, inner, reduces=parallel < len(space))
        case _:
            return _gpu_rows(tasks, inner, reduces=parallel < len(space))


def _cpu_rows(tasks: Sequence[int], inner: int, *, reduces: bool) -> Schedule:
    """Chunks over the outer loops, the same for any number of threads."""
    points = prod(tasks) * inner
    wanted = min(CPU_CHUNKS, max(1, points // CPU_CHUNK_POINTS))
    grid, tile = list[int](), list[int]()
    for position, size in enumerate(tasks):
        chunk = -(-size // min(size, wanted))
        if position == len(tasks) - 1 and not reduces and chunk > LINE:
            chunk = -(-chunk // LINE) * LINE
        tile.append(chunk)
        grid.append(-(-size // chunk))
        wanted = -(-wanted // grid[-1])
    return _tiled(grid, tile, {})


def _cpu_matmul(tasks: Sequence[int], k: int) -> Schedule:
    """Tiles near 96 x 64: 16 times six rows of registers, four lines of columns.

    A short m takes all of it; where few tiles are left, the tile halves so that there is work for
    a few cores.
    """
    *batch, m, n = tasks
    block_m = m if m <= 96 else _even(m, 96)
    block_n = n if n <= 64 else 64
    if prod(batch) * -(-m // block_m) * -(-n // block_n) < 8 and m * n * k > 1 << 18:
        block_m = m if m <= 48 else _even(m, 48)
        block_n = n if n <= 32 else 32
    return _matmul(tasks, {"block_m": block_m, "block_n": block_n, "block_k": min(k, 512)})


def _even(size: int, most: int) -> int:
    """Split into equal blocks of at most ``most``, rounded up to six rows.

    >>> _even(100, 96), _even(1024, 96)
    (54, 96)
    """
    block = -(-size // -(-size // most))
    return min(most, -(-block // 6) * 6)


def _convolution(tasks: Sequence[int]) -> Schedule:
    """Whole rows of places by a panel of channels: what one image block and one panel meet in.

    >>> str(_convolution((1, 56, 56, 128)).mapping)
    'spatial(1, 7, 1, 4) * repeat(1, 8, 56, 32)'
    """
    *places, channels = tasks
    tile, left = list[int](), PLACES
    for size in reversed(places):
        block = -(-size // -(-size // max(left, 1)))
        tile.insert(0, block)
        left = left // size if block == size else 0
    tile.append(min(channels, CHANNELS))
    grid = [-(-size // block) for size, block in zip(tasks, tile, strict=True)]
    return _tiled(grid, tile, {})


def _gpu_matmul(tasks: Sequence[int], k: int, target: str, dtype: str, epilogue: int) -> Schedule:
    """The tile that the model of :mod:`irc.kernels.gpu.matmul` puts first."""
    *batch, m, n = tasks
    problem = Problem(prod(batch), m, n, k, dtype, epilogue=epilogue)
    best = candidates(problem, gpu(target))[0].options()
    return _matmul(tasks, {**best, "arch": gpu(target).arch})


def _gpu_rows(tasks: Sequence[int], inner: int, *, reduces: bool) -> Schedule:
    """Whole rows in registers, several short ones to a program; else a run of the last loop."""
    block_r = min(_power_of_two(inner), GPU_REDUCED)
    wanted = max(1, GPU_POINTS // block_r) if reduces else GPU_POINTS
    tile = [1] * (len(tasks) - 1) + [min(wanted, _power_of_two(tasks[-1]))]
    points = tile[-1] * block_r
    sizes = {"num_warps": 8 if points >= 2048 else 4, "num_stages": 1}
    if reduces:
        sizes["block_r"] = block_r
    return _tiled([-(-size // t) for size, t in zip(tasks, tile, strict=True)], tile, sizes)


def _matmul(tasks: Sequence[int], tile: Mapping[str, int]) -> Schedule:
    *batch, m, n = tasks
    block_m, block_n = tile["block_m"], tile["block_n"]
    grid = [*batch, -(-m // block_m), -(-n // block_n)]
    return _tiled(grid, [*[1] * len(batch), block_m, block_n], tile)


def _tiled(grid: Sequence[int], tile: Sequence[int], sizes: Mapping[str, int]) -> Schedule:
    """The grid as workers, the tile as the tasks of one; both atoms stay, also where they are 1."""
    mapping = TaskMapping((*spatial(*grid).atoms, *repeat(*tile).atoms))
    return Schedule(mapping, sizes)


def _power_of_two(size: int) -> int:
    """Round up.

    >>> _power_of_two(768)
    1024
    """
    return 1 << max(size - 1, 0).bit_length()
