"""Operators of ai.onnx.ml as exporters of scikit-learn write them, against ONNX Runtime.

Where the specification is silent (two classes with one score), ONNX Runtime says.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from irc.onnx import InferenceSession

RNG = np.random.default_rng(5)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
INTS, FLOATS, WORDS = TensorProto.INT64, TensorProto.FLOAT, TensorProto.STRING


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    kind: str,
    feeds: Mapping[str, np.ndarray],
    outputs: Sequence[onnx.ValueInfoProto],
    *,
    version: int = 3,
    **attributes: Any,
) -> onnx.ModelProto:
    names = [out.name for out in outputs]
    node = helper.make_node(kind, list(feeds), names, domain="ai.onnx.ml", **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, WORDS if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for name, x in feeds.items()
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    graph = helper.make_graph([node], "g", inputs, list(outputs))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def tensor(name: str, element: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, None)


def check(
    kind: str,
    x: np.ndarray,
    elements: Sequence[int],
    *,
    relative: float = 1e-5,
    first: int = 0,
    **attributes: Any,
) -> list[Any]:
    """Compare one op's results from ``first`` on; those that are no floats are equal."""
    outputs = [tensor(f"y{i}", element) for i, element in enumerate(elements)]
    model = model_of(kind, {"x": x}, outputs, **attributes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    results = InferenceSession(model).run(None, {"x": x})
    for a, b in zip(wanted[first:], results[first:], strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=relative, atol=relative)
        else:
            assert a.tolist() == b.tolist()
    return results


def stumps(classes: Sequence[int], weights: Sequence[float], *, stem: str) -> dict[str, Any]:
    """A tree of three nodes for each pair of weights: of its leaves."""
    trees = len(weights) // 2
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"]
    return {
        "nodes_treeids": [t for t in range(trees) for _ in range(3)],
        "nodes_nodeids": [0, 1, 2] * trees,
        "nodes_featureids": [f for t in range(trees) for f in (t % 4, 0, 0)],
        "nodes_modes": [m for t in range(trees) for m in (modes[t % 4], "LEAF", "LEAF")],
        "nodes_values": [v for t in range(trees) for v in (0.1 * t - 0.2, 0.0, 0.0)],
        "nodes_truenodeids": [1, 0, 0] * trees,
        "nodes_falsenodeids": [2, 0, 0] * trees,
        "nodes_missing_value_tracks_true": [t % 2 if n == 0 else 0
                                            for t in range(trees) for n in range(3)],
        f"{stem}_treeids": [t for t in range(trees) for _ in range(2)],
        f"{stem}_nodeids": [1, 2] * trees,
        f"{stem}_ids": list(classes),
        f"{stem}_weights": list(weights),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 37])
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_trees_that_give_numbers(rows: int, how: str) -> None:
    x = floats(rows, 4)
    x[: rows // 3, 1] = np.nan
    weights = [1, -2, 3, 0.5, 2, 1, 5, -1]
    attributes = {"n_targets": 3, "aggregate_function": how}
    forest = stumps([0, 1, 1, 0, 2, 2, 0, 2], weights, stem="target")
    check("TreeEnsembleRegressor", x, [FLOATS], **attributes, **forest)
    # Where no tree votes for a target, ONNX Runtime leaves its base value out, too: here all do.
    forest = stumps([0, 0, 1, 1, 2, 2, 0, 0], weights, stem="target")
    base = {} if how in ("MIN", "MAX") else {"base_values": [0.5, -0.5, 1.0]}
    check("TreeEnsembleRegressor", x, [FLOATS], **attributes, **forest, **base)


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("kind", ["many", "two", "margin", "share"])
def test_trees_that_give_classes(kind: str, how: str) -> None:
    ids = {
        "many": [0, 1, 2, 0, 2, 1, 1, 1],
        "two": [0, 1, 1, 0, 0, 1, 1, 1],
        "margin": [0] * 8,
        "share": [0] * 8,
    }
    weights = [0.1, 0.23, 0.05, 0.21, 0.17, 0.11, 0.3, 0.19]
    if kind == "margin":
        weights = [w - 0.15 for w in weights]
    labels = [7, 3, 5][: 3 if kind == "many" else 2]
    forest = stumps(ids[kind], weights, stem="class")
    check(
        "TreeEnsembleClassifier", floats(41, 4), [INTS, FLOATS],
        # Of two classes with scores of their own ONNX Runtime's label is 0 or 1.
        first=int(kind == "two"), classlabels_int64s=labels, post_transform=how, **forest,
    )  # fmt: skip


def test_trees_keep_what_they_made_of_their_attributes() -> None:
    forest = stumps([0, 0], [1.0, 2.0], stem="target")
    x = np.array([[-1, 0, 0, 0], [1, 0, 0, 0]], np.float32)
    model = model_of("TreeEnsembleRegressor", {"x": x}, [tensor("y", FLOATS)], **forest)
    session = InferenceSession(model)
    for _ in range(2):
        assert session.run(None, {"x": x})[0].tolist() == [[1], [2]]
    other = stumps([0, 0], [3.0, 4.0], stem="target")
    model = model_of("TreeEnsembleRegressor", {"x": x}, [tensor("y", FLOATS)], **other)
    assert InferenceSession(model).run(None, {"x": x})[0].tolist() == [[3], [4]]


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_linear_classes(classes: int, how: str) -> None:
    weights = {"coefficients": floats(classes * 4).tolist(), "intercepts": floats(classes).tolist()}
    labels = ["low", "middle", "high"][: max(2, classes)]
    check(
        "LinearClassifier", floats(9, 4), [WORDS, FLOATS],
        classlabels_strings=labels, post_transform=how, **weights,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC"])
def test_linear_numbers(how: str) -> None:
    weights = {"coefficients": floats(12).tolist(), "intercepts": floats(3).tolist()}
    output = InferenceSession(
        model_of("LinearRegressor", {"x": np.ones((2, 4), np.float32)}, [tensor("y", FLOATS)],
                 targets=3, post_transform=how, **weights)
    ).run(None, {"x": np.ones((2, 4), np.float32)})[0]  # fmt: skip
    plain = np.reshape(weights["coefficients"], (3, 4)).sum(1) + weights["intercepts"]
    # ONNX Runtime's own leaves the transform of a regressor out.
    expected = plain if how == "NONE" else 1 / (1 + np.exp(-plain))
    np.testing.assert_allclose(output, np.stack([expected] * 2), rtol=1e-5)


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kind", KERNELS)
def test_support_vectors_that_give_numbers(kind: str, one_class: int) -> None:
    check(
        "SVMRegressor", floats(11, 4), [FLOATS], kernel_type=kind, one_class=one_class,
        kernel_params=[0.3, 0.5, 3.0], n_supports=5, support_vectors=floats(20).tolist(),
        coefficients=floats(5).tolist(), rho=[0.1],
    )  # fmt: skip


def test_a_linear_machine_without_vectors() -> None:
    check("SVMRegressor", floats(6, 4), [FLOATS], coefficients=floats(4).tolist(), rho=[0.2],
          kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0])  # fmt: skip
    for classes in (2, 3):
        for sign in (1, -1):
            weights = (sign * np.abs(floats(classes * 4))).tolist()
            check(
                "SVMClassifier", floats(9, 4), [INTS, FLOATS], coefficients=weights, rho=[0.2],
                kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0],
                classlabels_ints=list(range(10, 10 + classes)),
            )  # fmt: skip


