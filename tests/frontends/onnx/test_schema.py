"""Nodes that are not what their op's schema says end in one registered error, whoever looks first.

onnx's own checker stops at the first op that it does not know: each case is tried behind such an
op too, where only irc looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from irc.errors import IrcError
from irc.from_files import compile_file
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
    proto = helper.make_model(graph, opset_imports=opsets)
    proto.ir_version = 9
    return proto


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


INDICES = ("i", "t")

Shapes: TypeAlias = Mapping[str, Sequence[int | str]]

MISFITS: Mapping[str, tuple[NodeProto, Shapes]] = {
    "labels of one dim too few": (
        node("NegativeLogLikelihoodLoss", "x", "t", reduction="sum"),
        {"x": [3, 5, 6, 6], "t": [3, 6]},
    ),
    "a bias of four dims": (
        node("Conv", "x", "w", "x"), {"x": [1, 1, 5, 5], "w": [1, 1, 3, 3]},
    ),
    "a bias of another size": (
        node("Conv", "x", "w", "c"), {"x": [1, 1, 5, 5], "w": [2, 1, 3, 3], "c": [3]},
    ),
    "a transposed kernel of other channels": (
        node("ConvTranspose", "x", "w", group=2), {"x": [1, 2, 3, 3], "w": [1, 1, 2, 2]},
    ),
    "a bias of as many dims as the transposed kernel": (
        node("ConvTranspose", "x", "w", "w"), {"x": [1, 1, 3, 4, 5], "w": [1, 2, 3, 3, 3]},
    ),
    "a norm over no channels": (node("LRN", "x", size=0), {"x": [5, 5, 5, 5]}),
    "a norm over less than none": (node("LRN", "x", size=-(2**63)), {"x": [5, 5, 5, 5]}),
    "results that are no multiple of the groups": (
        node("Conv", "x", "w", group=2), {"x": [1, 2, 5, 5], "w": [3, 1, 3, 3]},
    ),
    "indices of more columns than the data": (
        node("ScatterElements", "x", "i", "u"),
        {"x": [4, 2], "i": [2, 3], "u": [2, 3]},
    ),
    "indices of more rows than the updates": (
        node("ScatterElements", "x", "i", "u"),
        {"x": [4, 3], "i": [2, 3], "u": [1, 3]},
    ),
    "the last index of the largest of none": (
        node("ArgMax", "x", axis=1, select_last_index=1), {"x": [2, 0]},
    ),
    "the index of the least of none": (node("ArgMin", "x", axis=1), {"x": [2, 0]}),
    "indices of more columns than the table": (
        node("GatherElements", "x", "i"), {"x": [4, 2], "i": [2, 3]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_operands_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(IrcError) as refused:
        compiled(of(*MISFITS[name]), tmp_path)
    assert refused.value.code == "onnx-invalid"
    assert "does not fit its operands" in refused.value.message


@pytest.mark.parametrize(("kind", "least"), [("AveragePool", 3), ("Conv", 5)])
def test_sizes_in_which_no_window_fits_are_not_served(
    kind: str, least: int, tmp_path: Path
) -> None:
    """The plan is tried at its least size, where a window of stride 1 has to fit too."""
    shapes: Shapes = {"x": [1, 1, "L"]}
    wanted = node("AveragePool", "x", kernel_shape=[2], dilations=[2])
    if kind == "Conv":
        shapes, wanted = {**shapes, "w": [1, 1, 3]}, node("Conv", "x", "w", dilations=[2])
    assert f"open sizes  L {least}.." in compiled(of(wanted, shapes, opset=22), tmp_path)


def test_open_channels_that_may_not_come_out_even_in_groups_are_to_be_bound(
    tmp_path: Path,
) -> None:
    shapes: Shapes = {"x": [1, 2, 5, 5], "w": ["c", 1, 3, 3]}
    with pytest.raises(IrcError, match="--size c=2") as refused:
        compiled(of(node("Conv", "x", "w", group=2), shapes), tmp_path)
    assert refused.value.code == "size-unbound"


def test_a_scatter_of_open_rows_has_as_many_as_its_indices(tmp_path: Path) -> None:
    scatter = node("ScatterElements", "x", "i", "u")
    shapes: Shapes = {"x": ["n", 3], "i": [2, 3], "u": ["n", 3]}
    assert "open sizes  n 2.." in compiled(of(scatter, shapes), tmp_path)


@pytest.mark.parametrize("version", [3, 9])
def test_an_initializer_that_is_listed_as_an_input_has_no_open_sizes(
    version: int, tmp_path: Path
) -> None:
    """Older files list all; the host of a program reads sizes from what calls give."""
    proto = of(node("NonZero", "z"), {"x": ["n", "m"], "w": ["k"]}, result=TensorProto.INT64)
    proto.graph.node.insert(0, helper.make_node("Add", ["x", "w"], ["z"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    proto.ir_version = version
    assert "open sizes  n, m" in compiled(proto, tmp_path)


@pytest.mark.parametrize(("fault", "code"), [(ValueError, "onnx-invalid"), (AssertionError, "")])
@pytest.mark.parametrize("fits", [True, False])
def test_a_model_that_a_late_step_fails_on_is_judged(
    fault: type[Exception], code: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What onnx refuses of the operands is the file's fault; shapes that a file states are none."""

    def fails(*_: object, **__: object) -> object:
        raise fault("planted")

    monkeypatch.setattr("irc.from_files._compile_source", fails)
    proto = of(node("MatMul", "x", "w"), {"x": [2, 3], "w": [3, 5] if fits else [4, 5]})
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 77
    with pytest.raises((IrcError, fault)) as refused:
        compiled(proto, tmp_path)
    assert getattr(refused.value, "code", "") == ("" if fits else code)


