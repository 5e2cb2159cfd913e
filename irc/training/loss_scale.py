"""Loss scaling in the program of a step: what it is told, and what it says of its gradients.

Half-precision gradients below 6e-8 are zero in ``float16``. The loss is multiplied by a scale, and
with it every gradient; the step divides gradients by it, in float32. Where one has become infinite
or NaN nothing moves: each new value is the old one, chosen on every rank by the same number, which
is counted over all of them (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2). How the scale
goes on from there is decided between steps (:mod:`irc.runtime.loss_scale`).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.dialects.types import TensorType

SCALE = "loss_scale"
"""The input that the gradient of the loss is, float32 of shape []."""
INVERSE = "loss_scale.inverse"
"""One over it, by which gradients are multiplied: an input, so that no function computes it."""
OVERFLOWS = "loss_scale.overflows"
"""The result that counts elements of gradients that are infinite or NaN, float32 of shape []."""
KIND = TensorType.of((), "f32")

LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38,
           "f64": 1.7976931348623157e308}  # fmt: skip


def num_overflows(b: FlowBuilder, gradient: SSAValue) -> SSAValue:
    """Count the elements of a gradient that are infinite or NaN; float32 of shape []."""
    dtype = tensor(gradient).dtype
    limit = b.scalar(LARGEST[dtype], dtype)
    # Comparisons with NaN are false.
    is_finite = b.pointwise("le", b.pointwise("abs", gradient), limit)
    others = b.cast(b.pointwise("logical_not", is_finite), "f32")
    return b.reduce("sum", others, range(tensor(gradient).ndim), keep_dims=False)
