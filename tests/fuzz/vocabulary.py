"""The words of random programs: each as torch writes it, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz import meaning as m
from tests.fuzz.meaning import Meaning, scalar

TORCH = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Op:
    """One word.

    Attributes:
        template: an expression over ``{0}``, ``{1}`` and the attributes' names; one with ``{r}`` is
            statements that make the variable ``r``.
        meaning: what it does, given a meaning, the operands, and the attributes by name.
    """

    template: str
    meaning: Callable[..., Any]

    def statement(self, name: str, args: Sequence[str], attrs: Mapping[str, Any]) -> str:
        """Return the statement."""
        shown = {k: TORCH[v] if k == "dtype" else v for k, v in attrs.items()}
        text = self.template.format(*args, r=name, **shown)
        return text if "{r}" in self.template else f"{name} = {text}"


def _fn(name: str) -> Callable[..., Any]:
    return lambda k, *xs: k.fn(name, *xs)


def _with(name: str) -> Callable[..., Any]:
    return lambda k, x, value: scalar(k, name, x, value)


def _reduce(fn: str) -> Callable[..., Any]:
    return lambda k, x, dim, keep: k.reduce(fn, x, (dim,), keep)


def _dims(k: Meaning, x: Any) -> int:
    return len(k.shape(x))


def _sum(k: Meaning, x: Any, dim: int, keep: bool) -> Any:
    x = x if k.dtype(x) in ("f64", "f32", "f16", "bf16") else k.cast(x, "i64")
    return k.reduce("sum", x, (dim,), keep)


def _slice(k: Meaning, x: Any, dim: int, start: int, stop: int, step: int) -> Any:
    shape = k.shape(x)
    starts = [start if d == dim else 0 for d in range(len(shape))]
    stops = [stop if d == dim else n for d, n in enumerate(shape)]
    return k.slice(x, starts, stops, [step if d == dim else 1 for d in range(len(shape))])


def _transpose(k: Meaning, x: Any, a: int, b: int) -> Any:
    perm = list(range(_dims(k, x)))
    perm[a], perm[b] = perm[b], perm[a]
    return k.transpose(x, perm)


def _pad(k: Meaning, x: Any, low: int, high: int, value: float) -> Any:
    lead = [0] * (_dims(k, x) - 1)
    return k.pad(x, [*lead, low], [*lead, high], value)


def _clamp(k: Meaning, x: Any, low: float, high: float) -> Any:
    return scalar(k, "minimum", scalar(k, "maximum", x, low), high)


def _where_scalar(k: Meaning, c: Any, x: Any, value: float) -> Any:
    return k.fn("where", c, x, k.constant(value, k.dtype(x)))


def _triangle(k: Meaning, x: Any) -> Any:
    shape = k.shape(x)
    rows, columns = (k.iota(shape[-2:], dim) for dim in (0, 1))
    zero = k.constant(0, k.dtype(x))
    return k.fn("where", k.fn("le", columns, rows), x, zero)


def _masked_softmax(k: Meaning, x: Any, mask: Any) -> Any:
    lowest = k.constant(float("-inf"), k.dtype(x))
    return m.softmax(k, k.fn("where", mask, x, lowest), _dims(k, x) - 1)


def _attention(k: Meaning, q: Any, key: Any, v: Any, mask: Any = None, *, causal: bool) -> Any:
    if mask is not None:
        b, h, s, _ = k.shape(q)
        mask = k.broadcast(mask, (b, h, s, k.shape(key)[2]))
    return k.attention(q, key, v, mask, causal, k.shape(q)[3] ** -0.5)


def _conv(
    k: Meaning, x: Any, w: Any, bias: Any, stride: int, pad: int, dilation: int, groups: int
) -> Any:
    return k.convolution(x, w, bias, stride, pad, dilation, groups)


def _first_or(k: Meaning, mask: Any) -> Any:
    """A mask whose first column is true, so that no row is empty."""
    column = k.iota(k.shape(mask), 1)
    return k.fn("logical_or", k.fn("eq", column, k.constant(0, "i64")), mask)


def _add_into(k: Meaning, x: Any, y: Any) -> Any:
    """An in-place addition into a copy's first rows: the rest stays."""
    return k.concat([k.fn("add", _slice(k, x, 0, 0, k.shape(y)[0], 1), y),
                     _slice(k, x, 0, k.shape(y)[0], k.shape(x)[0], 1)], 0)  # fmt: skip