def of(wanted: NodeProto, shapes: Shapes, *, opset: int = 18, result: int = 1) -> onnx.ModelProto:
    """Return a model of one node; inputs are float, but for indices."""
    inputs = [
        helper.make_tensor_value_info(
            n, TensorProto.INT64 if n in INDICES else TensorProto.FLOAT, s
        )
        for n, s in shapes.items()
    ]
    outputs = [helper.make_tensor_value_info("y", result, None)]
    graph = helper.make_graph([wanted], "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 9
    return proto


def compiled(proto: onnx.ModelProto, folder: Path) -> str:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return compile_file(str(folder / "model.onnx"), str(folder / "out"))


def test_an_op_that_the_opset_lacks_is_named() -> None:
    with pytest.raises(IrcError, match="Mod is no op of opset 9"):
        load_onnx(model(node("Mod", "five", "one"), opset=9))


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_is_never_taken_is_looked_at(taken: bool, tmp_path: Path) -> None:
    """What no version of ONNX has is refused there too; ops of other domains are not looked for."""

    def branch(kind: str, domain: str = "") -> onnx.GraphProto:
        inner = helper.make_node(kind, ["x"], ["z"], domain=domain)
        result = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])
        return helper.make_graph([inner], "b", [], [result])

    def chosen(other: onnx.GraphProto) -> onnx.ModelProto:
        branches = {"then_branch": branch("Exp"), "else_branch": other}
        if not taken:
            branches = dict(zip(branches, reversed([*branches.values()]), strict=True))
        name = "yes" if taken else "no"
        proto = model(helper.make_node("If", [name], ["y"], **branches), imports={"mine": 1})
        flag = numpy_helper.from_array(np.array(taken), name)
        proto.graph.initializer.append(flag)
        return proto

    assert load_onnx(chosen(branch("Neg")))
    assert load_onnx(chosen(branch("Own", "mine")))
    with pytest.raises(IrcError, match=r"op-unsupported.*'Exq'"):
        load_onnx(chosen(branch("Exq")))
