"""The functions that attention of many rows calls: packing, copies, and the two register tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irc.backends.cpu.attention.amx_tiles import SIDE, suits_amx
from irc.backends.cpu.attention.blocks import AttentionPlan
from irc.backends.cpu.attention.pairs import define_pack_values, dot_tile, suits_pairs
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.matmul.panels import define_pack
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY, unpack
from irc.dialects.attention import Place

APART = 16
"""Elements between copied rows, so that rows of a power of two do not share a cache set."""


@dataclass(frozen=True)
class Tiles:
    """The register tiles of an attention.

    Attributes:
        vectors: of queries, side by side.
        keys: rows of the tile of scores.
        features: rows of the tile of values.
        pairs: whether both are dot products of pairs of bfloat16.
        copied: which of k and v are copied, a block at a time, before they are read.
        amx: whether those are products of tile registers
            (:mod:`irc.backends.cpu.attention.amx_tiles`).
        late: keys of the tile of scores where only the second of two vectors of rows sees any; 0
            where all keys are computed for both.
    """

    vectors: int
    keys: int
    features: int
    pairs: bool
    copied: frozenset[str]
    late: int = 0
    amx: bool = False


LATE = "_late"
"""Follows the name of a tile for all vectors of rows but the first."""
LATE_KEYS = 8
"""Keys of such a tile: half of those that one vector sees and the one before does not."""


def choose_tiles(plan: AttentionPlan) -> Tiles:
    """Fill the registers, but for those of one row's factors."""
    form, vectors = plan.form, plan.block // plan.lanes
    if suits_amx(plan):
        return Tiles(vectors, SIDE, SIDE, pairs=True, copied=frozenset(), amx=True)
    most = max(1, (24 if plan.features.registers == 32 else 12) // vectors)
    pairs = suits_pairs(plan)
    copied = frozenset(r for r in ("k", "v") if not pairs and _is_copied(form.places[r]))
    keys = most if is_named(form.keys) else min(most, form.keys)
    late = min(LATE_KEYS, keys) if _leaves_keys(plan) else 0
    return Tiles(vectors, keys, _columns(form.width, most), pairs, copied, late)


def _leaves_keys(plan: AttentionPlan) -> bool:
    """True where the diagonal crosses blocks of two vectors of rows."""
    return plan.crosses and plan.block == 2 * plan.lanes


def _columns(width: int, most: int) -> int:
    """Return how many features are accumulated at once: a divisor near the most, or even shares.

    >>> _columns(64, 12), _columns(40, 12), _columns(19, 12)
    (11, 10, 10)
    """
    for columns in range(min(most, width), most * 3 // 4 - 1, -1):
        if columns and width % columns == 0:
            return columns
    return -(-width // -(-width // most))


def _is_copied(place: Place) -> bool:
    """True where rows are copied first: halves, features apart, or one cache set for all rows."""
    if place.dtype != "f32" or place.feature != 1:
        return True
    return not is_named(place.strides[-1]) and place.strides[-1] * 4 % 4096 == 0


def define_functions(b: Builder, plan: AttentionPlan, tiles: Tiles) -> None:
    """Define packing, copying and the two register tiles."""
    form, kind = plan.form, Type("float", plan.lanes)
    for role in ("q", "y0"):
        if role not in form.places:
            continue
        place, symbol = form.places[role], f"irc.attention.pack_{role}"
        strides = (place.feature, place.strides[plan.row])
        if role == "q" and tiles.pairs:
            both, wide = replace(place, dtype="i32"), Type("i32", plan.lanes)
            define_pack(b, symbol, both, (1, strides[1] // 2), wide, plan.block, plan.lanes)
        else:
            define_pack(b, symbol, place, strides, kind, plan.block, plan.lanes)
    if tiles.amx:
        return  # its writer defines the rest
    if tiles.pairs:
        define_pack_values(b, "irc.attention.pack_v", form)
        _define_pair_tiles(b, plan, tiles)
    else:
        for role in sorted(tiles.copied):
            _define_copy(b, plan, role)
        _define_tiles(b, plan, tiles)


def _value_tiles(plan: AttentionPlan, tiles: Tiles) -> set[int]:
    """The features of a tile, and of the last one."""
    return {tiles.features, plan.form.width % tiles.features or tiles.features}


def _define_pair_tiles(b: Builder, plan: AttentionPlan, tiles: Tiles) -> None:
    form = plan.form
    strides = (form.places["k"].strides[-1], 2)
    forms = [("", tiles.keys, tiles.vectors)]
    if tiles.late:
        forms.append((LATE, tiles.late, tiles.vectors - 1))
    for suffix, keys, vectors in forms:
        dot_tile(
            b, f"irc.attention.scores{suffix}", (keys, vectors), strides,
            accumulate=False, columns=plan.block, apart=plan.block,
        )  # fmt: skip
        for count in _value_tiles(plan, tiles):
            dot_tile(
                b, f"irc.attention.values{count}{suffix}", (count, vectors), (2, 2 * form.width),
                accumulate=not plan.is_one_block, columns=plan.block, apart=plan.block,
            )  # fmt: skip


def _define_tiles(b: Builder, plan: AttentionPlan, tiles: Tiles) -> None:
    form, kind, panel = plan.form, Type("float", plan.lanes), Factor("f32", (plan.block, 1))
    keys, values = _factor(plan, tiles, "k", form.depth), _factor(plan, tiles, "v", form.width)
    shapes = {"scores": (tiles.keys, tiles.vectors)}
    if is_named(form.keys) and "k" not in tiles.copied:
        # Fewer keys than a tile has.
        shapes["score"] = (1, tiles.vectors)
        if tiles.late:
            shapes[f"score{LATE}"] = (1, tiles.vectors - 1)
    suffixes = {"": tiles.vectors}
    if tiles.late:
        suffixes[LATE] = tiles.vectors - 1
        shapes[f"scores{LATE}"] = (tiles.late, tiles.vectors - 1)
    for name, shape in shapes.items():
        tile_function(
            b, f"irc.attention.{name}", kind, shape, keys, panel, odd=bool(form.depth % 2),
            apart=plan.block,
        )  # fmt: skip
    turned = Factor(values.dtype, (values.strides[1], values.strides[0]))
    for suffix, vectors in suffixes.items():
        for count in _value_tiles(plan, tiles):
            tile_function(
                b, f"irc.attention.values{count}{suffix}", kind, (count, vectors), turned, panel,
                odd=True, accumulate=not plan.is_one_block, apart=plan.block,
            )  # fmt: skip


def _factor(plan: AttentionPlan, tiles: Tiles, role: str, features: int) -> Factor:
    if role in tiles.copied:
        return Factor("f32", (features + APART, 1))
    place = plan.form.places[role]
    return Factor(place.dtype, (place.strides[-1], place.feature))


def _define_copy(b: Builder, plan: AttentionPlan, role: str) -> None:
    """Define ``void symbol(ptr from, ptr to, i64 keys)``: rows as float32, close together."""
    features = plan.form.depth if role == "k" else plan.form.width
    place, lanes, f = plan.form.places[role], plan.lanes, b.child()
    source, target, memory = Operand(PTR, "%from"), Operand(PTR, "%to"), MEMORY[place.dtype]

    def row(key: Operand, _: list[Operand]) -> list[Operand]:
        start = f.address(source, memory, f.scale(key, place.strides[-1]))
        end = f.address(target, "float", f.scale(key, features + APART))

        def vector(width: int, index: Operand) -> list[Operand]:
            at = f.address(start, memory, f.scale(index, place.feature))
            value = unpack(f, f.load(Type(memory, width), at), place.dtype)
            f.store(value, f.address(end, "float", index))
            return []

        whole = features // lanes * lanes if place.feature == 1 else 0
        f.loop(f.i64(0), f.i64(whole), lanes, [], lambda i, _: vector(lanes, i))
        f.loop(f.i64(whole), f.i64(features), 1, [], lambda i, _: vector(1, i))
        return []

    f.loop(f.i64(0), Operand(Type("i64"), "%keys"), 1, [], row)
    f.do("ret void")
    symbol = f"irc.attention.copy_{role}"
    params = f"ptr %from, ptr %to, i64 %keys{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")
