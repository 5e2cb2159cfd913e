"""Times the tiles of GPU kernels where there is a GPU, and keeps the best of each.

The table lies in the user's private cache folder, by kernel and device; what is in it is not timed
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, cast

from irc.cluster.cache import read_text, write_text
from irc.dialects.task import KernelOp
from irc.kernels.gpu.tiles import alternatives, tile_key, with_tile

FILE = "gpu-tiles.json"
TUNED_BACKENDS = ("triton",)
"""Backends whose kernels have tiles to choose from, and which time a kernel."""
GAIN = 0.95
"""A tile replaces the model's choice only where it takes less than this part of its time."""
Seconds: TypeAlias = Callable[[KernelOp], float]
Table: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Choice:
    """The tile of a kernel: the kernel with it, its seconds, and how many were timed (0: known)."""

    kernel: KernelOp
    tile: Mapping[str, int]
    seconds: float
    timed: int


def best_tile(kernel: KernelOp, target: str, device: str, seconds: Seconds) -> Choice:
    """Time a kernel's tiles and return the best; one that is known is timed alone.

    Args:
        kernel: mapped for ``target``.
        target: ``sm_90``.
        device: the device's name: another one has a table of its own.
        seconds: runs a kernel and says how long it took; infinity for one that cannot run.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    table, key = load_tiles(), tile_key(kernel, device)
    if key in table:
        tiled = with_tile(kernel, table[key])
        return Choice(tiled, table[key], seconds(tiled), 0)
    tiles = alternatives(kernel, target)
    candidates = [with_tile(kernel, tile) for tile in tiles]
    times = [seconds(candidate) for candidate in candidates]
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > GAIN * times[0]:
        best = 0
    save_tiles({**load_tiles(), key: tiles[best]})
    return Choice(candidates[best], tiles[best], times[best], len(tiles))


def known_tile(kernel: KernelOp, target: str, device: str, table: Table) -> KernelOp | None:
    """Return a kernel with the tile that was the fastest on a device; None where none is known.

    Args:
        kernel: mapped for ``target``.
        target: ``sm_90``.
        device: the device's name.
        table: from :func:`load_tiles`; a tile that is no candidate of the kernel does not count.
    """
    tile = table.get(tile_key(kernel, device))
    if tile is None or tile not in alternatives(kernel, target):
        return None
    return with_tile(kernel, tile)


def timer_of(backend: str) -> Seconds:
    """Return what times kernels of a backend on the device at hand."""
    timing: Any = import_module(f"irc.backends.{backend}.timing")
    return timing.kernel_seconds


def load_tiles() -> Table:
    """Return the table; empty where there is none, or a damaged one.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    text = read_text(FILE)
    try:
        data: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    rows = cast("dict[str, Any]", data)
    return {key: row for key, row in rows.items() if _is_tile(row)}


def save_tiles(table: Table) -> None:
    """Write the table, all of it or nothing.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    write_text(FILE, json.dumps(table, indent=0, sort_keys=True) + "\n")


def _is_tile(row: object) -> bool:
    return isinstance(row, dict) and all(
        isinstance(k, str) and isinstance(v, int) and 0 <= v <= 1 << 20
        for k, v in cast("dict[Any, Any]", row).items()
    )
