"""The derivative of attention (arXiv:2205.14135, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, tensor
from irc.ops.attention import chances, grouped, lead_letters
from irc.ops.derivative import Adjoint, reduced_to


@dataclass(frozen=True)
class _Softmax:
    """What the gradients of q, k, v and the mask share: the softmax, and its scores' gradient."""

    chances: SSAValue
    scores: SSAValue


def attention(at: Adjoint, operand: int) -> SSAValue | None:
    """Compute the softmax ``P`` again from q and k, and from it all gradients.

    ``dV = P^T dO`` and ``dS = P * (dO V^T - sum(dO * O))``; then ``dQ = dS K`` and ``dK = dS^T Q``.
    What heads share a key for is a dim of its own, which the contractions for k and v add up.
    """
    b, lead = at.b, lead_letters(at.kind(1))
    made: _Softmax = at.shared("attention", lambda: _softmax(at))
    q, k, scores = f"{lead}rsd", f"{lead}td", f"{lead}rst"
    match operand:
        case 0:
            given, spec = [_half(at, made.scores), at.inputs[1]], f"{scores},{k}->{q}"
        case 1:
            given, spec = [_half(at, made.scores), _grouped(at, at.x)], f"{scores},{q}->{k}"
        case 2:
            given, spec = [_half(at, made.chances), _grouped(at, at.g)], f"{scores},{q}->{k}"
            return b.op(ContractOp, given, spec=spec)
        case _:
            return _of_mask(at, made.scores, operand)
    found = b.op(ContractOp, given, spec=spec)
    scaled = b.pointwise("mul", found, b.scalar(at.attrs["scale"], tensor(found).dtype))
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
    given = b.op(ContractOp, [g, v], spec=f"{lead}rse,{lead}te->{lead}rst")
    product = b.pointwise("mul", b.cast(g, wide), b.cast(y, wide))
    share = b.reduce("sum", product, (tensor(product).ndim - 1,), keep_dims=True)
    off = b.pointwise("sub", b.cast(given, wide), share)
    return _Softmax(weights, b.pointwise("mul", weights, off))
