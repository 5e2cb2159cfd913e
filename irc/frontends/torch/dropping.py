"""Attention with dropout inside: no library op draws from irc's counter, so it is taken apart."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, tensor
from irc.dialects.literals import RandomOp
from irc.dialects.types import TensorType
from irc.frontends.torch.lowering import Lowering
from irc.ops.attention import chances, lead_letters


def dropped_attention(
    t: Lowering,
    operands: tuple[SSAValue, SSAValue, SSAValue],
    mask: SSAValue | None,
    *,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> SSAValue:
    """Drop probabilities of keys with ``dropout_p``, and scale the others up.

    The numbers come from ``flow.random``, so that backward sees the mask that forward drew, and a
    sharded run the mask of a whole one.
    """
    q, k, v = operands
    masks = [] if mask is None else [mask]
    probabilities = chances(t.b, q, k, masks, is_causal=is_causal, scale=scale)
    kind = tensor(probabilities)
    seed, stream = t.random()
    uniform = t.b.op(
        RandomOp,
        [seed],
        result=TensorType.of(kind.shape, "f32"),
        distribution="uniform",
        stream=stream,
    )
    kept = t.b.pointwise("ge", uniform, t.value(dropout_p, "f32"))
    bigger = t.b.pointwise("mul", probabilities, t.value(1 / (1 - dropout_p), kind.dtype))
    probabilities = t.b.pointwise("where", kept, bigger, t.value(0, kind.dtype))
    lead = lead_letters(tensor(k))
    narrow = t.b.cast(probabilities, tensor(v).dtype)
    attended = t.b.op(ContractOp, [narrow, v], spec=f"{lead}rst,{lead}te->{lead}rse")
    return t.b.reshape(attended, t.shape)
