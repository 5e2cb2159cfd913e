"""Attention of bfloat16 by dot products of pairs (VDPBF16PS): two multiply-adds of every lane.

Pairs lie along what is summed over: features of q and k, which lie side by side already, and keys,
whose values are packed once for a head: ``[keys / 2][features][2]``. Powers are rounded to
bfloat16, as torch rounds them; denormals count as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.attention.blocks import AttentionPlan
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.dialects.attention import AttentionForm
from irc.dialects.size import Dim, Size

HALVES = "<32 x bfloat>"
DOT = "llvm.x86.avx512bf16.dpbf16ps.512"
ROUND = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
MAX_PACKED_BYTES = 8 << 20
"""Packed values that a thread keeps."""


def suits_pairs(plan: AttentionPlan) -> bool:
    """True where the machine has the instruction, and pairs lie side by side in memory."""
    form, q = plan.form, plan.form.places["q"]
    if not plan.features.dot_bf16 or not lies_in_pairs(plan):
        return False
    if any(map(is_named, (form.chunk, q.offset, *q.strides))):
        return False
    return packed_pairs(form) * form.width * 4 <= MAX_PACKED_BYTES


def lies_in_pairs(plan: AttentionPlan) -> bool:
    """True where features of bfloat16 lie side by side, those of q in pairs."""
    form, q = plan.form, plan.form.places["q"]
    if plan.lanes != 16 or q.dtype != "bf16" or is_named(q.strides[plan.row]):
        return False
    near = all(form.places[role].feature == 1 for role in ("q", "k", "v"))
    return near and form.depth % 2 == 0 and all(map(_is_even, (q.offset, *q.strides)))


def _is_even(number: Dim) -> bool:
    if isinstance(number, Size):
        return all(coefficient % 2 == 0 for _, coefficient in number.terms)
    return number % 2 == 0


def packed_pairs(form: AttentionForm) -> int:
    """Return how many pairs the keys of a part make; none where that is open."""
    return 0 if is_named(form.chunk) else -(-form.chunk // 2)


def dot_tile(
    b: Builder,
    symbol: str,
    shape: tuple[int, int],
    strides: tuple[int, int],
    *,
    accumulate: bool,
    columns: int | None = None,
    apart: int | None = None,
) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile, i64 pairs)``: ``tile[rows][vectors] = A * B``.

    A pair of A is at ``row * strides[0] + pair * strides[1]`` halves; B is ``[pairs][columns]``,
    and rows of the tile lie ``apart`` floats: both as many as the tile has columns, unless given.
    """
    rows, vectors = shape
    width = vectors * 16
    columns, apart = columns or width, apart or width
    f = b.child()
    kind = Type("float", 16)
    f.functions[DOT] = f"declare <16 x float> @{DOT}(<16 x float>, {HALVES}, {HALVES})"
    start, panel, tile = (Operand(PTR, f"%{name}") for name in ("a", "b", "tile"))
    places = [
        f.address(tile, "float", f.i64(i * apart + j * 16))
        for i in range(rows)
        for j in range(vectors)
    ]
    totals = [f.load(kind, p) if accumulate else constant(kind, 0.0) for p in places]

    def halves(value: Operand) -> str:
        return f"{HALVES} {f.emit(value.type, f'bitcast {value} to {HALVES}').ref}"

    def step(pair: Operand, sums: list[Operand]) -> list[Operand]:
        line = f.address(panel, "i32", f.scale(pair, columns))
        ys = [
            halves(f.load(Type("i32", 16), f.address(line, "i32", f.i64(j * 16))))
            for j in range(vectors)
        ]
        base = f.scale(pair, strides[1])
        after: list[Operand] = []
        for i in range(rows):
            at = f.address(start, "i16", f.add(base, f.i64(i * strides[0])))
            x = halves(f.splat(f.load(Type("i32"), at, align=2), 16))
            row = sums[i * vectors : (i + 1) * vectors]
            after += [
                f.emit(kind, f"call <16 x float> @{DOT}({total}, {x}, {y})")
                for y, total in zip(ys, row, strict=True)
            ]
        return after

    totals = f.loop(f.i64(0), Operand(I64, "%pairs"), 1, totals, step)
    for total, place in zip(totals, places, strict=True):
        f.store(total, place)
    f.do("ret void")
    params = f"ptr %a, ptr %b, ptr %tile, i64 %pairs{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def define_pack_values(b: Builder, symbol: str, form: AttentionForm) -> None:
    """Define ``void symbol(ptr from, ptr to, i64 keys)``: rows of V in pairs, an odd one with 0."""
    f, place = b.child(), form.places["v"]
    source, target, keys = Operand(PTR, "%from"), Operand(PTR, "%to"), Operand(I64, "%keys")
    whole = form.width // 32 * 32

    def pair(first: Operand, *, alone: bool) -> None:
        low = f.address(source, "i16", f.scale(first, place.strides[-1]))
        high = f.address(low, "i16", f.i64(place.strides[-1]))
        half = f.binary("lshr", first, f.i64(1))
        line = f.address(target, "i16", f.scale(half, 2 * form.width))

        def features(index: Operand, lanes: int) -> list[Operand]:
            kind = Type("i16", lanes)
            x = f.load(kind, f.address(low, "i16", index), align=2)
            y = constant(kind, 0) if alone else f.load(kind, f.address(high, "i16", index), align=2)
            at = f.address(line, "i16", f.scale(index, 2))
            if lanes == 1:
                f.store(x, at)
                f.store(y, f.address(at, "i16", f.i64(1)))
            else:
                order = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
                f.store(f.shuffle(x, y, order), at, align=2)
            return []

        f.loop(f.i64(0), f.i64(whole), 32, [], lambda i, _: features(i, 32))
        f.loop(f.i64(whole), f.i64(form.width), 1, [], lambda i, _: features(i, 1))

    def both(first: Operand, _: list[Operand]) -> list[Operand]:
        pair(first, alone=False)
        return []

    even = f.binary("and", keys, f.i64(-2))
    f.loop(f.i64(0), even, 2, [], both)
    f.when(f.compare("icmp ne", even, keys), lambda: pair(even, alone=True))
    f.do("ret void")
    params = f"ptr %from, ptr %to, i64 %keys{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def rounded_pairs(b: Builder, first: Sequence[Operand], second: Sequence[Operand]) -> list[Operand]:
    """Round two rows of powers to bfloat16 and put each row's two beside each other."""
    b.functions[ROUND] = f"declare {HALVES} @{ROUND}(<16 x float>, <16 x float>)"
    pairs: list[Operand] = []
    for x, y in zip(first, second, strict=True):
        both = b.emit(Type("i16", 32), f"call {HALVES} @{ROUND}({y}, {x})")
        bits = b.emit(both.type, f"bitcast {HALVES} {both.ref} to <32 x i16>")
        order = [i // 2 + i % 2 * 16 for i in range(32)]
        mixed = b.shuffle(bits, bits, order)
        pairs.append(b.emit(Type("i32", 16), f"bitcast {mixed} to <16 x i32>"))
    return pairs
