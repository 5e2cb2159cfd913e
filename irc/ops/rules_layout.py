"""Rules of the ops that only move elements: reshape, transpose, broadcast, slice, pad, concat.

All are linear and monotone: they choose elements and add none, except that pad adds a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from string import ascii_lowercase

from irc.dialects.items import Shape
from irc.dialects.size import Dim, divide
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, TensorTerm
from irc.ops.rules_naming import align, dim_of, letters

ALONE = ((0,),)


def reshape_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of a reshape: the common factors of both shapes, major to minor."""
    source, target = factorise(operands[0][0], results[0][0])
    names: dict[int, str] = {}
    sizes: list[tuple[str, int]] = []
    whole: list[str] = []

    def term(dims: list[list[tuple[int, Dim, bool]]]) -> TensorTerm:
        return tuple(tuple(name(*factor) for factor in dim) for dim in dims)

    def name(key: int, size: Dim, shared: bool) -> str:
        if key not in names:
            count = len(names)
            names[key] = ascii_lowercase[count] if count < 26 else f"f{count}"
            if isinstance(size, int):
                sizes.append((names[key], size))
            if not shared:
                whole.append(names[key])
        return names[key]

    terms = (term(source),), (term(target),)
    alone = {dim[0] for side in terms for tensor in side for dim in tensor if len(dim) == 1}
    kept = tuple((factor, size) for factor, size in sizes if factor not in alone)
    return Rule(*terms, whole=tuple(whole), linear=ALONE, monotone=ALONE, sizes=kept)


Factored = list[list[tuple[int, Dim, bool]]]
"""For each dim its factors (key, size, in both shapes), major to minor."""


def factorise(source: Shape, target: Shape) -> tuple[Factored, Factored]:
    """Split the dims of both shapes into common factors, as far as row-major order allows.

    From the left, the greatest common divisor of the two current dims leads both, because the
    elements that remain to its right are equally many on both sides. Where the sizes have no
    common divisor, dims up to the next place where the products agree have factors of their own.

    >>> [[size for _, size, _ in dim] for dim in factorise((4, 12), (48,))[1]]
    [[4, 12]]
    >>> [[(size, shared) for _, size, shared in dim] for dim in factorise((3, 4), (2, 6))[0]]
    [[(3, False)], [(4, False)]]
    """
    left: Factored = [[] for _ in source]
    right: Factored = [[] for _ in target]
    i = j = key = 0
    a: Dim = 1
    b: Dim = 1
    while True:
        while a == 1 and i < len(source):
            a, i = source[i], i + 1
        while b == 1 and j < len(target):
            b, j = target[j], j + 1
        if a == 1 and b == 1:
            return left, right
        common = _common(a, b)
        if common is None:
            break
        if common != 1:
            left[i - 1].append((key, common, True))
            right[j - 1].append((key, common, True))
            a, b, key = _quotient(a, common), _quotient(b, common), key + 1
            continue
        # Coprime: leave whole until both sides have passed equally many elements.
        x, y = a, b
        left[i - 1].append((key, a, False))
        right[j - 1].append((key + 1, b, False))
        key, a, b = key + 2, 1, 1
        while x != y:
            x, y, i, j, key = _advance(source, target, left, right, (x, y, i, j, key))
    for dims, shape, first, rest in ((left, source, i, a), (right, target, j, b)):
        for dim in range(max(first - 1, 0), len(shape)):
            size = rest if dim == first - 1 else shape[dim]
            if size != 1:
                dims[dim].append((key, size, False))
                key += 1
    return left, right


def _advance(
    source: Shape,
    target: Shape,
    left: Factored,
    right: Factored,
    state: tuple[Dim, Dim, int, int, int],
) -> tuple[Dim, Dim, int, int, int]:
    """Take one more dim on the side that has passed fewer elements."""
    x, y, i, j, key = state
    behind = isinstance(x, int) and isinstance(y, int) and x < y
    if (behind or j == len(target)) and i < len(source):
        left[i].append((key, source[i], False))
        return x * source[i], y, i + 1, j, key + 1
    right[j].append((key, target[j], False))
    return x, y * target[j], i, j + 1, key + 1


def _common(a: Dim, b: Dim) -> Dim | None:
    """Return the common leading factor of two dims; None where it is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return gcd(a, b) if a and b else None
    if a == b or divide(b, a) is not None:
        return a
    return b if divide(a, b) is not None else None


def _quotient(dim: Dim, by: Dim) -> Dim:
    quotient = divide(dim, by)
    assert quotient is not None, (dim, by)
    return quotient


def transpose_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    """Rule of a transpose: the same factors in another order."""
    names = letters(operands[0][0])
    perm: tuple[int, ...] = attrs["perm"]
    result = tuple(names[dim] for dim in perm)
    return Rule((names,), (result,), linear=ALONE, monotone=ALONE)


def broadcast_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    """Rule of a broadcast: new and stretched dims are factors of the result alone."""
    shape = results[0][0]
    names = letters(shape)
    source = align(operands[0][0], shape, names)
    return Rule((source,), (names,), linear=ALONE, monotone=ALONE)


def slice_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of a slice: dims that are taken whole."""
    shape = operands[0][0]
    bounds = zip(attrs["starts"], attrs["stops"], attrs["steps"], shape, strict=True)
    names = tuple(
        name if start == 0 and stop in (-1, size) and step == 1 else ()
        for name, (start, stop, step, size) in zip(letters(shape), bounds, strict=True)
    )
    return Rule((names,), (names,), linear=ALONE, monotone=ALONE)


def pad_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of a pad: dims without padding. Only zeros add up to zeros over the ranks."""
    names = tuple(
        name if low == 0 and high == 0 else ()
        for name, low, high in zip(
            letters(operands[0][0]), attrs["low"], attrs["high"], strict=True
        )
    )
    linear = (
        ALONE
        if attrs["value"] == 0 or max(map(max, attrs["low"], attrs["high"]), default=0) <= 0
        else ()
    )
    return Rule((names,), (names,), linear=linear, monotone=ALONE)


def concat_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of a concatenation: all dims but the joined one; all operands are partial together."""
    joined = dim_of(attrs)
    names = tuple(() if i == joined else n for i, n in enumerate(letters(results[0][0])))
    together = (tuple(range(len(operands))),)
    return Rule((names,) * len(operands), (names,), linear=together, monotone=together)