def _set_into(k: Meaning, x: Any, y: Any) -> Any:
    return k.concat([y, _slice(k, x, 0, k.shape(y)[0], k.shape(x)[0], 1)], 0)


_UNARY = {
    "exp": "torch.exp", "expm1": "torch.expm1", "sin": "torch.sin", "cos": "torch.cos",
    "tanh": "torch.tanh", "sigmoid": "torch.sigmoid", "erf": "torch.erf", "relu": "torch.relu",
    "silu": "F.silu", "gelu": "F.gelu", "abs": "torch.abs", "neg": "-", "floor": "torch.floor",
    "ceil": "torch.ceil", "round": "torch.round", "trunc": "torch.trunc", "sign": "torch.sign",
    "log": "torch.log", "log1p": "torch.log1p", "sqrt": "torch.sqrt", "rsqrt": "torch.rsqrt",
    "reciprocal": "torch.reciprocal", "atan": "torch.atan", "asinh": "torch.asinh",
    "logical_not": "torch.logical_not", "bit_not": "torch.bitwise_not",
}  # fmt: skip
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "bit_and": "&", "bit_or": "|", "bit_xor": "^",
}  # fmt: skip
_BINARY = {
    "maximum": "torch.maximum", "minimum": "torch.minimum", "logical_and": "torch.logical_and",
    "logical_or": "torch.logical_or", "logical_xor": "torch.logical_xor",
    "floor_div": "torch.floor_divide", "remainder": "torch.remainder", "fmod": "torch.fmod",
}  # fmt: skip

