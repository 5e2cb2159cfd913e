"""Random programs: motifs that compilers treat specially, chained over one pool of values."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tests.fuzz.motifs import attend, convolve, index, multiply, normalise
from tests.fuzz.program import Program, pruned
from tests.fuzz.writer import Writer

UNARY = (
    "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "erf", "relu", "silu", "gelu", "gelu_tanh",
    "abs", "neg", "floor", "round", "sign", "atan", "asinh", "ceil", "trunc",
)  # fmt: skip
POSITIVE = ("log", "log1p", "sqrt", "rsqrt", "reciprocal")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")


def unary(w: Writer) -> None:
    """One function; logarithms and roots of what is above a half."""
    x = w.floating()
    if w.rng.random() < 0.25:
        lifted = w.emit("abs", x)
        lifted = lifted and w.emit("add_scalar", lifted, value=0.5)
        if lifted:
            w.emit(w.rng.choice(POSITIVE), lifted)
        return
    w.emit(w.rng.choice(UNARY), x)


def binary(w: Writer) -> None:
    """Two operands, one of them broadcast now and then, or a number."""
    x = w.floating()
    if w.rng.random() < 0.3:
        w.emit(w.rng.choice(("add_scalar", "sub_scalar", "mul_scalar", "div_scalar")), x,
               value=w.rng.choice((0.1, -1.5, 2.0, 3.0)))  # fmt: skip
        return
    pair = [x, w.partner(x)]
    w.rng.shuffle(pair)
    w.emit(w.rng.choice(BINARY), *pair)


def select(w: Writer) -> None:
    """A comparison, and a choice by it or by a mask."""
    x = w.floating()
    other = w.partner(x)
    condition = w.emit(w.rng.choice(COMPARE), x, other)
    if condition is None:
        return
    if w.rng.random() < 0.3:
        w.emit("logical_not", condition)
    shape = w.of(condition).shape
    if w.rng.random() < 0.5:
        w.emit("where", condition, x, other)
    elif w.of(x).shape == shape:
        w.emit("where_scalar", w.truth(shape), x, value=w.rng.choice((0.0, -1.0, 7.0)))


def convert(w: Writer) -> None:
    """A cast, or a chain of two."""
    x = w.rng.choice(list(w.pool) or [w.floating()])
    for _ in range(w.rng.choice((1, 1, 2))):
        to = w.rng.choice(("f32", "f32", "f16", "bf16", "f64", "i64", "i32", "i8", "u8", "i1"))
        if w.of(x).is_float and to == "u8":
            x = w.emit("abs", x) or x
        x = w.emit("cast", x, dtype=to) or x


def whole(w: Writer) -> None:
    """Integer arithmetic, also of bools."""
    x = w.integer()
    match w.rng.randrange(5):
        case 0:
            w.emit(w.rng.choice(("add", "sub", "mul", "maximum", "minimum")), x, w.partner(x))
        case 1:
            w.emit(w.rng.choice(("bit_and", "bit_or", "bit_xor")), x, w.partner(x))
        case 2:
            word = w.rng.choice(("floor_div_scalar", "remainder_scalar", "fmod_scalar"))
            w.emit(word, x, value=w.rng.choice((2, 3, 7)))
        case 3:
            w.emit(w.rng.choice(("shift_left", "shift_right")), x, value=w.rng.choice((1, 3)))
        case _:
            flags = w.emit(w.rng.choice(COMPARE), x, w.partner(x))
            if flags:
                other = w.truth(w.of(flags).shape)
                w.emit(w.rng.choice(("logical_and", "logical_or", "logical_xor")), flags, other)


def reduce(w: Writer) -> None:
    """A reduction, and often something that reads it beside its operand."""
    x = w.floating(1) if w.rng.random() < 0.8 else w.integer(1)
    value = w.of(x)
    if not value.value.numel():
        return
    dim, keep = w.rng.randrange(value.value.ndim), w.rng.random() < 0.6
    if not value.is_float:
        # Torch's any of uint8 is uint8: not a case for every target.
        words = ("sum", "amax", "amin", *(("any", "all") if value.dtype != "u8" else ()))
        w.emit(w.rng.choice(words), x, dim=dim, keep=keep)
        return
    match w.rng.randrange(8):
        case 0:
            w.emit("cumsum", x, dim=dim)
        case 1:
            w.emit(w.rng.choice(("argmax", "argmin")), x, dim=dim)
        case 2:
            w.emit("var", x, dim=dim)
        case 3:
            w.emit("sum_all", x)
        case _:
            word = w.rng.choice(("sum", "mean", "amax", "amin"))
            reduced = w.emit(word, x, dim=dim, keep=keep)
            if reduced and keep and w.rng.random() < 0.7:
                w.emit(w.rng.choice(("sub", "add", "mul")), x, reduced)


def move(w: Writer) -> None:
    """A change of place: transposed, reshaped, sliced, joined, padded, stretched."""
    x = w.floating(1) if w.rng.random() < 0.85 else w.integer(1)
    value = w.of(x)
    shape, ndim = value.shape, value.value.ndim
    dim = w.rng.randrange(ndim)
    match w.rng.randrange(8):
        case 0 if ndim >= 2:
            w.emit("transpose", x, a=dim, b=w.rng.randrange(ndim))
        case 1 if ndim >= 2:
            perm = list(range(ndim))
            w.rng.shuffle(perm)
            w.emit("permute", x, perm=tuple(perm))
        case 2 | 3:
            w.emit("reshape", x, shape=_regrouped(w, shape))
        case 4 if shape[dim] > 0:
            start = w.rng.randrange(shape[dim])
            stop = w.rng.randint(start, shape[dim])
            w.emit("slice", x, dim=dim, start=start, stop=stop, step=w.rng.choice((1, 1, 2, 3)))
        case 5:
            other = w.input([w.size() if d == dim else n for d, n in enumerate(shape)], value.dtype)
            third = [x] if w.rng.random() < 0.3 else []
            w.emit("concat3" if third else "concat", x, other, *third, dim=dim)
        case 6 if value.is_float:
            w.emit("pad", x, low=w.rng.randint(0, 3), high=w.rng.randint(0, 2),
                   value=w.rng.choice((0.0, 1.0)))  # fmt: skip
        case _:
            w.emit("expand", x, shape=(w.rng.randint(1, 4), *shape))


def _regrouped(w: Writer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same elements in another shape: neighbours merged, or one dim split."""
    total = prod(shape)
    if w.rng.random() < 0.5 and len(shape) >= 2:
        d = w.rng.randrange(len(shape) - 1)
        return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
    d = w.rng.randrange(len(shape))
    divisors = [n for n in range(1, shape[d] + 1) if shape[d] % n == 0] if total else [1]
    first = w.rng.choice(divisors)
    return (*shape[:d], first, shape[d] // first, *shape[d + 1 :])


MOTIFS: tuple[tuple[Callable[[Writer], None], int], ...] = (
    (unary, 5), (binary, 6), (select, 2), (convert, 2), (whole, 2), (reduce, 4), (move, 5),
    (normalise, 3), (multiply, 4), (index, 2), (attend, 1), (convolve, 1),
)  # fmt: skip


def generate(seed: int, *, simple: bool = False) -> Program:
    """Return the program of a seed.

    Args:
        seed: everything follows from it.
        simple: small sizes, none of them 0, for targets that interpret kernels.
    """
    w = Writer(seed, simple=simple)
    motifs, weights = zip(*MOTIFS, strict=True)
    w.input(w.shape(w.rng.choice((1, 2, 2, 3))))
    for motif in w.rng.choices(motifs, weights, k=w.rng.randint(2, 9)):
        motif(w)
    return pruned(w.finish())