@pytest.mark.parametrize("proba", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("kind", ["LINEAR", "RBF"])
def test_support_vectors_that_give_classes(kind: str, classes: int, proba: bool) -> None:
    per_class = [3, 2, 4, 1, 2][:classes]
    total, pairs = sum(per_class), classes * (classes - 1) // 2
    platt = {"prob_a": (-np.abs(floats(pairs)) - 0.5).tolist(), "prob_b": floats(pairs).tolist()}
    for how in ("NONE", "LOGISTIC") if not proba else ("NONE",):
        check(
            "SVMClassifier", floats(13, 4), [INTS, FLOATS], kernel_type=kind, post_transform=how,
            kernel_params=[0.3, 0.5, 3.0], vectors_per_class=per_class,
            support_vectors=floats(total * 4).tolist(), rho=floats(pairs).tolist(),
            coefficients=floats((classes - 1) * total).tolist(),
            classlabels_ints=list(range(classes)), **(platt if proba else {}),
        )  # fmt: skip


def test_rows_as_maps() -> None:
    """ZipMap, as the exporter of scikit-learn appends it."""
    x = np.array([[0.25, 0.75], [1, 0]], np.float32)
    for name, keys in (
        ("classlabels_int64s", [3, 4]),
        ("classlabels_strings", ["a", "b"]),
    ):
        element = INTS if name.endswith("s64s") or "int" in name else WORDS
        kind = onnx.TypeProto()
        kind.sequence_type.elem_type.map_type.key_type = element
        kind.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOATS
        output = onnx.ValueInfoProto(name="y")
        output.type.CopyFrom(kind)
        model = model_of("ZipMap", {"x": x}, [output], version=1, **{name: keys})
        wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        assert InferenceSession(model).run(None, {"x": x}) == wanted


def map_input(key: int, value: int, shape: bool = False) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name="x")
    info.type.map_type.key_type = key
    info.type.map_type.value_type.tensor_type.elem_type = value
    if shape:
        info.type.map_type.value_type.tensor_type.shape.SetInParent()
    return info


