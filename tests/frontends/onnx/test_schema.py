"""Nodes that are not what their op's schema says end in one registered error, whoever looks first.

onnx's own checker stops at the first op that it does not know: each case is tried behind such an
op too, where only irc looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from irc.errors import IrcError
from irc.exports import compile_file
from irc.frontends.onnx.load import load_onnx

NUMBERS: Mapping[str, Sequence[int] | int] = {
    "zero": 0, "one": 1, "five": 5, "zeros": [0], "ones": [1], "far": [7], "many": [1, 2, 3],
}  # fmt: skip


def node(kind: str, *operands: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, operands, ["y"], **attributes)


def model(*nodes: NodeProto, opset: int = 18, imports: Mapping[str, int] = {}) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in NUMBERS.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid(d, v) for d, v in {"": opset, **imports}.items()]
    found = helper.make_model(graph, opset_imports=opsets)
    found.ir_version = 9
    return found


CASES: Mapping[str, tuple[NodeProto, int]] = {
    "a pad without pads": (node("Pad", "x"), 18),
    "a pad whose pads have no name": (node("Pad", "x", ""), 18),
    "a pad of three numbers": (node("Pad", "x", "many"), 18),
    "a pad of a dim that is not there": (node("Pad", "x", "many", "", "far"), 18),
    "a range of one number": (node("Range", "one"), 18),
    "a range that does not move": (node("Range", "zero", "five", "zero"), 18),
    "a slice of a dim that is not there": (node("Slice", "x", "zeros", "ones", "far"), 18),
    "a slice of a constant likewise": (node("Slice", "many", "zeros", "ones", "far"), 18),
    "a slice of step 0": (node("Slice", "x", "zeros", "ones", "zeros", "zeros"), 18),
    "a slice without ends": (node("Slice", "x", starts=[0]), 9),
    "a slice of more ends than starts": (node("Slice", "x", starts=[0], ends=[1, 2]), 9),
    "an unsqueeze without axes": (node("Unsqueeze", "x"), 18),
    "an unsqueeze without the attribute": (node("Unsqueeze", "x"), 11),
    "an unsqueeze far outside": (node("Unsqueeze", "x", "far"), 18),
    "an attribute of another type": (node("Softmax", "x", axis=1.5), 18),
    "an attribute that nobody knows": (node("Relu", "x", alpha=1.5), 18),
    "an axis that no tensor has": (node("LayerNormalization", "x", "ones", axis=2**63 - 1), 17),
    "a direction that is none": (node("BitShift", "five", "one", direction="UP"), 18),
    "scales of which one is missing": (node("Resize", "x", "", "ones"), 18),
    "no operand at all": (node("Max"), 18),
}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_one_error(name: str, behind: bool) -> None:
    wrong, opset = CASES[name]
    before = [helper.make_node("NobodysOp", [], ["stray"])] if behind else []
    with pytest.raises(IrcError) as refused:
        load_onnx(model(*before, wrong, opset=opset))
    assert refused.value.code == "onnx-invalid" or behind, refused.value.render()
    assert "onnx-invalid" in refused.value.codes


def test_a_constant_divided_by_zero_is_said_to_be() -> None:
    for kind in ("Div", "Mod"):
        division = helper.make_node(kind, ["five", "zero"], ["quotient"])
        with pytest.raises(IrcError, match="ZeroDivisionError") as refused:
            load_onnx(model(division, node("Reshape", "x", "quotient")))
        assert refused.value.code == "onnx-invalid"


def test_a_domain_of_two_opsets_is_refused() -> None:
    with pytest.raises(IrcError, match="opsets 18 and 7 of one domain") as refused:
        load_onnx(model(node("Relu", "x"), imports={"ai.onnx": 7}))
    assert refused.value.code == "onnx-version"


def test_a_converter_that_fails_is_no_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What onnx takes and a converter does not expect: the user reads which op, and why."""

    def fails(node: object) -> object:
        raise KeyError("planted")

    monkeypatch.setattr("irc.frontends.onnx.table.CONVERTERS", {"Relu": fails})
    with pytest.raises(IrcError, match="ends in KeyError: 'planted'") as refused:
        load_onnx(model(node("Relu", "x")))
    assert refused.value.code == "op-unsupported"
    assert "model:node 0 (Relu)" in refused.value.where


def test_a_model_that_a_late_step_fails_on_is_judged(tmp_path: Path) -> None:
    """Labels of one dim too few go to torch, whose op no converter looks at."""
    graph = helper.make_graph(
        [helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], reduction="sum")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 5, 6, 6]),
         helper.make_tensor_value_info("t", TensorProto.INT64, [3, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )  # fmt: skip
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    found.ir_version = 9
    (tmp_path / "model.onnx").write_bytes(found.SerializeToString())
    with pytest.raises(IrcError, match="onnx refuses the model") as refused:
        compile_file(str(tmp_path / "model.onnx"), str(tmp_path / "out"))
    assert refused.value.code == "onnx-invalid"
    assert not (tmp_path / "out").exists()


def test_an_op_that_the_opset_lacks_is_named() -> None:
    with pytest.raises(IrcError, match="Mod is no op of opset 9"):
        load_onnx(model(node("Mod", "five", "one"), opset=9))
