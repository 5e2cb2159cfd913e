"""BatchNormalization with stored statistics, folded at import.

The statistics are known, so normalising is one multiplication and one addition a channel; after a
convolution that nothing else reads, it is new weights, and nothing at run time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from xdsl.ir import SSAValue

from irc.dialects.flow import loc_of, tensor
from irc.dialects.windows import ConvolutionOp
from irc.frontends.onnx.elementwise import Converter, scalar, widen
from irc.frontends.onnx.external import NUMPY, Array
from irc.frontends.onnx.node import Node, Unsupported
from irc.frontends.onnx.reductions import channels


def convert_batch_norm(node: Node) -> SSAValue:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias``."""
    if node.attr("training_mode", 0) or len([name for name in node.proto.output if name]) > 1:
        raise Unsupported("batch normalization in training mode", "export the model for inference")
    statistics = [node.operand(i).known for i in range(1, 5)]
    if any(array is None for array in statistics):
        return computed(node)
    weight, bias, center, variance = (np.asarray(s, np.float64) for s in statistics)
    scale = weight / np.sqrt(variance + node.attr("epsilon", 1e-5))
    shift = bias - center * scale
    if (folded := into_convolution(node, scale, shift)) is not None:
        return folded
    return scale_and_shift(node, scale, shift)


def scale_and_shift(node: Node, scale: Array, shift: Array) -> SSAValue:
    """One multiplication and one addition by constants."""
    b, x, name = node.b, widen(node, node[0]), node.operand(1).name
    shape = (-1, *[1] * (max(node.ndim(), 2) - 2))
    dtype = NUMPY[tensor(x).dtype]
    for fn, part, array in (("mul", "scale", scale), ("add", "shift", shift)):
        array = array.astype(dtype).reshape(shape)
        x = b.pointwise(fn, x, node.owner.constant(array, "parameter", f"{name}.{part}"))
    return b.cast(x, node.dtype())


def into_convolution(node: Node, scale: Array, shift: Array) -> SSAValue | None:
    """Scale the kernels and bias of a convolution that only this node reads, else return None."""
    owner, op = node.owner, node[0].owner
    if not isinstance(op, ConvolutionOp) or owner.readers[node.proto.input[0]] != 1:
        return None
    arrays = [owner.content(value) for value in (op.weight, op.bias) if value is not None]
    if any(array is None for array in arrays) or node.dtype() not in ("f32", "f64"):
        return None
    (weight, weight_name), *bias = [pair for pair in arrays if pair is not None]
    kernels = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    added = shift + (bias[0][0] * scale if bias else 0)
    dtype, here = NUMPY[node.dtype()], node.b.loc
    node.b.loc = loc_of(op)
    operands = [
        op.x,
        owner.constant(kernels.astype(dtype), "parameter", f"{weight_name}.folded"),
        owner.constant(added.astype(dtype), "parameter", f"{weight_name}.folded.bias"),
    ]
    convolved = node.b.op(ConvolutionOp, operands, **op.plain)
    node.b.loc = here
    return convolved


def computed(node: Node) -> SSAValue:
    """The same with statistics that are computed in the program."""
    b, kind = node.b, node.dtype()
    work = "f32" if kind in ("f16", "bf16") else kind
    weight, bias, center, variance = (b.cast(node[i], work) for i in range(1, 5))
    raised = b.pointwise("add", variance, scalar(node, node.attr("epsilon", 1e-5), variance))
    scale = b.pointwise("mul", weight, b.pointwise("rsqrt", raised))
    shift = b.pointwise("sub", bias, b.pointwise("mul", center, scale))
    ndim = max(node.ndim(), 2)
    scaled = b.pointwise("mul", widen(node, node[0]), channels(node, scale, ndim))
    return b.cast(b.pointwise("add", scaled, channels(node, shift, ndim)), kind)


CONVERTERS: Mapping[str, Converter] = {"BatchNormalization": convert_batch_norm}
