"""Attention of bfloat16 on tile registers: the functions that its kernel calls.

Scores lie ``[keys][rows]``: 32 features of 16 keys times packed queries. What is accumulated lies
``[features][rows]``: V turned, times the powers in pairs of keys. K and V are packed once for a
head, tile by tile: ``[keys / 16][depth / 32][16][32]`` and ``[keys / 32][features][32]``, with
zeros where keys or features end inside a tile.
"""

from __future__ import annotations

from dataclasses import replace

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.amx.tiles import Shape
from irc.backends.cpu.attention.blocks import MAX_KEYS, AttentionPlan
from irc.backends.cpu.attention.pairs import MAX_PACKED_BYTES, lies_in_pairs
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, constant
from irc.dialects.attention import AttentionForm

SIDE = tiles.ROWS
"""Rows of a tile, columns of a tile of sums, pairs of a sum."""
STEP = 2 * SIDE
"""Elements that one instruction sums over."""
SUMS = 4
"""Tiles of sums: as many products are under way as their latency has room for."""
LEFT, RIGHT = 4, 5
"""Tiles of A and of B."""


def suits_amx(plan: AttentionPlan) -> bool:
    """True where the machine has tile registers, and pairs lie side by side in memory."""
    form, features = plan.form, plan.features
    if not (features.tiles and features.dot_bf16 and lies_in_pairs(plan)):
        return False
    return is_named(form.chunk) or 2 * sum(packed_elements(form, form.chunk)) <= MAX_PACKED_BYTES


def plan_amx(plan: AttentionPlan) -> AttentionPlan:
    """Return a plan whose blocks of keys are whole steps."""
    chunk = plan.form.chunk
    if is_named(chunk):
        return replace(plan, keys=MAX_KEYS)
    blocks = -(-chunk // MAX_KEYS)
    return replace(plan, keys=_whole(-(-chunk // blocks), STEP))


def _whole(size: int, part: int) -> int:
    return -(-size // part) * part


def padded(form: AttentionForm) -> tuple[int, int]:
    """Return the features of a packed key, and of packed values."""
    return _whole(form.depth, STEP), _whole(form.width, SIDE)


def packed_elements(form: AttentionForm, keys: int) -> tuple[int, int]:
    """Return how many elements some packed keys have, and their values."""
    depth, width = padded(form)
    return _whole(keys, STEP) * depth, _whole(keys, STEP) * width


def configure(b: Builder) -> None:
    """Configure the tiles of a kernel: all are whole."""
    tiles.configure(b, [Shape()] * tiles.TILES)


def keys_across(plan: AttentionPlan) -> int:
    """Return how many tiles of keys are multiplied at once."""
    return 1 if plan.block // SIDE >= SUMS else 2


def define_scores(b: Builder, symbol: str, plan: AttentionPlan) -> None:
    """Define ``void symbol(ptr keys, ptr queries, ptr scores)``.

    ``scores[16 * keys_across][rows] = K Q^T``; queries lie ``[features / 2][rows][2]``.
    """
    f, vectors, across = b.child(), plan.block // SIDE, keys_across(plan)
    depth, _ = padded(plan.form)
    keys, panel, scores = (Operand(PTR, f"%{name}") for name in ("keys", "queries", "scores"))
    line, packed_line = constant(I64, 4 * plan.block), constant(I64, 2 * STEP)
    for left in range(0, vectors, SUMS // across):
        columns = range(left, min(vectors, left + SUMS // across))
        places = [(i, j) for i in range(across) for j in columns]
        for total in range(len(places)):
            tiles.zero(f, total)
        for first in range(0, depth, STEP):
            for total, (i, j) in enumerate(places):
                if j == left:
                    at = f.address(keys, "i16", f.i64(i * SIDE * depth + first * SIDE))
                    tiles.load(f, LEFT, at, packed_line)
                at = f.address(panel, "i32", f.i64(first // 2 * plan.block + j * SIDE))
                tiles.load(f, RIGHT, at, line)
                tiles.dot(f, "bf16ps", total, LEFT, RIGHT)
        for total, (i, j) in enumerate(places):
            at = f.address(scores, "float", f.i64(i * SIDE * plan.block + j * SIDE))
            tiles.store(f, total, at, line)
    f.do("ret void")
    params = f"ptr %keys, ptr %queries, ptr %scores{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def define_values(b: Builder, symbol: str, plan: AttentionPlan) -> None:
    """Define ``void symbol(ptr values, ptr powers, ptr totals, i64 steps)``.

    ``totals[features][rows] += V^T P`` over 32 keys a step; powers lie ``[keys / 2][rows][2]``.
    """
    f, vectors, (_, width) = b.child(), plan.block // SIDE, padded(plan.form)
    values, powers, totals = (Operand(PTR, f"%{name}") for name in ("values", "powers", "totals"))
    steps, line, across = Operand(I64, "%steps"), constant(I64, 4 * plan.block), min(vectors, SUMS)
    down = SUMS // across
    for top in range(0, width // SIDE, down):
        rows = range(top, min(width // SIDE, top + down))
        for left in range(0, vectors, across):
            columns = range(left, min(vectors, left + across))
            places = [(i, j) for i in rows for j in columns]

            def ends(move: str, places: list[tuple[int, int]] = places) -> None:
                for total, (i, j) in enumerate(places):
                    at = f.address(totals, "float", f.i64(i * SIDE * plan.block + j * SIDE))
                    if move == "store":
                        tiles.store(f, total, at, line)
                    elif plan.is_one_block:
                        tiles.zero(f, total)
                    else:
                        tiles.load(f, total, at, line)

            def step(
                at: Operand,
                _: list[Operand],
                places: list[tuple[int, int]] = places,
                first: int = left,
            ) -> list[Operand]:
                x = f.address(values, "i16", f.scale(at, STEP * width))
                y = f.address(powers, "i32", f.scale(at, SIDE * plan.block))
                for total, (i, j) in enumerate(places):
                    if j == first:
                        row = f.address(x, "i16", f.i64(i * SIDE * STEP))
                        tiles.load(f, LEFT, row, constant(I64, 2 * STEP))
                    tiles.load(f, RIGHT, f.address(y, "i32", f.i64(j * SIDE)), line)
                    tiles.dot(f, "bf16ps", total, LEFT, RIGHT)
                return []

            ends("load")
            f.loop(f.i64(0), steps, 1, [], step)
            ends("store")
    f.do("ret void")
    params = f"ptr %values, ptr %powers, ptr %totals, i64 %steps{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")
