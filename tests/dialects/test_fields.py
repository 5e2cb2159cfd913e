"""Ops are read by name: operands as values, properties as Python values."""

from __future__ import annotations

import pytest
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

from irc.dialects.comm import AllReduceOp, PendingType
from irc.dialects.flow import PointwiseOp, ReduceOp, TransposeOp
from irc.dialects.indexing import GatherOp
from irc.dialects.size import symbol
from irc.dialects.task import KernelConstantOp, LoadOp
from irc.dialects.task_types import BufferType, ValueType
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp

X = TensorType.of((2, 3), "f32")


def test_operands_have_names() -> None:
    x, index = Block(arg_types=[X, TensorType.of((2, 1), "i64")]).args
    gather = GatherOp.make([x, index], [TensorType.of((2, 1), "f32")], dim=1)
    assert isinstance(gather, GatherOp)
    assert (gather.x, gather.index, gather.dim) == (x, index, 1)
    other = TransposeOp.make([x], [TensorType.of((3, 2), "f32")], perm=(1, 0))
    gather.operands[0] = other.outputs[0]
    assert gather.x is other.outputs[0]


def test_properties_are_python_values() -> None:
    (x,) = Block(arg_types=[X]).args
    reduce = ReduceOp.make([x], [TensorType.of((2,), "f32")], fn="sum", dims=(1,), keep_dims=False)
    assert isinstance(reduce, ReduceOp)
    assert (reduce.fn, reduce.dims, reduce.keep_dims) == ("sum", (1,), False)
    assert reduce.keep_dims is False


def test_what_is_not_said_is_none() -> None:
    x, w = (Block(arg_types=[TensorType.of((1, 1, 4), "f32")] * 2)).args
    attrs = {"strides": (1,), "low": (3,), "high": (0,), "dilations": (1,), "groups": 1}
    op = ConvolutionOp.make([x, w], [x.type], **attrs)
    assert isinstance(op, ConvolutionOp)
    assert (op.weight, op.bias, op.flipped, op.low) == (w, None, None, (3,))
    sent = AllReduceOp.make([x], [PendingType(x.type)], axis="data", fn="sum")
    assert isinstance(sent, AllReduceOp)
    assert (sent.x, sent.axis, sent.bucket, sent.bucket_size) == (x, "data", None, None)


def test_sizes_may_have_names() -> None:
    size = symbol("S")
    (buffer,) = Block(arg_types=[BufferType.of(3 * size, "f32")]).args
    load = LoadOp.make([buffer], [ValueType.of("f32", full=False)], offset=size, strides=(size, 1))
    assert isinstance(load, LoadOp)
    assert (load.buffer, list(load.indices)) == (buffer, [])
    assert (load.offset, load.strides, load.bounds) == (size, (size, 1), None)


def test_a_field_may_be_stored_under_another_name() -> None:
    op = KernelConstantOp.make([], [ValueType.of("f32", full=False)], value=(2.5,))
    assert isinstance(op, KernelConstantOp)
    assert op.literals == (2.5,)
    assert op.value.dtype == "f32"


def test_a_property_of_another_kind_is_refused() -> None:
    (x,) = Block(arg_types=[X]).args
    op = PointwiseOp.make([x], [X], fn=3)
    with pytest.raises(VerifyException, match="fn"):
        op.verify()
