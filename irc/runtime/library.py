"""The meaning of every flow op in torch: one function per op, by name.

Interpreters of all levels run these, and so does a plan for the ops that it leaves to a library.
Nothing here needs xdsl; torch is imported on the first call.
"""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.errors import IrcError
from irc.ops.custom import declaration
from irc.ops.pointwise import POINTWISE
from irc.runtime import effects
from irc.runtime.index_bounds import INDEXED, bounded

if TYPE_CHECKING:
    import torch

Attrs: TypeAlias = Mapping[str, Any]
Results: TypeAlias = Sequence[tuple[tuple[int, ...], str]]
Kernel: TypeAlias = Callable[..., Any]


def run(
    name: str, attrs: Attrs, inputs: Sequence[torch.Tensor], results: Results
) -> list[torch.Tensor]:
    """Run a flow op.

    Args:
        name: the op, ``flow.contract``.
        attrs: its attributes as Python values.
        inputs: operands; those of a float op may have any float dtype (float64 for checking).
        results: shape and dtype of each result, as the op states them.

    Raises:
        IrcError: ``index-out-of-range``.
    """
    if name in INDEXED:
        found = bounded(name, attrs, inputs, lambda: LIBRARY[name](attrs, list(inputs), results))
    else:
        found = LIBRARY[name](attrs, list(inputs), results)
    return list(found) if isinstance(found, tuple | list) else [found]


@cache
def dtypes() -> dict[str, torch.dtype]:
    """Return torch's dtype for each of irc's dtype names."""
    import torch

    return {
        "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
        "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
        "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
        "i1": torch.bool, "c32": torch.complex32, "c64": torch.complex64, "c128": torch.complex128,
    }  # fmt: skip


@cache
def dtype_names() -> dict[torch.dtype, str]:
    """Return irc's dtype name for each of torch's dtypes."""
    return {dtype: name for name, dtype in dtypes().items()}


# fmt: off
SPECIAL: Mapping[str, Callable[..., Any]] = {
    "trunc_div":   lambda t, a, b: t.div(a, b, rounding_mode="trunc"),
    "gelu_tanh":   lambda t, a: t.nn.functional.gelu(a, approximate="tanh"),
    "gelu":        lambda t, a: t.nn.functional.gelu(a),
    "silu":        lambda t, a: t.nn.functional.silu(a),
    "relu":        lambda t, a: t.relu(a),
    "logical_and": lambda t, a, b: t.logical_and(a, b),
    "logical_or":  lambda t, a, b: t.logical_or(a, b),
    "logical_xor": lambda t, a, b: t.logical_xor(a, b),
}
# fmt: on


