"""Short input that asks for much is refused at once, by a registered error that names the bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest
from onnx import TensorProto, helper

from irc.cluster.load import example, parse_cluster
from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.errors import IrcError
from irc.frontends.onnx.load import load_onnx

MAX_SECONDS = 2.0


def aliases(levels: int, width: int = 4) -> str:
    """Return IR in which each alias names the one before some times."""
    lines = ["#a0 = [1, 1]"]
    lines += [f"#a{i} = [{', '.join([f'#a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join([*lines, f"builtin.module attributes {{x = #a{levels - 1}}} {{\n}}\n"])


def wide(count: int) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [count])
    node = helper.make_node("Concat", ["x"] * count, ["y"], axis=0)
    model = helper.make_model(
        helper.make_graph([node], "g", [value], [result]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    model.ir_version = 9
    return model.SerializeToString()


CASES: Mapping[str, tuple[Callable[[], object], str]] = {
    "an alias of aliases": (lambda: load(aliases(40)), "ir-too-large"),
    "a key of 50,000 parts": (lambda: parse_cluster("a." * 50_000 + "b = 1"), "cluster-invalid"),
    "such a table": (lambda: parse_cluster(f"[{'a.' * 50_000}b]"), "cluster-invalid"),
    "quoted parts": (lambda: parse_cluster('"a" . ' * 50_000 + "b = 1"), "cluster-invalid"),
    "within a value": (lambda: parse_cluster(f"x = {{{'a.' * 50_000}b=1}}"), "cluster-invalid"),
    "a key of a million letters": (lambda: parse_cluster("a" * 1_000_000), "cluster-invalid"),
    "a sum of 100,000 operands": (lambda: load_onnx(wide(100_000)), "onnx-invalid"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_at_once(name: str) -> None:
    refused, code = CASES[name]
    start = time.process_time()
    with pytest.raises(IrcError) as caught:
        refused()
    assert caught.value.code == code
    assert time.process_time() - start < MAX_SECONDS


def test_what_is_plain_is_read() -> None:
    load(aliases(4))
    assert parse_cluster(f"# {'a.' * 99}\n{example()}").num_devices == 16
    assert load_onnx(wide(64)).module is not None


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        (",".join(f"a{i}=2" for i in range(40)), "40 axes; it has at most 8"),
        ("data=1048577", "1048577 ranks"),
        (f"data={2**62}", "ranks; it has at most"),
    ],
)
def test_a_mesh_that_nobody_has(mesh: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Mesh.parse(mesh)
    Mesh.parse("pipeline=2,data=4,context=2,tensor=8")
