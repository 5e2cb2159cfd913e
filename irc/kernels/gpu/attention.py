"""The tiles of a streaming attention kernel on a GPU.

A block holds a tile of query rows and what it has of their sums, and walks over tiles of keys, as
in FlashAttention-2 (arXiv:2307.08691). Few keys a step keep the scores in registers; where there
are too few rows to occupy the device, the keys are cut into parts (Flash-Decoding).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from irc.dialects.attention import AttentionForm
from irc.dialects.size import Dim
from irc.kernels.arithmetic import power_of_two

LEAST_TILE = 16


@dataclass(frozen=True)
class AttentionTile:
    """Query rows and keys of a step, warps, and stages of the loop over keys."""

    rows: int
    keys: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """Return it as a kernel's tile attribute has it."""
        return {
            "block_m": self.rows,
            "block_n": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def candidates(rows: int, keys: int, features: int, dtype: str) -> list[AttentionTile]:
    """Return the tiles that fit registers and shared memory, the one taken untuned first.

    Args:
        rows: of a head (times the heads that share a key where they are few).
        keys: of a head, or of a part.
        features: the larger of the features of keys and values.
        dtype: of the operands.

    >>> candidates(1024, 1024, 64, "f16")[0].options()
    {'block_m': 128, 'block_n': 64, 'num_warps': 8, 'num_stages': 3}
    """
    wide = power_of_two(max(features, LEAST_TILE))
    if dtype == "f32":
        # On the plain units threads hold features of queries and keys: few results each.
        shapes = [(32, 32, 8, 2), (64, 32, 8, 2)] if wide <= 64 else []
        shapes += [(16, 32, 8, 2)] if wide <= 256 else []
        shapes += [(16, 16, 4, 2)]
    elif wide <= 64:
        shapes = [(128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 3), (128, 32, 4, 3)]
    elif wide <= 128:
        shapes = [(128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 3), (64, 32, 4, 3)]
    else:
        shapes = [(64, 32, 4, 2), (64, 32, 8, 2), (32, 32, 4, 2)]
    most = (power_of_two(max(rows, LEAST_TILE)), power_of_two(max(keys, LEAST_TILE)))
    tiles = [AttentionTile(min(m, most[0]), min(n, most[1]), w, s) for m, n, w, s in shapes]
    return list(dict.fromkeys(tiles))


def backward_candidates(rows: int, keys: int, features: int, dtype: str) -> list[AttentionTile]:
    """Return the tiles of a gradient kernel, the one taken untuned first.

    Two sums of a tile by features stay in registers while two products of rows by keys are made, so
    a step is shorter than forward's.

    Args:
        rows: of a head.
        keys: of a head.
        features: the larger of the features of keys and values.
        dtype: of the operands.

    >>> backward_candidates(1024, 1024, 64, "f16")[0].options()
    {'block_m': 32, 'block_n': 64, 'num_warps': 8, 'num_stages': 2}
    """
    wide = power_of_two(max(features, LEAST_TILE))
    if dtype == "f32":
        # The first of each width is one for which ptxas spills nothing on any target.
        if wide <= 32:
            shapes = [(16, 32, 8, 1), (32, 32, 8, 1), (16, 16, 8, 1)]
        elif wide <= 128:
            shapes = [(16, 32, 4, 2), (16, 16, 8, 1)]
        else:
            shapes = [(16, 16, 8, 1)]
    elif wide <= 32:  # with 4 warps, ptxas spills two registers for sm_80
        shapes = [(32, 64, 8, 2), (64, 64, 8, 2), (32, 64, 4, 2)]
    elif wide <= 64:
        shapes = [(32, 64, 8, 2), (32, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 2)]
    elif wide <= 128:
        shapes = [(32, 64, 8, 2), (64, 64, 8, 2), (32, 32, 8, 2)]
    else:
        shapes = [(32, 32, 8, 2), (32, 32, 4, 2), (16, 32, 8, 2)]
    most = (power_of_two(max(rows, LEAST_TILE)), power_of_two(max(keys, LEAST_TILE)))
    tiles = [AttentionTile(min(m, most[0]), min(n, most[1]), w, s) for m, n, w, s in shapes]
    return list(dict.fromkeys(tiles))


def with_sizes(form: AttentionForm, sizes: Callable[[Dim], int]) -> AttentionForm:
    """Return an attention kernel with what ``sizes`` makes of its sizes."""

    def read(dims: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(map(sizes, dims))

    places = {
        role: replace(
            place, size=sizes(place.size), offset=sizes(place.offset), strides=read(place.strides)
        )
        for role, place in form.places.items()
    }
    return replace(form, space=read(form.space), keys=sizes(form.keys), places=places)
