"""What scenes are made of: statements of torch, by what compilers get wrong about them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.fuzz.scene_writer import COMPLEX, FLOATS, WHOLE, SceneWriter
from tests.fuzz.scenes import KINDS, Scene


def _real(x: Tensor) -> bool:
    return x.is_floating_point()


def _inexact(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def arithmetic(w: SceneWriter) -> None:
    """Two tensors of any dtypes, or a tensor and a Python number."""
    x = w.pick()
    assert x is not None
    if w.rng.random() < 0.5:
        number = w.rng.choice(("0.5", "2", "-1.5", "3", "True", "0.1"))
        if w.values[x].is_complex() and w.rng.random() < 0.3:
            number = "(1 + 2j)"
        form = w.rng.choice(("{x} + {n}", "{x} * {n}", "{n} - {x}", "{x} / {n}", "{x} - {n}",
                             "torch.add({x}, {x}, alpha={n})", "torch.full_like({x}, {n})",
                             "{x} ** 2"))  # fmt: skip
        w.define(form.format(x=x, n=number), x)
        return
    y = w.pick(lambda t: t.shape == w.values[x].shape) if w.rng.random() < 0.5 else None
    if y is None:
        cut = w.rng.randint(0, w.values[x].ndim)
        y = w.argument(w.values[x].shape[cut:], w.rng.choice((*FLOATS, *COMPLEX, *WHOLE)))
    w.define(w.rng.choice(("{x} + {y}", "{x} * {y}", "{y} - {x}", "torch.where({x} == {x}, {x}, "
                           "{y})", "torch.stack([{x}, {x}])")).format(x=x, y=y), x, y)  # fmt: skip


def function(w: SceneWriter) -> None:
    """A function of one tensor."""
    x = w.pick(_inexact)
    if x is None:
        return
    names = ["sin", "tanh", "neg", "abs", "square", "sigmoid", "cos"]
    if w.values[x].is_complex():
        names = ["sin", "tanh", "neg", "abs", "angle", "conj", "real", "imag", "exp",
                 "conj_physical", "resolve_conj", "view_as_real", "sgn"]  # fmt: skip
    else:
        names += ["relu", "erf", "nn.functional.silu", "nn.functional.gelu", "positive"]
    w.define(f"torch.{w.rng.choice(names)}({x})", x)


def layer(w: SceneWriter) -> None:
    """The module's own layer."""
    x = w.pick(_inexact)
    if x is not None:
        w.define(f"gate({x})", x)


def convert(w: SceneWriter) -> None:
    """A cast that drops nothing which another program would not drop."""
    x = w.pick()
    assert x is not None
    value = w.values[x]
    if value.is_complex():
        kinds: tuple[str, ...] = COMPLEX
    elif value.is_floating_point():
        kinds = (*FLOATS, *COMPLEX)
    else:
        kinds = (*FLOATS, *COMPLEX, "i64", "i32")
    w.define(f"{x}.to({KINDS[w.rng.choice(kinds)]})", x)


def look(w: SceneWriter) -> None:
    """A view."""
    x = w.pick(lambda t: t.ndim > 0)
    if x is not None:
        w.define(view_of(w, x), x)


def view_of(w: SceneWriter, x: str) -> str:
    value = w.values[x]
    dim = w.rng.randrange(value.ndim)
    size = value.shape[dim]
    other = w.rng.randrange(value.ndim)
    first = w.rng.randint(0, size)
    forms = [
        f"{x}.transpose({dim}, {other})", f"{x}.transpose({dim}, {other})", f"{x}.flatten()",
        f"{x}.narrow({dim}, {first}, {w.rng.randint(0, size - first)})",
        f"{x}.unsqueeze({dim})", f"{x}[None]", f"{x}.expand(2, *{x}.shape)", f"{x}.squeeze()",
        f"{x}[{w.rng.randint(0, 3)}:{w.rng.randint(0, 3)}]", f"{x}.movedim({dim}, -1)",
        f"{x}.reshape(-1)", f"{x}.view({x}.shape)", f"{x}[..., ::2]", f"{x}.flip({dim})",
        f"{x}.chunk(2, {dim})[-1]", f"{x}.contiguous()", f"{x}.clone()", f"{x}.detach() + {x}",
    ]  # fmt: skip
    if size:
        forms += [f"{x}.select({dim}, {w.rng.randrange(size)})", f"{x}.unfold({dim}, 1, 1)"]
    if value.ndim >= 2:
        forms += [f"{x}.diagonal(0, 0, -1)", f"{x}.mT", f"{x}.permute({_order(w, value.ndim)})"]
    if value.ndim == 4:
        forms += 3 * [f"{x}.contiguous(memory_format=torch.channels_last)"]
    if value.is_complex():
        forms += [f"{x}.real", f"{x}.imag", f"torch.view_as_real({x})", f"{x}.conj()"]
    span = value.untyped_storage().nbytes() // value.itemsize
    if value.storage_offset() == 0 and span >= 4 and x.startswith("v"):
        forms += [f"{x}.as_strided((2, {span // 2 - 1}), (1, 2))", f"{x}.as_strided((2,), (1,))"]
    return w.rng.choice(forms)


def _order(w: SceneWriter, ndim: int) -> str:
    order = list(range(ndim))
    w.rng.shuffle(order)
    return str(tuple(order))


