"""A split that no rule has is refused with its reason."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.dialects.builder import finish_function
from irc.dialects.flow import ExternOp, FlowOp, PointwiseOp
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp
from irc.errors import IrcError
from irc.interpret.sharded import run_sharded
from irc.ops.refusals import REASONS, refusal
from irc.ops.rules import RULES

WINDOW = {"strides": (1, 1), "low": (1, 1), "high": (1, 1), "dilations": (1, 1), "groups": 1}


def test_a_split_of_image_rows_says_that_there_are_no_halos() -> None:
    rows, whole = Placement.of(data=Split(2)), Placement.of(data=B)
    image, kernel = TensorType.of((1, 2, 8, 8)), TensorType.of((3, 2, 3, 3))
    block = Block(arg_types=[image.with_placement(rows), kernel.with_placement(whole)])
    result = TensorType.of((1, 3, 8, 8)).with_placement(rows)
    op = ConvolutionOp.make(list(block.args), [result], loc="net.py:7", id="n0", **WINDOW)
    block.add_op(op)
    module = ModuleOp([finish_function("forward", block, list(op.outputs))])
    with pytest.raises(IrcError, match="no rank can compute") as caught:
        run_sharded(
            module, [torch.zeros(1, 2, 8, 8), torch.zeros(3, 2, 3, 3)], Mesh.parse("data=2")
        )
    assert caught.value.code == "no-signature"
    assert caught.value.where == "net.py:7"
    assert "halos" in caught.value.because[1]


def one(cls: type[FlowOp], **attrs: str) -> FlowOp:
    block = Block(arg_types=[TensorType.of((4,))])
    return cls.make(list(block.args), [TensorType.of((4,))], **attrs)


def test_reasons_by_op() -> None:
    assert set(REASONS) < set(RULES)
    assert refusal(one(PointwiseOp, fn="exp")) == []
    (text,) = refusal(one(ExternOp, target="aten::hidden", arguments="[[], {}]"))
    assert "declares no rule" in text
    (text,) = refusal(one(ExternOp, target="aten::x", arguments="[[], {}]", rule="(a) -> (a)"))
    assert "all that is known" in text
