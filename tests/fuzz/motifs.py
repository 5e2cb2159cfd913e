"""Motifs that kernels have templates for: norms, products, gathers, attention, convolution."""

from __future__ import annotations

from math import prod

from tests.fuzz.writer import Writer

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")


def normalise(w: Writer) -> None:
    """Softmax, masked softmax, layer norm or RMS norm."""
    x = w.floating(1)
    value = w.of(x)
    shape = value.shape
    if not value.value.numel():
        return
    match w.rng.randrange(5):
        case 0 | 1:
            word = w.rng.choice(("softmax", "softmax", "log_softmax"))
            w.emit(word, x, dim=w.rng.randrange(len(shape)))
        case 2:
            w.emit("masked_softmax", x, w.truth(shape))
        case 3:
            weight, bias = (w.input(shape[-1:], value.dtype) for _ in range(2))
            w.emit("layer_norm", x, weight, bias, eps=1e-2)
        case _:
            w.emit("rms_norm", x, w.input(shape[-1:], value.dtype), eps=1e-2)


def multiply(w: Writer) -> None:
    """A matmul or linear, with something in front of it and behind it now and then."""
    x = w.pick(lambda v: v.is_float and v.value.ndim >= 2 and 0 < prod(v.shape) <= 8000)
    if x is None:
        x = w.input(w.shape(w.rng.choice((2, 2, 3)), least=1))
    if w.rng.random() < 0.3:
        x = w.emit(w.rng.choice(("relu", "tanh", "sigmoid")), x) or x
    value = w.of(x)
    *lead, k = value.shape
    columns = w.size(least=1)
    if prod(lead) * columns * k > 400_000:
        columns = 3
    if w.rng.random() < 0.5:
        weight, bias = w.input((columns, k), value.dtype), w.input((columns,), value.dtype)
        product = w.emit("linear", x, weight, bias)
    else:
        right = w.input((*lead[:-1], k, columns), value.dtype)
        if w.rng.random() < 0.3:
            turned = w.input((*lead[:-1], columns, k), value.dtype)
            right = w.emit("transpose", turned, a=len(lead) - 1, b=len(lead)) or right
        product = w.emit("matmul", x, right)
    if product is None:
        return
    if w.rng.random() < 0.5:
        product = w.emit(w.rng.choice(ACTIVATIONS), product) or product
    if w.rng.random() < 0.5:
        w.emit("add", product, w.partner(product))
    if w.rng.random() < 0.15:
        w.emit("cast", product, dtype=w.rng.choice(("f32", "bf16")))


def index(w: Writer) -> None:
    """Embedding, index_select, gather, scatter, or an in-place write into a copy."""
    x = w.floating(1)
    value = w.of(x)
    shape, ndim = value.shape, value.value.ndim
    if not prod(shape):
        return
    dim = w.rng.randrange(ndim)
    match w.rng.randrange(7):
        case 0 if ndim == 2:
            places = w.input(w.shape(w.rng.choice((1, 2))), "i64", below=shape[0])
            w.emit("embedding", x, places)
        case 1:
            places = w.input((w.size(),), "i64", below=shape[dim])
            w.emit("index_select", x, places, dim=dim)
        case 2:
            wanted = tuple(w.size(least=1) if d == dim else n for d, n in enumerate(shape))
            if prod(wanted) <= 20_000:
                w.emit("gather", x, w.input(wanted, "i64", below=shape[dim]), dim=dim)
        case 3:
            source = w.input(shape, value.dtype)
            w.emit("scatter", x, w.input(shape, "i64", below=-1), source, dim=ndim - 1)
        case 4:
            source, places = w.input(shape, value.dtype), w.input(shape, "i64", below=shape[dim])
            w.emit("scatter_add", x, places, source, dim=dim)
        case 5:
            rows = w.rng.randint(1, shape[0])
            part = w.input((rows, *shape[1:]), value.dtype)
            w.emit(w.rng.choice(("add_into", "set_into")), x, part)
        case _ if ndim >= 2:
            w.emit("tril", x)
        case _:
            w.emit("mul_", x, w.input(shape, value.dtype))


def attend(w: Writer) -> None:
    """Attention: heads shared or not, causal, or under a mask whose rows all have something."""
    batch, heads = w.rng.choice((1, 2)), w.rng.choice((1, 2, 4))
    groups = w.rng.choice([g for g in (1, 2, 4) if heads % g == 0])
    rows, keys = w.rng.choice((1, 5, 17, 33)), w.rng.choice((1, 7, 16, 40))
    depth, width = w.rng.choice((4, 8, 16, 17)), w.rng.choice((8, 16))
    width = depth if w.rng.random() < 0.8 else width
    q = w.input((batch, heads, rows, depth))
    k, v = w.input((batch, groups, keys, depth)), w.input((batch, groups, keys, width))
    if w.rng.random() < 0.5:
        w.emit("attention", q, k, v, causal=w.rng.random() < 0.5)
        return
    if w.rng.random() < 0.5:
        mask = w.input((rows, keys), w.float)
    else:
        mask = w.emit("ge_first", w.input((rows, keys), "i1"))
        assert mask is not None
    w.emit("attention_mask", q, k, v, mask, causal=False)


def convolve(w: Writer) -> None:
    """A small convolution in one or two dims, or a pool."""
    if w.rng.random() < 0.25:
        x = w.input((w.rng.choice((1, 2)), w.rng.choice((1, 3, 16)), 9, w.rng.choice((8, 11))))
        word = w.rng.choice(("max_pool2d", "avg_pool2d"))
        w.emit(word, x, window=w.rng.choice((2, 3)), stride=w.rng.choice((1, 2)),
               pad=w.rng.choice((0, 1)))  # fmt: skip
        return
    dims = w.rng.choice((1, 2, 2))
    groups = w.rng.choice((1, 1, 1, 2, 4))
    inner, outer = groups * w.rng.choice((1, 3, 4)), groups * w.rng.choice((1, 2, 5, 8))
    kernel, dilation = w.rng.choice((1, 2, 3)), w.rng.choice((1, 1, 2))
    side = w.rng.choice((5, 7, 8, 12, 17))
    x = w.input((w.rng.choice((1, 2, 3)), inner, *[side] * dims))
    weight = w.input((outer, inner // groups, *[kernel] * dims))
    convolved = w.emit(
        f"conv{dims}d", x, weight, w.input((outer,)), stride=w.rng.choice((1, 1, 2)),
        pad=w.rng.choice((0, 1)), dilation=dilation, groups=groups,
    )  # fmt: skip
    if convolved and w.rng.random() < 0.6:
        convolved = w.emit(w.rng.choice(ACTIVATIONS), convolved) or convolved
        w.emit("add", convolved, w.partner(convolved))