def write(w: SceneWriter) -> None:
    """A write in place: to a value, a view of one, or an argument."""
    own = w.rng.random() < 0.75
    x = w.pick(lambda t: t.numel() > 0 and not w.is_expanded(t))
    if x is None or (own and not x.startswith("v")):
        base = w.pick(_inexact)
        x = base and w.define(w.rng.choice((f"{base}.clone()", f"{base} * 2")), base)
    if x is None:
        return
    target, value = x, w.values[x]
    if value.ndim and w.rng.random() < 0.6:
        target = w.rng.choice((f"{x}[0]", f"{x}[1:]", f"{x}.transpose(0, -1)", f"{x}[..., ::2]",
                               f"{x}.view(-1)", f"{x}.unsqueeze(0)"))  # fmt: skip
    y = w.pick(lambda t: t.ndim == 0 or t.shape == value.shape)
    forms = ["{t}.mul_(2)", "{t}.add_(1)", "{t}.zero_()", "{t}.neg_()", "{t}.fill_(0.5)",
             "{t}.masked_fill_({t} == {t}, 0.5)"]  # fmt: skip
    if target != x:
        forms += ["{t}[...] = 3"]
    if y is not None and y != x:
        forms += ["{t}.add_({y})", "{t}.copy_({y})", "{t}[...] = {y}"]
    if _real(value):
        forms += ["{t}.tanh_()", "{t}.clamp_(-1, 1)"]
    form = w.rng.choice(forms)
    w.change(x, form.format(t=target, y=y), x, *([y] if "{y}" in form and y else []))


def reduce(w: SceneWriter) -> None:
    """A reduction."""
    x = w.pick(lambda t: t.ndim > 0 and t.numel() > 0)
    if x is None:
        return
    dim = w.rng.randrange(w.values[x].ndim)
    names = ["sum", "sum", "cumsum"]
    if _inexact(w.values[x]):
        names += ["mean", "var", "softmax" if _real(w.values[x]) else "mean", "std"]
    if _real(w.values[x]):
        names += ["amax", "logsumexp", "linalg.vector_norm"]
    w.define(f"torch.{w.rng.choice(names)}({x}, dim={dim})", x)


def multiply(w: SceneWriter) -> None:
    """A product."""
    x = w.pick(lambda t: t.ndim in (2, 3) and _inexact(t) and t.numel() > 0)
    if x is None:
        dtype = w.rng.choice((*FLOATS, *COMPLEX))
        x = w.argument(w.shape(w.rng.choice((2, 2, 3))), dtype)
    value = w.values[x]
    form = w.rng.choice(("{x} @ {x}.mT", "{x}.mT @ {x}", "{x} @ {y}", "F.linear({x}, {y}.mT)"))
    y = ""
    if "{y}" in form:
        shape = (*value.shape[:-2], value.shape[-1], w.rng.choice((1, 3, 8)))
        shape = shape[-2:] if "linear" in form else shape
        y = w.argument(shape, next(n for n, d in KINDS.items() if d == value.dtype))
    w.define(form.format(x=x, y=y), x, *([y] if y else []))


def attend(w: SceneWriter) -> None:
    """Attention, before or after a convolution."""
    dtype = w.rng.choice(FLOATS)
    batch, heads, depth = w.rng.choice((1, 2)), w.rng.choice((1, 2, 3)), w.rng.choice((4, 8, 17))
    rows, keys = w.rng.choice((1, 5, 9)), w.rng.choice((1, 7, 17))
    operands = [w.argument((batch, heads, n, depth), dtype) for n in (rows, keys, keys)]
    weight = w.argument((heads, heads, 1, 1), dtype)
    place = w.rng.randrange(5)
    if place < 3:
        operands[place] = w.define(f"F.conv2d({operands[place]}, {weight})") or operands[place]
    causal = w.rng.random() < 0.4
    attended = w.define(
        f"F.scaled_dot_product_attention({', '.join(operands)}, is_causal={causal})", *operands
    )
    if attended and place == 3:
        w.define(f"F.conv2d({attended}, {weight})", attended)


def convolve(w: SceneWriter) -> None:
    """A convolution of an image that lies in some way."""
    dtype = w.rng.choice(FLOATS)
    inner, outer = w.rng.choice((1, 2, 3)), w.rng.choice((1, 2, 4))
    x = w.pick(lambda t: t.ndim == 4 and t.dtype == KINDS[dtype] and t.shape[1] == inner)
    x = x or w.argument((w.rng.choice((1, 2)), inner, 5, 7), dtype)
    k = w.rng.choice((1, 2, 3))
    weight = w.argument((outer, inner, k, k), dtype)
    w.define(f"F.conv2d({x}, {weight}, padding={w.rng.choice((0, 1))})", x)


def draw(w: SceneWriter) -> None:
    """Random numbers."""
    x = w.pick(_real)
    if x is None:
        return
    form = w.rng.choice(("torch.rand_like({x})", "F.dropout({x}, 0.5, True)", "{x} + "
                         "torch.rand({x}.shape)", "torch.randn_like({x})",
                         "torch.bernoulli(torch.sigmoid({x}))"))  # fmt: skip
    name = w.define(form.format(x=x), x)
    if name is not None:
        w.random.add(name)


def meet(w: SceneWriter) -> None:
    """Another argument in the memory of one."""
    name = w.rng.choice([x.name for x in w.arguments])
    w.shared(name)


MOTIFS: tuple[tuple[Callable[[SceneWriter], None], int], ...] = (
    (arithmetic, 6), (function, 4), (layer, 1), (convert, 3), (look, 6), (write, 4), (reduce, 3),
    (multiply, 2), (attend, 1), (convolve, 1), (draw, 1), (meet, 1),
)  # fmt: skip


def scene(seed: int) -> Scene:
    """Return the scene of a seed."""
    w = SceneWriter(seed)
    kinds = w.rng.choice((FLOATS, FLOATS, COMPLEX, WHOLE))
    w.argument(w.shape(), w.rng.choice(kinds))
    motifs, weights = zip(*MOTIFS, strict=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for motif in w.rng.choices(motifs, weights, k=w.rng.randint(2, 7)):
            motif(w)
    return w.finish()
