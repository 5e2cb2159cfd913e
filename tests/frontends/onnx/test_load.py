"""Whole models, named sizes, roles and names."""

from __future__ import annotations

import numpy as np
import pytest

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.sizes import SizeTable
from tests.frontends.onnx.compare import check, model_of, op_counts, run
from tests.models.onnx_models import example_inputs, mlp, resnet, transformer


def shapes(program: object) -> dict[str, list[str]]:
    return {
        name: [*map(str, tensor(value).shape)]
        for role, name, value in arguments(entry(program.module))  # type: ignore[attr-defined]
        if role == "input"
    }


def test_mlp() -> None:
    program = check(mlp(batch="N"), sizes={"N": 3})
    roles = [(role, name) for role, name, _ in arguments(entry(program.module))]
    assert roles == [
        ("input", "x"),
        *(("parameter", f"layers.{i}.{part}") for i in (0, 1) for part in ("weight", "bias")),
    ]
    assert program.output_names == ["y"]


def test_resnet_with_folded_batch_norm() -> None:
    program = check(resnet(batch="N"), sizes={"N": 3}, absolute=1e-5)
    counts = op_counts(program)
    assert counts["flow.convolution"] == 20
    # 17 of relu, 8 of the residual sums, the mean's division and the last bias.
    assert counts["flow.pointwise"] == 27
    check(resnet(batch_norm=False, seed=3), absolute=1e-5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_transformer(dynamic: bool) -> None:
    program = check(transformer(dynamic_shapes=dynamic), absolute=1e-5)
    assert not any(name.startswith("onnx::") for name in op_counts(program))


def test_named_sizes_stay_names_through_a_transformer() -> None:
    model = transformer(batch="batch", tokens="2*half")
    program = load_onnx(model)
    assert shapes(program)["input_ids"] == ["batch", "2*half"]
    assert [*map(str, tensor(entry(program.module).body.block.last_op.operands[0]).shape)] == [
        "batch", "2*half", "48",
    ]  # fmt: skip
    bound = load_onnx(model, {"batch": 3, "half": 4})
    assert shapes(bound)["input_ids"] == ["3", "8"]
    feeds = example_inputs(transformer(batch=3, tokens=8))
    wanted = run(load_onnx(transformer(batch=3, tokens=8)), feeds)
    np.testing.assert_allclose(run(bound, feeds)[0], wanted[0], rtol=1e-6, atol=1e-6)


def test_a_size_that_must_be_a_number_is_named_in_the_error() -> None:
    model = model_of(
        "y = MaxPool <kernel_shape = [2], strides = [2]> (x)",
        "float[B,3,width] x",
        "float[B,3,w] y",
    )
    with pytest.raises(IrcError) as caught:
        load_onnx(model)
    assert caught.value.codes == ("size-unbound",)
    assert "--size width=1" in caught.value.help
    assert "(MaxPool)" in caught.value.where
    assert shapes(load_onnx(model, {"width": 9})) == {"x": ["B", "3", "9"]}


def test_a_size_that_the_model_computes_is_not_one_to_give_a_number() -> None:
    table = SizeTable()
    assert str(table.dim("N", "x_0")) == "N"
    table.dim("batch size", "x_1")
    table.inputs_are_read()
    assert str(table.dim("", "slice_1")) == "slice_1"
    assert table.own(frozenset({"N"})) == ["N"]
    assert table.own(frozenset({"N", "slice_1"})) == ["N", "batch size"]


def test_an_unknown_size_is_answered_with_the_known_ones() -> None:
    with pytest.raises(IrcError, match="did you mean 'batch'") as caught:
        load_onnx(mlp(batch="batch"), {"bacth": 3})
    assert caught.value.code == "size-unknown"
    with pytest.raises(IrcError, match="is not a size"):
        load_onnx(mlp(batch="batch"), {"batch": -3})


def test_all_unsupported_ops_are_reported_at_once() -> None:
    body = (
        "a = StringNormalizer (s)\nb = NonMaxSuppression (x, t)\nc = Relu (b)\n"
        "y = Unique (x)"
    )  # fmt: skip
    model = model_of(body, "float[1,3,4] x, float[1,1,3] t, string[2] s", "float[n] y")
    with pytest.raises(IrcError) as caught:
        load_onnx(model)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert all(word in text for word in ("'string'", "'NonMaxSuppression'", "'Unique'"))
    assert "Relu" not in text


def test_shapes_that_do_not_fit_are_located() -> None:
    model = model_of('y = MatMul (x, z)', "float[3,4] x, float[5,6] z", "float[a,b] y")  # fmt: skip
    with pytest.raises(IrcError, match=r"\[3, 4\] f32, \[5, 6\] f32") as caught:
        load_onnx(model)
    assert caught.value.code == "onnx-invalid"


def test_constants_replace_inputs() -> None:
    body = "y = ReduceSum <keepdims = 0> (x, axes)"
    model = model_of(body, "float[3,5] x, int64[n] axes", "float[a] y")
    with pytest.raises(IrcError, match="must be constant"):
        load_onnx(model)
    program = load_onnx(model, constants={"axes": np.array([0])})
    assert program.input_names == ["x"]
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(run(program, {"x": x})[0], x.sum(0))
    with pytest.raises(IrcError, match="the constant for input 'axes'"):
        load_onnx(model, constants={"axes": np.array(0.5)})


def test_paths_and_bytes_give_the_same_program(tmp_path) -> None:
    model = mlp()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    wanted = load_onnx(model)
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), model.SerializeToString()):
        program = load_onnx(source)
        assert program.tensors.keys() == wanted.tensors.keys()
        assert program.module.is_structurally_equivalent(wanted.module) or source != model


def test_named_sizes_become_values_where_the_graph_computes_with_them() -> None:
    body = (
        "s = Shape (x)\ni = Constant <value_int = 0> ()\nb = Gather (s, i)\n"
        "f = Cast <to = 1> (b)\ny = Mul (x, f)\nm = ReduceMean <axes = [0]> (x)"
    )
    model = model_of(body, "float[B,3] x", "float[B,3] y, float[1,3] m")
    program = load_onnx(model)
    assert shapes(program) == {"x": ["B", "3"]}
    check(model, sizes={"B": 7})


def test_a_size_is_given_by_input_and_position() -> None:
    model = model_of("y = Relu (x)", "float[N,3,?] x", "float[N,3,M] y")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[2].ClearField("dim_param")
    assert shapes(load_onnx(model, sizes={"x.0": 4, "x.2": 5})) == {"x": ["4", "3", "5"]}
    # A name of the model comes first; "N" and its place are one size.
    with pytest.raises(IrcError, match="given two numbers"):
        load_onnx(model, sizes={"x.0": 4, "N": 5})
    with pytest.raises(IrcError, match="dim 1 of 'x' is 3 in the file") as caught:
        load_onnx(model, sizes={"x.1": 4})
    assert caught.value.code == "option-value"
    with pytest.raises(IrcError, match="has 3 dims, none is 7"):
        load_onnx(model, sizes={"x.7": 4})
    dims[0].dim_param = "2*N"
    with pytest.raises(IrcError, match="is '2\\*N'"):
        load_onnx(model, sizes={"x.0": 4})
    dims[0].dim_param = "x.2"
    assert shapes(load_onnx(model, sizes={"x.2": 6})) == {"x": ["6", "3", "x_2_1"]}
