"""Names in a file are data: they reach attributes, escaped, and nothing else."""

from __future__ import annotations

import re
import string

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from irc.dialects.size import Size, symbol
from irc.dialects.text import dump, load
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.sizes import Parser, SizeTable
from tests.frontends.onnx.compare import run

HOSTILE = [
    "../../etc/passwd", "$(touch canary)", "`id`", "a;b", '"; drop', "'quoted'", "new\nline",
    "*/ int x; /*", "??/", "back\\slash", "nul\x01", "\x1b[2J", "#SBATCH -x", "</script>", "%s%n",
    "__import__('os')", "for", "CON", "a-b", "a_b", "a.b", "A", "a", " ", "\u202e\u6a21",
    "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_everywhere(name: str) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Mul", [name, "w" + name], ["m" + name], name=name),
            helper.make_node("Add", ["m" + name, "w" + name], ["y" + name], name=name),
        ],
        name,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name, 3])],
        [helper.make_tensor_value_info("y" + name, TensorProto.FLOAT, [name, 3])],
        [helper.make_tensor("w" + name, TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])],
        doc_string=name,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    helper.set_model_props(model, {name: name})
    text = dump(load_onnx(model).module)
    assert dump(load(text)) == text
    assert all(char.isprintable() or char == "\n" for char in text)
    # Outside of quoted text there is no name from the file but that of the size, as an identifier.
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert set(bare) <= set(string.ascii_letters + string.digits + " \n%@_.,:;=()[]{}<>!-+*")
    bound = load_onnx(model, {size_name(model): 2})
    x = np.ones((2, 3), np.float32)
    (y,) = run(bound, {bound.input_names[0]: x})
    np.testing.assert_array_equal(y, np.array([[2, 4, 6]] * 2, np.float32))


def size_name(model: onnx.ModelProto) -> str:
    """What the user calls the first size: its text, or its place if that says nothing."""
    text = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    table = SizeTable({text: 2})
    if table.dim(text, "") == 2:
        return text
    (symbolic,) = SizeTable().dim(text, f"{model.graph.input[0].name}_0").names()  # type: ignore[union-attr]
    return symbolic


@pytest.mark.parametrize(
    ("text", "size"),
    [("S", "S"), ("2*S", "2*S"), ("S + 1", "S + 1"), ("2*(S+1) - S", "S + 2"), ("S*S", "S*S")],
)
def test_sizes_are_parsed(text: str, size: str) -> None:
    assert str(Parser(text, symbol).parse()) == size


@pytest.mark.parametrize(
    "text",
    [
        '__import__("os").system("touch x")', "9**9**9", "S/2", "floor(S)", "(" * 100, "1+", "+",
        "S S",
        "\u0661", "a" * 10_000, "*".join(f"(a{i}+b{i})" for i in range(20)), "9" * 40,
        "lambda: 0",
    ],
)  # fmt: skip
def test_other_text_is_a_fresh_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Parser(text, symbol).parse()
    dim = SizeTable().dim(text, "x_0")
    assert isinstance(dim, Size)
    (name,) = dim.names()
    assert name.isascii() and name.isidentifier() and len(name) < 60


def test_names_that_collide_after_replacement_stay_apart() -> None:
    table = SizeTable({"a-b": 3})
    assert table.dim("a-b", "x_0") == 3
    assert str(table.dim("a.b!", "x_1")) != str(table.dim("a_b", "x_2"))
    assert table.dim("?", "x_0") != table.dim("?", "x_1")
    assert str(SizeTable().dim("true", "x_0")) != "true"


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_text_raises(text: str) -> None:
    dim = SizeTable().dim(text, "place_0")
    assert isinstance(dim, int | Size)
