"""ATen's matrix products and attention."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, ExternOp, tensor
from irc.dialects.items import holds
from irc.dialects.size import Dim, Size
from irc.dialects.whole_attention import AttentionOp
from irc.frontends.torch.dropping import dropped_attention
from irc.frontends.torch.lowering import Lowering, broadcast_shapes, lowers, number
from irc.ops.attention_ops import Form


def contract(t: Lowering, spec: str, *operands: SSAValue) -> SSAValue:
    """Sum products in the stated dtype, which under autocast is not that of the operands."""
    if t.dtype == "i1":
        t.decline()
    t.require_one_dtype(*operands)
    return t.b.op(ContractOp, [t.b.cast(x, t.dtype) for x in operands], spec=spec)


def plus(t: Lowering, x: SSAValue, bias: SSAValue, alpha: Any = 1, beta: Any = 1) -> SSAValue:
    """Return ``alpha * x + beta * bias``; a beta of 0 leaves out a bias that is nan."""
    if not (holds(alpha, t.dtype) and holds(beta, t.dtype)):
        t.decline()
    x = x if alpha == 1 else t.pointwise("mul", x, alpha)
    if isinstance(beta, int | float) and beta == 0:
        return x
    bias = bias if beta == 1 else t.pointwise("mul", bias, beta)
    return t.pointwise("add", x, bias)


@lowers("linear", numbers="complex")
def linear(
    t: Lowering, input: SSAValue, weight: SSAValue, bias: SSAValue | None = None
) -> SSAValue:
    """Multiply the last dim by a matrix [out, in]."""
    lead = ascii_letters[: tensor(input).ndim - 1]
    out = "Z" if tensor(weight).ndim == 2 else ""
    t.require_one_dtype(*(x for x in (input, weight, bias) if x is not None))
    y = contract(t, f"{lead}Y,{out}Y->{lead}{out}", input, weight)
    return y if bias is None else t.pointwise("add", y, bias)


@lowers("mm", numbers="complex")
def mm(t: Lowering, self: SSAValue, mat2: SSAValue) -> SSAValue:
    """Multiply matrices."""
    return contract(t, "mk,kn->mn", self, mat2)


@lowers("bmm", numbers="complex")
def bmm(t: Lowering, self: SSAValue, mat2: SSAValue) -> SSAValue:
    """Multiply batches of matrices."""
    return contract(t, "bmk,bkn->bmn", self, mat2)


@lowers("addmm", numbers="complex")
def addmm(
    t: Lowering, self: SSAValue, mat1: SSAValue, mat2: SSAValue, *, beta: Any = 1, alpha: Any = 1
) -> SSAValue:
    """Return ``beta * self + alpha * mat1 @ mat2``."""
    t.require_one_dtype(self, mat1)
    return plus(t, contract(t, "mk,kn->mn", mat1, mat2), self, alpha, beta)


@lowers("baddbmm", numbers="complex")
def baddbmm(
    t: Lowering,
    self: SSAValue,
    batch1: SSAValue,
    batch2: SSAValue,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> SSAValue:
    """Return ``beta * self + alpha * batch1 @ batch2``."""
    t.require_one_dtype(self, batch1)
    return plus(t, contract(t, "bmk,bkn->bmn", batch1, batch2), self, alpha, beta)


@lowers("mv", numbers="complex")
def mv(t: Lowering, self: SSAValue, vec: SSAValue) -> SSAValue:
    """Multiply a matrix and a vector."""
    return contract(t, "mk,k->m", self, vec)


@lowers("dot", "inner", numbers="complex")
def dot(t: Lowering, self: SSAValue, other: SSAValue) -> SSAValue:
    """Multiply vectors."""
    return (
        contract(t, "k,k->", self, other)
        if tensor(self).ndim == tensor(other).ndim == 1
        else t.decline()
    )


@lowers("vdot")
def vdot(t: Lowering, self: SSAValue, other: SSAValue) -> SSAValue:
    """Multiply vectors, the first of them conjugated: of real numbers, :func:`dot`."""
    return dot(t, self, other)


@lowers("outer", "ger", numbers="complex")
def outer(t: Lowering, self: SSAValue, vec2: SSAValue) -> SSAValue:
    """Multiply each element by each."""
    return t.pointwise("mul", t.b.reshape(self, (*tensor(self).shape, 1)), vec2)


@lowers("matmul", "__matmul__", numbers="complex")
def matmul(t: Lowering, self: SSAValue, other: SSAValue) -> SSAValue:
    """Multiply the last two dims; dims before them broadcast."""
    left, right = tensor(self).shape, tensor(other).shape
    m, n = ("m" if len(left) > 1 else ""), ("n" if len(right) > 1 else "")
    lead = broadcast_shapes([left[:-2], right[:-2]])
    letters = ascii_letters[26 : 26 + len(lead)]
    self, mine = _without_ones(t, self, lead, letters)
    other, yours = _without_ones(t, other, lead, letters)
    used = [x for x in letters if x in mine or x in yours]
    y = contract(t, f"{mine}{m}k,{yours}k{n}->{''.join(used)}{m}{n}", self, other)
    return t.b.reshape(y, t.shape)


def _without_ones(
    t: Lowering, x: SSAValue, lead: Sequence[Dim], letters: str
) -> tuple[SSAValue, str]:
    """Drop the leading dims of size 1, which another operand stretches."""
    shape = tensor(x).shape
    own = shape[:-2]
    kept = [
        (d, letter)
        for d, letter in zip(own, letters[len(lead) - len(own) :], strict=True)
        if d != 1
    ]
    return t.b.reshape(x, (*(d for d, _ in kept), *shape[len(own) :])), "".join(x for _, x in kept)


@lowers("scaled_dot_product_attention")
def attention(
    t: Lowering,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    attn_mask: SSAValue | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> SSAValue:
    """Keep attention whole, except around dropout."""
    q, k = tensor(query).shape, tensor(key).shape
    if dropout_p >= 1 or len(q) < 3 or len(k) != len(q):
        t.decline()
    if not enable_gqa and q[:-2] != k[:-2]:
        query, key, value = _same_batch(t, query, key, value)
        q, k = tensor(query).shape, tensor(key).shape
    if q[:-3] != k[:-3] or tensor(value).shape[:-2] != k[:-2]:
        t.decline()
    if isinstance(q[-3], int) and isinstance(k[-3], int) and q[-3] % k[-3]:
        t.decline()
    query, key, value = (t.b.cast(x, t.dtype) for x in (query, key, value))
    scale = float(number(q[-1]) ** -0.5) if scale is None else scale
    if dropout_p:
        operands = query, key, value
        return dropped_attention(
            t, operands, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
    inputs = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    return t.b.op(AttentionOp, inputs, is_causal=bool(is_causal), scale=float(scale))


def _same_batch(t: Lowering, *operands: SSAValue) -> list[SSAValue]:
    lead = broadcast_shapes([tensor(x).shape[:-2] for x in operands])
    return [t.b.broadcast(x, (*lead, *tensor(x).shape[-2:])) for x in operands]


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    t: Lowering,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: SSAValue | None = None,
    scale: float | None = None,
) -> list[SSAValue | None]:
    """Keep attention whole; with the log-sums where backward reads them."""
    if not t.read[1]:
        # Heads may be grouped here, without a word that says so.
        options = {"scale": scale, "enable_gqa": True}
        return [attention(t, query, key, value, attn_mask, dropout_p, is_causal, **options), None]
    inputs, form = _whole(t, [query, key, value], attn_mask, dropout_p, is_causal, scale)
    return [*t.b.ops(ExternOp, inputs, results=t.results, **form.forward())]


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    t: Lowering,
    grad_out: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    out: SSAValue,
    logsumexp: SSAValue,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: SSAValue | None = None,
    scale: float | None = None,
) -> list[SSAValue | None]:
    """Keep the gradients of attention whole."""
    operands = [query, key, value, grad_out, out, logsumexp]
    inputs, form = _whole(t, operands, attn_mask, dropout_p, is_causal, scale)
    q, k, v, g, y, sums, *mask = inputs
    ordered = [g, q, k, v, y, sums, *mask]
    return [*t.b.ops(ExternOp, ordered, results=t.results, **form.backward())]


def _whole(
    t: Lowering,
    operands: list[SSAValue],
    mask: SSAValue | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[list[SSAValue], Form]:
    """Return operands and form of attention with log-sums, or of its derivative.

    ``operands`` are those before the mask, q, k and v first. Where the library drops, or a size is
    not known yet, it computes the op.
    """
    inputs = [*operands, *([] if mask is None else [mask])]
    q, k = (tensor(x).shape for x in operands[:2])
    if dropout_p or any(isinstance(d, Size) for x in inputs for d in tensor(x).shape):
        t.decline()
    if len(q) != 4 or q[:-2] != k[:-2] or tensor(operands[2]).shape[:-2] != k[:-2]:
        t.decline()
    factor = number(q[-1]) ** -0.5 if scale is None else scale
    place = None if mask is None else len(operands)
    return inputs, Form(bool(is_causal), float(factor), place)