OPS: Mapping[str, Op] = {
    **{n: Op(f"{t}({{0}})", _fn(n)) for n, t in _UNARY.items()},
    **{n: Op(f"{{0}} {t} {{1}}", _fn(n)) for n, t in _INFIX.items()},
    **{n: Op(f"{t}({{0}}, {{1}})", _fn(n)) for n, t in _BINARY.items()},
    **{f"{n}_scalar": Op(f"{{0}} {_INFIX[n]} {{value}}", _with(n))
       for n in ("add", "sub", "mul", "div", "lt", "gt", "bit_and")},
    "gelu_tanh": Op("F.gelu({0}, approximate='tanh')", _fn("gelu_tanh")),
    "shift_left": Op("{0} << {value}", _with("shift_left")),
    "shift_right": Op("{0} >> {value}", _with("shift_right")),
    "floor_div_scalar": Op("{0} // {value}", _with("floor_div")),
    "remainder_scalar": Op("{0} % {value}", _with("remainder")),
    "fmod_scalar": Op("torch.fmod({0}, {value})", _with("fmod")),
    "where": Op("torch.where({0}, {1}, {2})", _fn("where")),
    "where_scalar": Op("torch.where({0}, {1}, {value})", _where_scalar),
    "clamp": Op("torch.clamp({0}, {low}, {high})", _clamp),
    "cast": Op("{0}.to(torch.{dtype})", lambda k, x, dtype: k.cast(x, dtype)),
    "sum": Op("torch.sum({0}, {dim}, keepdim={keep})", _sum),
    "mean": Op("torch.mean({0}, {dim}, keepdim={keep})",
               lambda k, x, dim, keep: m.mean(k, x, (dim,), keep)),
    "amax": Op("torch.amax({0}, {dim}, keepdim={keep})", _reduce("max")),
    "amin": Op("torch.amin({0}, {dim}, keepdim={keep})", _reduce("min")),
    "any": Op("torch.any({0}, {dim}, keepdim={keep})", _reduce("any")),
    "all": Op("torch.all({0}, {dim}, keepdim={keep})", _reduce("all")),
    "sum_all": Op("torch.sum({0})", lambda k, x: k.reduce("sum", x, range(_dims(k, x)), False)),
    "var": Op("torch.var({0}, {dim}, correction=0, keepdim=True)",
              lambda k, x, dim: m.variance(k, x, dim)),
    "argmax": Op("torch.argmax({0}, {dim})", lambda k, x, dim: k.arg_reduce("max", x, dim)),
    "argmin": Op("torch.argmin({0}, {dim})", lambda k, x, dim: k.arg_reduce("min", x, dim)),
    "cumsum": Op("torch.cumsum({0}, {dim})", lambda k, x, dim: k.cumulative("sum", x, dim)),
    "softmax": Op("torch.softmax({0}, {dim})", m.softmax),
    "log_softmax": Op("torch.log_softmax({0}, {dim})",
                      lambda k, x, dim: m.softmax(k, x, dim, log=True)),
    "masked_softmax": Op("torch.softmax({0}.masked_fill(~{1}, -inf), -1)", _masked_softmax),
    "layer_norm": Op("F.layer_norm({0}, {0}.shape[-1:], {1}, {2}, {eps})", m.layer_norm),
    "rms_norm": Op(
        "{r} = {0}.float() if {0}.dtype.itemsize == 2 else {0}\n"
        "{r} = ({r} * torch.rsqrt((({r} * {r}).mean(-1, keepdim=True)) + {eps})).to({0}.dtype)\n"
        "{r} = {r} * {1}", m.rms_norm),
    "matmul": Op("{0} @ {1}", m.matmul),
    "linear": Op("F.linear({0}, {1}, {2})", m.linear),
    "outer": Op("{0}[:, None] * {1}[None, :]",
                lambda k, x, y: k.fn("mul", k.reshape(x, (*k.shape(x), 1)), y)),
    "transpose": Op("{0}.transpose({a}, {b})", _transpose),
    "permute": Op("{0}.permute({perm})", lambda k, x, perm: k.transpose(x, perm)),
    "reshape": Op("{0}.reshape({shape})", lambda k, x, shape: k.reshape(x, shape)),
    "expand": Op("{0}.expand({shape})", lambda k, x, shape: k.broadcast(x, shape)),
    "slice": Op("{0}.narrow({dim}, {start}, {stop} - {start})[(slice(None),) * {dim} + "
                "(slice(None, None, {step}),)]", _slice),
    "concat": Op("torch.cat(({0}, {1}), {dim})", lambda k, x, y, dim: k.concat([x, y], dim)),
    "concat3": Op("torch.cat(({0}, {1}, {2}), {dim})",
                  lambda k, x, y, z, dim: k.concat([x, y, z], dim)),
    "pad": Op("F.pad({0}, ({low}, {high}), value={value})", _pad),
    "tril": Op("torch.tril({0})", _triangle),
    "embedding": Op("F.embedding({1}, {0})", lambda k, table, index: k.take(table, index, 0)),
    "index_select": Op("torch.index_select({0}, {dim}, {1})",
                       lambda k, x, index, dim: k.take(x, index, dim)),
    "gather": Op("torch.gather({0}, {dim}, {1})", lambda k, x, index, dim: k.gather(x, index, dim)),
    "scatter": Op("{0}.scatter({dim}, {1}, {2})",
                  lambda k, x, index, source, dim: k.scatter(x, index, source, dim, "set")),
    "scatter_add": Op("{0}.scatter_add({dim}, {1}, {2})",
                      lambda k, x, index, source, dim: k.scatter(x, index, source, dim, "sum")),
    "add_into": Op("{r} = {0}.clone()\n{r}[:{1}.shape[0]] += {1}", _add_into),
    "set_into": Op("{r} = {0} + 0\n{r}[:{1}.shape[0]] = {1}", _set_into),
    "mul_": Op("{r} = {0}.clone()\n{r}.mul_({1})", _fn("mul")),
    "ge_first": Op("(torch.arange({0}.shape[1]) == 0) | {0}", _first_or),
    "attention": Op("F.scaled_dot_product_attention({0}, {1}, {2}, is_causal={causal}, "
                    "enable_gqa=True)", _attention),
    "attention_mask": Op("F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3}, "
                         "is_causal={causal}, enable_gqa=True)", _attention),
    "conv2d": Op("F.conv2d({0}, {1}, {2}, {stride}, {pad}, {dilation}, {groups})", _conv),
    "conv1d": Op("F.conv1d({0}, {1}, {2}, {stride}, {pad}, {dilation}, {groups})", _conv),
    "max_pool2d": Op("F.max_pool2d({0}, {window}, {stride}, {pad})",
                     lambda k, x, window, stride, pad: k.pool("max", x, window, stride, pad)),
    "avg_pool2d": Op("F.avg_pool2d({0}, {window}, {stride}, {pad})",
                     lambda k, x, window, stride, pad: k.pool("avg", x, window, stride, pad)),
}  # fmt: skip