def _pointwise(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    fn = attrs["fn"]
    if fn == "cast":
        dtype = dtypes()[results[0][1]]
        if dtype.is_floating_point and inputs[0].dtype == torch.float64:
            return inputs[0]
        return inputs[0].to(dtype)
    if fn in SPECIAL:
        return SPECIAL[fn](torch, *inputs)
    name = POINTWISE[fn].reference.removeprefix("aten::")
    return getattr(torch.ops.aten, name)(*inputs)


def _constant(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    (shape, dtype), values = results[0], attrs["value"]
    if len(values) == 1:
        return torch.full(shape, values[0], dtype=dtypes()[dtype])
    return torch.tensor(values, dtype=dtypes()[dtype]).reshape(shape)


def _iota(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    (shape, dtype), dim = results[0], attrs["dim"]
    line = torch.arange(shape[dim], dtype=dtypes()[dtype])
    return (
        line.reshape([-1 if i == dim else 1 for i in range(len(shape))]).expand(shape).contiguous()
    )


def _contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    if inputs[0].dtype == torch.bool:  # einsum has none of bool: whether any product is true
        return torch.einsum(attrs["spec"], *[t.to(torch.int64) for t in inputs]).to(torch.bool)
    return torch.einsum(attrs["spec"], *inputs)


def _packed_contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.packed_weights import contract

    window, groups = attrs.get("window"), attrs.get("groups")
    return contract(inputs, attrs["bits"], attrs.get("zero", 0.0), window, groups)


def _grouped_contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.grouped import contract_panels

    return contract_panels(*inputs)


def _grouped_outer(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.grouped import outer_products

    x, g, index = inputs
    return outer_products(x, g, index, attrs["count"])


def _reduce(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    (x,), dims, keep = inputs, tuple(attrs["dims"]), attrs["keep_dims"]
    match attrs["fn"]:
        case "sum":
            return torch.sum(x, dims, keep, dtype=x.dtype) if dims else x.clone()
        case "max" | "min" as fn if any(x.shape[dim] == 0 for dim in dims):
            # Torch refuses these; the kernels, and ONNX, give what no element can change.
            least, most = -torch.inf, torch.inf
            if not x.is_floating_point():
                least, most = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
            shape = torch.sum(x, dims, keep).shape
            return torch.full(shape, least if fn == "max" else most, dtype=x.dtype)
        case "max":
            return torch.amax(x, dims, keep) if dims else x.clone()
        case "min":
            return torch.amin(x, dims, keep) if dims else x.clone()
        case "any" | "all" as fn:
            found = x.to(torch.bool)
            for dim in sorted(dims, reverse=True):
                found = getattr(torch, fn)(found, dim, keep)
            return found
        case "prod":
            for dim in sorted(dims, reverse=True):
                x = torch.prod(x, dim, keep, dtype=x.dtype)
            return x
        case fn:
            raise KeyError(f"flow.reduce has no function {fn!r}")


def _arg_reduce(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    fn = torch.argmax if attrs["fn"] == "max" else torch.argmin
    return fn(inputs[0], attrs["dim"], attrs["keep_dims"])


def _cumulative(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    x, dim, fn = inputs[0], attrs["dim"], attrs["fn"]
    if attrs["reverse"]:
        x = x.flip(dim)
    match fn:
        case "sum":
            y = torch.cumsum(x, dim, dtype=x.dtype)
        case "prod":
            y = torch.cumprod(x, dim, dtype=x.dtype)
        case "max":
            y = torch.cummax(x, dim).values
        case _:
            y = torch.cummin(x, dim).values
    if attrs["exclusive"]:
        neutral = {"sum": 0, "prod": 1, "max": -torch.inf, "min": torch.inf}[fn]
        head = torch.full_like(y.narrow(dim, 0, min(1, y.shape[dim])), neutral)
        y = torch.cat([head, y.narrow(dim, 0, max(y.shape[dim] - 1, 0))], dim)
    return y.flip(dim) if attrs["reverse"] else y


def _slice(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    x = inputs[0]
    bounds = zip(attrs["starts"], attrs["stops"], attrs["steps"], x.shape, strict=True)
    return x[tuple(slice(a, n if b == -1 else b, s) for a, b, s, n in bounds)]


def _concat(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    return torch.cat(inputs, attrs["dim"])


def _pad(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    amounts = [n for pair in zip(attrs["low"], attrs["high"], strict=True) for n in pair[::-1]][
        ::-1
    ]
    x = inputs[0]
    value = attrs["value"] if x.dtype.is_floating_point else int(attrs["value"])
    if x.dtype == torch.bool:
        return torch.nn.functional.pad(x.to(torch.uint8), amounts, value=value).to(torch.bool)
    return torch.nn.functional.pad(x, amounts, value=value)


def _take(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    table, indices = inputs
    found = torch.index_select(table, attrs["dim"], indices.reshape(-1))
    dim = attrs["dim"]
    return found.reshape((*table.shape[:dim], *indices.shape, *table.shape[dim + 1 :]))


def _scatter(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    x, index, source = inputs
    if attrs["fn"] == "set":
        return x.scatter(attrs["dim"], index, source)
    reduce = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}[attrs["fn"]]
    return x.scatter_reduce(attrs["dim"], index, source, reduce)


def _convolution(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    x, w, *bias = inputs
    low, high = attrs["low"], attrs["high"]
    if attrs.get("flipped"):
        w = w.flip(tuple(range(2, w.ndim)))
    padding: tuple[int, ...] = tuple(low)
    if tuple(low) != tuple(high) or any(p < 0 for p in low):
        around = {"low": (0, 0, *low), "high": (0, 0, *high), "value": 0.0}
        x, padding = _pad(around, [x], results), (0,) * len(low)
    return torch.ops.aten.convolution(
        x,
        w,
        bias[0] if bias else None,
        list(attrs["strides"]),
        list(padding),
        list(attrs["dilations"]),
        False,
        [0] * len(low),
        attrs["groups"],
    )


def _pool(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    x, window = inputs[0], tuple(attrs["window"])
    if attrs["fn"] == "avg" and x.dtype in (torch.float16, torch.bfloat16):
        return _pool(attrs, [x.float()], results).to(x.dtype)  # sums of halves are in float32
    n, lead = len(window), inputs[0].ndim - len(window)
    low, high = tuple(attrs["low"]), tuple(attrs["high"])
    # Windows that reach past the stated padding (ceil mode) see padding too: extend `high`.
    spans = [
        (size - 1) * s + d * (k - 1) + 1
        for size, s, d, k in zip(
            results[0][0][lead:], attrs["strides"], attrs["dilations"], window, strict=True
        )
    ]
    extra = [
        max(span - (size + lo), -(10**9))
        for span, size, lo in zip(spans, x.shape[lead:], low, strict=True)
    ]
    full = {"low": (0,) * lead + low, "high": (0,) * lead + tuple(extra), "value": 0.0}
    is_max = attrs["fn"] == "max"
    neutral = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padded = _pad({**full, "value": neutral if is_max else 0.0}, [x], results)
    for i, (k, s, d) in enumerate(zip(window, attrs["strides"], attrs["dilations"], strict=True)):
        padded = padded.unfold(lead + i, d * (k - 1) + 1, s)[..., ::d]
    axes = tuple(range(-n, 0))
    if is_max:
        return padded.amax(axes)
    ones = torch.ones(x.shape[lead:], dtype=x.dtype)
    if attrs["count_padding"]:
        ones = _pad({"low": low, "high": high, "value": 1.0}, [ones], results)
        tail = [e - h for e, h in zip(extra, high, strict=True)]
        ones = _pad({"low": (0,) * n, "high": tuple(tail), "value": 0.0}, [ones], results)
    else:
        ones = _pad({"low": low, "high": tuple(extra), "value": 0.0}, [ones], results)
    for i, (k, s, d) in enumerate(zip(window, attrs["strides"], attrs["dilations"], strict=True)):
        ones = ones.unfold(i, d * (k - 1) + 1, s)[..., ::d]
    return padded.sum(axes) / ones.sum(axes)


def _sort(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    return tuple(
        torch.sort(inputs[0], dim=attrs["dim"], descending=attrs["descending"], stable=True)
    )


def _top_k(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    # A stable sort gives the lowest index among equals, on every device and any shard.
    values, indices = torch.sort(
        inputs[0], dim=attrs["dim"], descending=attrs["largest"], stable=True
    )
    return values.narrow(attrs["dim"], 0, attrs["k"]), indices.narrow(attrs["dim"], 0, attrs["k"])


def _attention(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    q, k, v, *mask = inputs
    heads, groups = (q.shape[-3], k.shape[-3]) if q.ndim > 2 and k.ndim > 2 else (1, 1)
    if heads != groups:
        k = k.repeat_interleave(heads // groups, -3)
        v = v.repeat_interleave(heads // groups, -3)
    # No mask with is_causal in torch: join them.
    bias = mask[0] if mask else None
    if bias is not None and bias.dtype.is_floating_point:
        bias = bias.to(q.dtype)
    if bias is not None and attrs["is_causal"]:
        causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        bias = (
            (bias & causal) if bias.dtype == torch.bool else bias.masked_fill(~causal, -torch.inf)
        )
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=attrs["is_causal"] and bias is None, scale=attrs["scale"]
    )


def _random(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    shape, dtype = results[0]
    drawn = torch.empty(prod(shape), dtype=dtypes()[dtype])
    # Part by part: the numbers on the way take several times the memory of the result.
    for first in range(0, len(drawn), RANDOM_PART):
        part = drawn[first : first + RANDOM_PART]
        part.copy_(_drawn(attrs, inputs, shape, first, len(part)))
    return drawn.reshape(shape)


def _drawn(
    attrs: Attrs, inputs: Sequence[torch.Tensor], shape: Sequence[int], first: int, count: int
) -> torch.Tensor:
    import torch

    # Element i is a function of (seed, stream, i) alone: splitmix64 of a counter, so any shard of
    # the tensor can be drawn by itself (Steele et al., OOPSLA 2014, section 3).
    # Seeds and streams are hashed first: else those of the next step would be these, moved along.
    start = _splitmix64(_splitmix64(inputs[0].to(torch.int64)) ^ attrs["stream"])
    counter = _places(shape, attrs, inputs, first, count) + start
    uniform = (_splitmix64(counter) >> 11 & (1 << 53) - 1).to(torch.float64) * 2.0**-53
    if attrs["distribution"] == "normal":
        other = (_splitmix64(counter ^ 0x2545F491) >> 11 & (1 << 53) - 1).to(
            torch.float64
        ) * 2.0**-53
        uniform = torch.sqrt(-2 * torch.log1p(-uniform)) * torch.cos(2 * torch.pi * other)
    return uniform


RANDOM_PART = 1 << 16
"""So many numbers are drawn at a time."""


def _places(
    shape: Sequence[int], attrs: Attrs, inputs: Sequence[torch.Tensor], first: int, count: int
) -> torch.Tensor:
    """Return the row-major places of some elements, in the whole tensor if this is a shard of one.

    Args:
        shape: of the shard.
        attrs: with ``strides``, the steps of the shard's dims in the whole tensor.
        inputs: the seed, and the place of the shard's first element.
        first: the row-major number of the first element in the shard.
        count: how many.
    """
    import torch

    here = torch.arange(first, first + count, dtype=torch.int64)
    if "strides" not in attrs:
        return here
    places = inputs[1].to(torch.int64).reshape(1)
    for size, stride in zip(shape[::-1], attrs["strides"][::-1], strict=True):
        places = places + here % size * stride
        here = here // size
    return places


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    x = x + -0x61C8864680B583EB
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & (1 << 33) - 1)


def _extern(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    target: str = attrs["target"]
    if target.startswith("onnx::"):
        from irc.runtime import onnx_library
        from irc.runtime.onnx_ops.run import decoded

        return onnx_library.run(target, decoded(attrs["arguments"]), inputs, results)
    arguments = json.loads(attrs["arguments"])
    if target == "irc::vjp":
        from irc.runtime import vjp

        return vjp.run(arguments, inputs)
    import torch

    positional, keywords = called_with(arguments, inputs)
    if target == effects.TARGET:
        return effects.run(_operator, positional, keywords)
    found = _operator(target)(*positional, **keywords)
    flat = list(found) if isinstance(found, tuple | list) else [found]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _operator(target: str) -> Callable[..., Any]:
    """Return the reference that an op's declaration gives, else torch's own op.

    Raises:
        IrcError: ``op-undeclared``, where this process has neither.
    """
    known = declaration(target)
    if known is not None and (reference := known.run()) is not None:
        return reference
    if (found := own_op(target)) is None:
        raise IrcError(
            "op-undeclared",
            f"this process has no op {target}",
            because="no package registers it with torch or under the entry point 'irc.ops'",
            help=f"import the module that defines {target} before, or declare an entry point",
        )
    return found


def own_op(target: str) -> Callable[..., Any] | None:
    """Return torch's op of a name, ``namespace::name.overload``; None where it has none."""
    import torch

    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        return None


def called_with(
    arguments: Sequence[Any], inputs: Sequence[torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments of a ``flow.extern`` with its operands in place."""
    positional, keywords = arguments
    # A keyword may be called "dtype", as the JSON form of one is.
    return _fill(positional, inputs), {k: _fill(v, inputs) for k, v in keywords.items()}


def _fill(value: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """Put operands, dtypes and special floats in place of their JSON forms."""
    match value:
        case {"operand": index}:
            return inputs[index]
        case {"dtype": name}:
            return dtypes()[name]
        case {"float": text}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(real, imaginary)
        case dict():
            return {key: _fill(item, inputs) for key, item in value.items()}
        case list():
            return [_fill(item, inputs) for item in value]
        case _:
            return value


LIBRARY: Mapping[str, Kernel] = {
    "flow.pointwise": _pointwise,
    "flow.constant": _constant,
    "flow.iota": _iota,
    "flow.contract": _contract,
    "flow.packed_contract": _packed_contract,
    "flow.grouped_contract": _grouped_contract,
    "flow.grouped_outer": _grouped_outer,
    "flow.reduce": _reduce,
    "flow.arg_reduce": _arg_reduce,
    "flow.cumulative": _cumulative,
    "flow.reshape": lambda attrs, inputs, results: inputs[0].reshape(results[0][0]),
    "flow.transpose": lambda attrs, inputs, results: inputs[0].permute(attrs["perm"]),
    "flow.broadcast": lambda attrs, inputs, results: inputs[0].expand(results[0][0]),
    "flow.slice": _slice,
    "flow.concat": _concat,
    "flow.pad": _pad,
    "flow.take": _take,
    "flow.gather": lambda attrs, inputs, results: inputs[0].gather(attrs["dim"], inputs[1]),
    "flow.scatter": _scatter,
    "flow.convolution": _convolution,
    "flow.pool": _pool,
    "flow.sort": _sort,
    "flow.top_k": _top_k,
    "flow.random": _random,
    "flow.attention": _attention,
    "flow.extern": _extern,
}