def run_on_map(kind: str, mapping: Any, value: onnx.ValueInfoProto, out: int, **attributes: Any):
    node = helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "g", [value], [tensor("y", out)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": mapping})
    outputs = InferenceSession(model).run(None, {"x": mapping})
    assert [a.tolist() for a in wanted] == [b.tolist() for b in outputs]
    assert [a.dtype for a in wanted] == [b.dtype for b in outputs]
    assert [a.shape for a in wanted] == [b.shape for b in outputs]


def test_maps_as_rows() -> None:
    words, numbers = ["b", "a", "c"], [5, 2, 9]
    run_on_map(
        "DictVectorizer", {"a": 2.5, "b": 1.5}, map_input(WORDS, FLOATS), FLOATS,
        string_vocabulary=words,
    )  # fmt: skip
    run_on_map(
        "DictVectorizer", {9: 2.5, 7: 1.5}, map_input(INTS, FLOATS), FLOATS,
        int64_vocabulary=numbers,
    )  # fmt: skip
    for cast, out in (("TO_FLOAT", FLOATS), ("TO_INT64", INTS)):
        mapping = {3: 1.5, 0: 2.5}
        value = map_input(INTS, FLOATS)
        run_on_map("CastMap", mapping, value, out, cast_to=cast)
        run_on_map("CastMap", mapping, value, out, cast_to=cast, map_form="SPARSE", max_map=6)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4)])
def test_features_by_number(shape: tuple[int, ...]) -> None:
    feeds = {"x": floats(*shape), "i": np.array([2, 0, 2])}
    model = model_of("ArrayFeatureExtractor", feeds, [tensor("y", FLOATS)])
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_array_equal(InferenceSession(model).run(None, feeds)[0], wanted)


def test_a_node_that_keeps_its_type_where_sizes_are_open() -> None:
    # A plan of open sizes is held against a run in float64, which such a node knows nothing of.
    model = model_of("Binarizer", {"x": floats(2, 4)}, [tensor("y", FLOATS)], threshold=0.2)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    session = InferenceSession(model)
    for rows in (3, 8):
        x = floats(rows, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x > 0.2)


def test_what_a_search_finds_takes_its_shape() -> None:
    """Labels of the nearest rows: whether they fit a shape, only the run knows."""
    lines = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"]),
        helper.make_node("NonZero", ["v"], ["at"]),
        helper.make_node("Shape", ["at"], ["s"]),
        helper.make_node("Reshape", ["at", "two"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOATS, ["n", 4])]
    stored = [
        onnx.numpy_helper.from_array(np.array([3]), "k"),
        onnx.numpy_helper.from_array(np.array([6, 2]), "two"),
    ]
    graph = helper.make_graph(lines, "g", inputs, [tensor("y", INTS)], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = {"x": floats(2, 4)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, x)[0]
    np.testing.assert_array_equal(InferenceSession(model).run(None, x)[0], wanted)
