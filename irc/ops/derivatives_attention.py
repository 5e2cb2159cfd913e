"""The derivative of attention (arXiv:2205.14135, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, ExternOp, tensor
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.ops.attention import chances, grouped, lead_letters
from irc.ops.attention_ops import form_of
from irc.ops.derivative import Adjoint, reduced_to


@dataclass(frozen=True)
class _Softmax:
    """What the gradients of q, k, v and the mask share: the softmax, and its scores' gradient."""

    chances: SSAValue
    scores: SSAValue


def attention(at: Adjoint, operand: int) -> SSAValue | None:
    """Keep it whole: forward gives its log-sums too, and one op all gradients.

    Where a mask has a gradient, or a size is not bound yet, the scores are taken apart.
    """
    gradients: list[SSAValue] = at.shared("gradients", lambda: _whole(at))
    return gradients[operand] if gradients else _apart(at, operand)


def _whole(at: Adjoint) -> list[SSAValue]:
    """Return the gradients of q, k and v, or nothing where the scores have to be taken apart."""
    if max(at.wanted) > 2 or any(isinstance(d, Size) for v in at.inputs for d in tensor(v).shape):
        return []
    before, kind = at.op, tensor(at.y)
    form = form_of(at.attrs, len(before.inputs))
    wide = "f32" if kind.dtype in ("f16", "bf16") else kind.dtype
    forward = ExternOp.make(
        before.inputs, [kind, TensorType.of(kind.shape[:-1], wide)], **form.forward()
    )
    forward.attributes.update(before.attributes)
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(forward, before)
    before.outputs[0].replace_all_uses_with(forward.outputs[0])
    g = at.g
    before.detach()
    before.erase()
    q, k, v, *mask = forward.inputs
    form = replace(form, mask=6 if mask else None)
    kinds = [tensor(x) for x in (q, k, v)]
    return at.b.ops(
        ExternOp, [g, q, k, v, *forward.outputs, *mask], results=kinds, **form.backward()
    )


def _apart(at: Adjoint, operand: int) -> SSAValue | None:
    """Compute the softmax ``P`` again from q and k, and from it all gradients.

    ``dV = P^T dO`` and ``dS = P * (dO V^T - sum(dO * O))``; then ``dQ = dS K`` and ``dK = dS^T Q``.
    What heads share a key for is a dim of its own, which the contractions for k and v add up.
    """
    b, lead = at.b, lead_letters(at.kind(1))
    softmax: _Softmax = at.shared("attention", lambda: _softmax(at))
    q, k, scores = f"{lead}rsd", f"{lead}td", f"{lead}rst"
    match operand:
        case 0:
            operands, spec = [_half(at, softmax.scores), at.inputs[1]], f"{scores},{k}->{q}"
        case 1:
            operands, spec = [_half(at, softmax.scores), _grouped(at, at.x)], f"{scores},{q}->{k}"
        case 2:
            operands, spec = [_half(at, softmax.chances), _grouped(at, at.g)], f"{scores},{q}->{k}"
            return b.op(ContractOp, operands, spec=spec)
        case _:
            return _of_mask(at, softmax.scores, operand)
    product = b.op(ContractOp, operands, spec=spec)
    scaled = b.pointwise("mul", product, b.scalar(at.attrs["scale"], tensor(product).dtype))
    return b.reshape(scaled, at.kind(operand).shape)


def _of_mask(at: Adjoint, scores: SSAValue, operand: int) -> SSAValue:
    mask, shape = at.kind(operand), (*at.kind(0).shape[:-1], at.kind(1).shape[-2])
    whole = at.b.reshape(scores, shape)
    return at.b.cast(reduced_to(at.b, whole, mask.shape), mask.dtype)


def _half(at: Adjoint, value: SSAValue) -> SSAValue:
    """Products take the operands' own dtype; the softmax between them is in float32."""
    return at.b.cast(value, at.kind(0).dtype)


def _grouped(at: Adjoint, value: SSAValue) -> SSAValue:
    return grouped(at.b, value, at.kind(1))


def _softmax(at: Adjoint) -> _Softmax:
    b, lead = at.b, lead_letters(at.kind(1))
    q, k, v, *mask = at.inputs
    weights = chances(b, q, k, mask, is_causal=at.attrs["is_causal"], scale=at.attrs["scale"])
    wide = tensor(weights).dtype
    g, y = _grouped(at, at.g), _grouped(at, at.y)
    dweights = b.op(ContractOp, [g, v], spec=f"{lead}rse,{lead}te->{lead}rst")
    product = b.pointwise("mul", b.cast(g, wide), b.cast(y, wide))
    share = b.reduce("sum", product, (tensor(product).ndim - 1,), keep_dims=True)
    off = b.pointwise("sub", b.cast(dweights, wide), share)
    return _Softmax(weights, b.pointwise("mul", weights, off))
