"""The softmax of one block of scores, in place: masks, the largest, powers of two, their sum.

Scores lie ``[keys][rows]``, rows in the lanes, so that all of it is vertical arithmetic. Powers are
``2**(s c - m)`` with ``c = scale log2(e)``: one multiply-add takes the scale along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, log2

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.exponentials import EXP2, ROUND, exp2_of_rest

NEVER = float("-inf")
LOG2E = log2(e)
LOWEST = -3.4028e38 / LOG2E
"""The least that a mask adds: what torch writes for a hidden key, ``finfo.min``, is -inf times
``LOG2E``, and a row of nothing else would be zeros and not the mean of the values."""


@dataclass(frozen=True)
class Block:
    """Scores of a block.

    Attributes:
        scores: address of ``[count][(skip + vectors) * lanes]`` float32.
        count: how many keys.
        kind: the type of a vector.
        vectors: of rows.
        skip: vectors of earlier rows in front of those, which are left alone.
    """

    scores: Operand
    count: Operand
    kind: Type
    vectors: int
    skip: int = 0

    def at(self, b: Builder, key: Operand) -> list[Operand]:
        """Return the addresses of a key's vectors."""
        width = (self.skip + self.vectors) * self.kind.lanes
        row = b.address(self.scores, self.kind.element, b.scale(key, width))
        return [
            b.address(row, self.kind.element, b.i64(v * self.kind.lanes))
            for v in range(self.skip, self.skip + self.vectors)
        ]


Change = Callable[[Operand, Sequence[Operand]], Sequence[Operand]]
"""Given a key and its scores, what they become."""


def masked(b: Builder, mask: Operand, score: Operand) -> Operand:
    """Return scores, in powers of two, with an additive mask; minus infinity hides a key."""
    lowest, never = constant(mask.type, LOWEST), constant(mask.type, NEVER)
    low = b.binary("and", b.compare("fcmp olt", mask, lowest), b.compare("fcmp one", mask, never))
    return b.fma(b.select(low, lowest, mask), constant(mask.type, LOG2E), score)


def largest(b: Builder, block: Block, change: Change | None) -> list[Operand]:
    """Return the largest score of each row; changed ones are stored. NaN is passed over."""

    def step(key: Operand, tops: list[Operand]) -> list[Operand]:
        places = block.at(b, key)
        values: Sequence[Operand] = [b.load(block.kind, place) for place in places]
        if change is not None:
            values = change(key, values)
            for value, place in zip(values, places, strict=True):
                b.store(value, place)
        return [maximum(b, v, top) for v, top in zip(values, tops, strict=True)]

    never = [constant(block.kind, NEVER)] * block.vectors
    if change is not None:
        return b.loop(b.i64(0), block.count, 1, never, step)
    # The latency of one comparison must not be waited for.
    even = b.binary("and", block.count, b.i64(-4))

    def four(key: Operand, tops: list[Operand]) -> list[Operand]:
        maxima: list[Operand] = []
        for u in range(4):
            part = tops[u * block.vectors : (u + 1) * block.vectors]
            maxima += step(b.add(key, b.i64(u)), part)
        return maxima

    tops = b.loop(b.i64(0), even, 4, never * 4, four)
    v = block.vectors
    joined = [
        maximum(b, maximum(b, tops[i], tops[v + i]), maximum(b, tops[2 * v + i], tops[3 * v + i]))
        for i in range(v)
    ]
    return b.loop(even, block.count, 1, joined, step)


def maximum(b: Builder, value: Operand, top: Operand) -> Operand:
    """Return the larger; ``top`` where ``value`` is NaN."""
    return b.select(b.compare("fcmp ogt", value, top), value, top)


Pairs = Callable[[Builder, Sequence[Operand], Sequence[Operand]], Sequence[Operand]]
"""Makes of two rows of powers what is stored for both."""


def powers(
    b: Builder,
    block: Block,
    scale: float | None,
    tops: Sequence[Operand],
    pairs: Pairs | None = None,
    coefficients: Sequence[float] = EXP2,
) -> list[Operand]:
    """Replace scores by ``2**(score * scale - top)``; returns the sum of each row.

    With ``pairs`` each two rows become one, an odd last one with zeros.
    """
    minus = [b.emit(top.type, f"fneg {top}") for top in tops]

    def power(key: Operand) -> list[Operand]:
        values: list[Operand] = []
        for place, less in zip(block.at(b, key), minus, strict=True):
            score = b.load(block.kind, place)
            if scale is None:
                x = b.binary("fadd", score, less)
            else:
                x = b.fma(score, constant(block.kind, scale), less)
            values.append(power_of_two(b, x, coefficients))
        return values

    def keep(key: Operand, values: Sequence[Operand]) -> None:
        for place, value in zip(block.at(b, key), values, strict=True):
            b.store(value, place)

    def add(sums: Sequence[Operand], values: Sequence[Operand]) -> list[Operand]:
        return [b.binary("fadd", total, x) for total, x in zip(sums, values, strict=True)]

    def two(key: Operand, sums: list[Operand]) -> list[Operand]:
        first, second = power(key), power(b.add(key, b.i64(1)))
        if pairs is None:
            keep(key, first)
            keep(b.add(key, b.i64(1)), second)
        else:
            # The row of a pair is one that has been read.
            keep(b.binary("lshr", key, b.i64(1)), pairs(b, first, second))
        half = block.vectors
        return [*add(sums[:half], first), *add(sums[half:], second)]

    def step(key: Operand, sums: list[Operand]) -> list[Operand]:
        last = power(key)
        if pairs is None:
            keep(key, last)
        else:
            none = [constant(block.kind, 0.0)] * block.vectors
            keep(b.binary("lshr", key, b.i64(1)), pairs(b, last, none))
        return add(sums, last)

    even = b.binary("and", block.count, b.i64(-2))
    zeros = [constant(block.kind, 0.0)] * block.vectors
    sums = b.loop(b.i64(0), even, 2, zeros * 2, two)
    joined = [b.binary("fadd", x, y) for x, y in zip(sums, sums[block.vectors :], strict=False)]
    return b.loop(even, block.count, 1, joined, step)


def power_of_two(b: Builder, x: Operand, coefficients: Sequence[float] = EXP2) -> Operand:
    """Return 2**x for x <= 0: relative error 1.1 ulp above -126.5, exactly 0 below; NaN passes.

    Fewer coefficients (``EXP2_HALF``) give powers that are to be rounded.

    Adding 1.5 * 2**23 + 127 leaves the biased exponent of 2**rint(x) in the low bits.
    """
    low = constant(x.type, -127.0)
    x = b.select(b.compare("fcmp olt", x, low), low, x)
    magic = constant(x.type, ROUND + 127.0)
    shifted = b.binary("fadd", x, magic)
    rest = b.binary("fsub", x, b.binary("fsub", shifted, magic))
    bits = b.convert("bitcast", shifted, "i32")
    bits = b.binary("shl", bits, constant(bits.type, 23))
    return b.binary(
        "fmul", exp2_of_rest(b, rest, coefficients), b.convert("bitcast", bits, "float")
    )
