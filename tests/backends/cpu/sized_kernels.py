"""Kernels written once for numbers and for names: what both compute has to be the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from irc.dialects.attributes import to_attribute
from irc.dialects.mapping import spatial
from irc.dialects.size import Dim, symbol
from irc.dialects.task import KernelOp
from tests.backends.cpu.maker import Maker, strides_of

Build = Callable[..., KernelOp]


def maker(
    space: Sequence[Dim], parallel: int, inputs: Sequence[Any], outputs: Sequence[Any],
    template: str = "rows",
) -> Maker:  # fmt: skip
    """A maker; with names, its mapping is that of one task."""
    named = not all(isinstance(dim, int) for dim in space)
    mapping = spatial(*([1] * parallel)) if named else None
    return Maker(tuple(space), parallel, inputs, outputs, template, mapping)  # type: ignore[arg-type]


def flat(S: Dim) -> KernelOp:
    k = maker((S, 4), 2, [(S * 4, "f32")], [(S * 4, "f32")])
    k.store(k.fn("exp", k.load(0, (4, 1))), 0, (4, 1))
    return k.kernel()


def bias(S: Dim, B: Dim) -> KernelOp:
    k = maker((B, S, 37), 3, [(B * S * 37, "f32"), (37, "f32")], [(B * S * 37, "f32")])
    strides = strides_of((B, S, 37), (0, 1, 2), 3)
    k.store(k.fn("add", k.load(0, strides), k.load(1, (0, 0, 1))), 0, strides)
    return k.kernel()


def by_row(S: Dim, B: Dim) -> KernelOp:
    """A value for each batch, one for each place, and where it is."""
    k = maker((B, S), 2, [(B * S, "f32"), (B, "f32"), (S, "f32")], [(B * S, "f32")])
    x = k.fn("mul", k.load(0, (S, 1)), k.load(1, (1, 0)))
    at = k.fn("cast", k.index(1), dtype="f32")
    k.store(k.fn("add", k.fn("add", x, k.load(2, (0, 1))), at), 0, (S, 1))
    return k.kernel()


def softmax(S: Dim, B: Dim) -> KernelOp:
    k = maker((B * 3, S), 1, [(B * 3 * S, "f32")], [(B * 3 * S, "f32")])
    x = k.load(0, (S, 1))
    e = k.fn("exp", k.fn("sub", x, k.reduce("max", x)))
    k.store(k.fn("div", e, k.reduce("sum", e)), 0, (S, 1))
    return k.kernel()


def norm(S: Dim) -> KernelOp:
    """A norm over rows of a fixed size, of which there are any number."""
    k = maker((S, 129), 1, [(S * 129, "f32"), (129, "f32")], [(S * 129, "f32")])
    x = k.load(0, (129, 1))
    mean = k.fn("div", k.reduce("sum", x), k.constant(129.0))
    d = k.fn("sub", x, mean)
    var = k.fn("div", k.reduce("sum", k.fn("mul", d, d)), k.constant(129.0))
    scale = k.fn("rsqrt", k.fn("add", var, k.constant(1e-5)))
    k.store(k.fn("mul", k.fn("mul", d, scale), k.load(1, (0, 1))), 0, (129, 1))
    return k.kernel()


def mean_of_places(S: Dim, B: Dim) -> KernelOp:
    """A mean over the dim with a name, divided by its size; the lanes are tasks."""
    k = maker((B, 40, S), 2, [(B * S * 40, "f32")], [(B * 40, "f32")])
    total = k.reduce("sum", k.load(0, (S * 40, 1, 40)))
    k.store(k.fn("div", total, k.constant(S)), 0, (40, 1, 0))  # type: ignore[arg-type]
    return k.kernel()


def two_rows_kept(S: Dim) -> KernelOp:
    """Two heavy values that later passes need: two rows of scratch."""
    k = maker((5, S), 1, [(S * 5, "f32"), (S * 5, "f32")], [(S * 5, "f32")])
    x, y = k.fn("exp", k.load(0, (S, 1))), k.fn("tanh", k.load(1, (S, 1)))
    s = k.fn("add", k.reduce("sum", x), k.reduce("sum", k.fn("mul", x, y)))
    k.store(k.fn("add", k.fn("div", x, s), k.fn("mul", y, s)), 0, (S, 1))
    return k.kernel()


def transpose(S: Dim, B: Dim) -> KernelOp:
    k = maker((B, S, 24), 3, [(B * S * 24, "f32")], [(B * S * 24, "f32")])
    k.store(k.fn("neg", k.load(0, (S * 24, 1, S))), 0, (S * 24, 24, 1))
    return k.kernel()


def square(S: Dim, B: Dim) -> KernelOp:
    k = maker((S, B), 2, [(B * S, "f32")], [(B * S, "f32")])
    k.store(k.load(0, (1, S)), 0, (B, 1))
    return k.kernel()


def last_rows(S: Dim) -> KernelOp:
    """All but the first two of S + 2 rows, backwards."""
    k = maker((S, 9), 2, [(S * 9 + 18, "f32")], [(S * 9, "f32")])
    k.store(k.load(0, (-9, 1), offset=S * 9 + 9), 0, (9, 1))  # type: ignore[arg-type]
    return k.kernel()


def take(S: Dim, B: Dim) -> KernelOp:
    """Rows of a table with S rows, by B indices."""
    k = maker((B, 33), 2, [(S * 33, "f32"), (B, "i64")], [(B * 33, "f32")])
    row = k.load(0, (0, 1), index=[k.load(1, (1, 0))], index_strides=(33,), index_counts=(S,))  # type: ignore[arg-type]
    k.store(row, 0, (33, 1))
    return k.kernel()


def half(S: Dim) -> KernelOp:
    k = maker((S, 20), 1, [(S * 20, "bf16")], [(S * 20, "bf16")])
    x = k.load(0, (20, 1))
    k.store(k.fn("sub", x, k.reduce("max", x)), 0, (20, 1))
    return k.kernel()


ROWS: Mapping[str, Build] = {
    f.__name__: f
    for f in (
        flat, bias, by_row, softmax, norm, mean_of_places, two_rows_kept, transpose, square,
        last_rows, take, half,
    )
}  # fmt: skip


def named(build: Build) -> KernelOp:
    """The kernel with names for its sizes."""
    names = build.__annotations__.keys() - {"return"}
    return build(**{name: symbol(name) for name in names})


def on_panels(S: Dim, n: int, k: int, columns: int, dtype: str = "f32") -> KernelOp:
    """``tanh(x @ W + bias) + y`` for any number of rows; W lies in panels (in pairs of k)."""
    pair = 2 if dtype == "bf16" else 1
    panels, depth = -(-n // columns), -(-k // pair) * pair
    inputs = [(S * k, dtype), (panels * columns * depth, dtype), (n, dtype), (S * n, dtype)]
    m = maker((S, n, k), 2, inputs, [(S * n, dtype)], "matmul")
    a, w = m.load(0, (k, 0, 1)), m.load(1, (0, columns * depth, columns * pair))
    load = w.owner
    blocks = (1, columns, pair) if pair == 1 else (1, columns, pair, 2, pair, 1)
    load.properties["blocks"] = to_attribute(blocks)  # type: ignore[union-attr]
    x = m.fn("tanh", m.fn("add", m.contract(a, w), m.load(2, (0, 1, 0))))
    m.store(m.fn("add", x, m.load(3, (n, 1, 0))), 0, (n, 1, 0))
    return m.kernel("mm")


def product(
    space: Sequence[Dim], a: Sequence[Dim], b: Sequence[Dim], dtype: str = "f32"
) -> KernelOp:
    """A product over the last of ``[batch, m, n, k]``, A and B lying as strides say."""
    batch, m, n, k = space
    sizes = [batch * m * k, batch * n * k]
    p = maker(space, 3, [(size, dtype) for size in sizes], [(batch * m * n, dtype)], "matmul")
    c = (m * n, n, 1, 0)
    p.store(p.contract(p.load(0, a), p.load(1, b)), 0, c)  # type: ignore[arg-type]
    return p.kernel("mm")


def scores(S: Dim, B: Dim) -> KernelOp:
    """Queries times keys: rows and columns have names."""
    return product((B, S, S, 40), (S * 40, 40, 0, 1), (S * 40, 0, 40, 1))


def values(S: Dim, B: Dim) -> KernelOp:
    """Probabilities times values: rows and what is summed have names."""
    return product((B, S, 40, S), (S * S, S, 0, 1), (S * 40, 0, 1, 40))


def few_queries(S: Dim) -> KernelOp:
    """Three rows and any number of columns that lie along k."""
    return product((2, 3, S, 70), (210, 70, 0, 1), (S * 70, 0, 70, 1))


def few_values(S: Dim) -> KernelOp:
    """Two rows, a sum of any length."""
    return product((1, 2, 96, S), (2 * S, S, 0, 1), (96 * S, 0, 1, 96))


def gradient(S: Dim) -> KernelOp:
    """A product whose sum goes over rows: both operands lie across it."""
    return product((1, 48, 33, S), (48 * S, 1, 0, 48), (33 * S, 0, 1, 33))


def long_sum(S: Dim) -> KernelOp:
    """A sum that is cut into blocks."""
    return product((1, S, 50, 2100), (2100 * S, 2100, 0, 1), (105000, 0, 2100, 1))


def halves(S: Dim) -> KernelOp:
    return product((2, S, 70, 33), (33 * S, 33, 0, 1), (2310, 0, 33, 1), "bf16")


PRODUCTS: Mapping[str, Build] = {
    f.__name__: f for f in (scores, values, few_queries, few_values, gradient, long_sum, halves)
}
