"""Files that are not models, damaged models, and versions: each ends in one message."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.read import looks_like
from tests.frontends.onnx.compare import model_of, run
from tests.models.onnx_models import mlp, resnet

MODEL = mlp().SerializeToString()


def refusal(source: object) -> IrcError:
    with pytest.raises(IrcError) as caught:
        load_onnx(source)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) < 15
    return caught.value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html>404</html>", "web page"),
        (gzip.compress(MODEL), "gzip"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b'{"model": 1}', "JSON"),
        (b"\x80\x04\x95 pickle", "pickle"),
        (b"\x30\x00\x00\x00\x00\x00\x00\x00" + b'{"a":{"dtype":"F32"}}', "safetensors"),
        (b"just some words", "plain text"),
        (MODEL[: len(MODEL) // 2], "truncated"),
        (MODEL[:-3], "truncated"),
    ],
)
def test_what_is_not_a_model(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    error = refusal(path)
    assert (error.code, error.exit_code) == ("not-onnx", 2)
    assert words in str(error)
    assert "m.onnx" in error.message


@pytest.mark.parametrize("seed", range(20))
def test_damaged_bytes_end_in_an_error_or_a_program(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(rng.randbytes(300) if seed < 5 else resnet(widths=(2, 3)).SerializeToString())
    for _ in range(rng.randint(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    # Whether the model survives depends on what is hit; nothing but our own error is raised.
    with contextlib.suppress(IrcError):
        load_onnx(bytes(data))
        assert seed >= 5, "random bytes are no model"


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.onnx").code == "file-missing"
    assert "folder" in refusal(tmp_path).message
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in refusal(tmp_path / "pipe").message
    assert "regular file" in refusal("/dev/zero").message
    assert refusal("nul\0byte.onnx").code == "file-missing"


def test_an_archive_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.onnx", "w") as archive:
        archive.writestr("data.pkl", b"x")
    assert "PyTorch checkpoint" in str(refusal(tmp_path / "m.onnx"))


def test_looks_like_answers_for_anything() -> None:
    rng = random.Random(0)
    assert all(looks_like(rng.randbytes(n)) for n in range(64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m.opset_import[0], "version", 0), "opset 0"),
        (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999"),
        (lambda m: setattr(m, "ir_version", 99), "IR version 99"),
        (lambda m: m.ClearField("opset_import"), "which opset"),
    ],
)
def test_versions(change: object, words: str) -> None:
    model = onnx.ModelProto.FromString(MODEL)
    change(model)  # type: ignore[operator]
    error = refusal(model)
    assert error.code == "onnx-version"
    assert words in error.message


def test_a_foreign_domain_is_reported_by_node() -> None:
    model = onnx.ModelProto.FromString(MODEL)
    model.graph.node[1].domain = "com.example"
    model.graph.node[1].name = "mine"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    error = refusal(model)
    assert error.code == "op-unsupported"
    assert "com.example" in error.message
    assert "node 1 'mine' (Relu)" in error.where


def invalid(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


@pytest.mark.parametrize(
    "text",
    [
        "(float[3] x) => (float[3] y) { y = Relu (z) }",
        "(float[3] x) => (float[3] y) { a = Relu (b)\nb = Relu (a)\ny = Neg (a) }",
        "(float[3] x) => (float[3] y) { y = Relu (x)\ny = Neg (x) }",
        "(float[3] x) => (float[3] y) { y = Relu (x, x) }",
        "(float[3] x) => (float[3] y) { y = Softmax <axis = 7> (x) }",
        "(float[3] x) => (float[3] y) { a = Relu (x) }",
        "(float[3,4] x, float[5] z) => (float[3] y) { y = Add (x, z) }",
        "(float[6] x) => (float[3] y) {s = Constant <value_ints = [4,-1]> ()\ny = Reshape (x, s) }",
        "(float[6] x) => (float[3] y) { s = Constant <value_int = 9> ()\ny = Gather (x, s) }",
        "(float[6] x) => (float[3] y) { a, b = Split (x)\ny = Transpose <perm = [3]> (a) }",
    ],
)
def test_graphs_that_contradict_themselves(text: str) -> None:
    assert refusal(invalid(text)).exit_code in (2, 3)


BOMBS = [
    "s = Constant <value_ints = [1152921504606846976]> ()\ny = ConstantOfShape (s)",
    "s = Constant <value_ints = [1073741824, 1073741824]> ()\ny = Expand (x, s)",
    "s = Constant <value_ints = [4611686018427387904]> ()\ny = Tile (x, s)",
    "a = Constant <value_int = 0> ()\nb = Constant <value_int = 4611686018427387904> ()\n"
    "c = Constant <value_int = 1> ()\nd = Range (a, b, c)\ny = Cast <to = 1> (d)",
    "s = Constant <value_ints = [0, 4611686018427387904]> ()\ny = Pad (x, s)",
    "i = Cast <to = 7> (x)\nd = Constant <value_int = 4611686018427387904> ()\n"
    "v = Constant <value_floats = [0.0, 1.0]> ()\ny = OneHot (i, d, v)",
    "s = Constant <value_floats = [1e18]> ()\ny = Resize (x, , s)",
]


@pytest.mark.parametrize("body", BOMBS)
def test_bombs_are_refused_before_they_are_allocated(body: str) -> None:
    model = invalid(f"(float[1] x) => (float[a] y) {{ {body} }}")
    assert refusal(model).exit_code in (2, 3)


def test_functions_that_call_themselves_or_explode() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[3] x) => (float[3] y)'
        " { y = f.a (x) }\n"
        '<domain: "f", opset_import: ["": 17, "f": 1]> a (x) => (y) { y = f.b (x) }\n'
        '<domain: "f", opset_import: ["": 17, "f": 1]> b (x) => (y) { y = f.a (x) }'
    )
    assert "calls itself" in refusal(onnx.parser.parse_model(text)).message
    parts = [
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[3] x) => (float[3] y)'
        " { y = f.f40 (x) }",
        '<domain: "f", opset_import: ["": 17]> f0 (x) => (y) { y = Relu (x) }',
        *(
            f'<domain: "f", opset_import: ["": 17, "f": 1]> f{i} (x) => (y) '
            f"{{ a = f.f{i - 1} (x)\ny = f.f{i - 1} (a) }}"
            for i in range(1, 41)
        ),
    ]
    assert "nodes" in refusal(onnx.parser.parse_model("\n".join(parts))).message


def test_local_functions_expand() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[3] x) => (float[3] y)'
        " { y = f.twice (x) }\n"
        '<domain: "f", opset_import: ["": 17]> twice (x) => (y) { y = Add (x, x) }'
    )
    program = load_onnx(onnx.parser.parse_model(text))
    assert 'fn = "add"' in str(program.module)


def test_nodes_in_any_order_are_sorted() -> None:
    model = model_of(
        """c = Neg (b)
        b = Exp (x)
        y = If (go) <then_branch = t () => (float[3] u) { v = Abs (d)\nu = Add (v, c) },
                     else_branch = e () => (float[3] w) { w = Identity (c) }>
        d = Relu (c)""",
        "float[3] x", "float[3] y", stored="bool go = {1}",
    )  # fmt: skip
    body = model.graph.node[2].attribute[0].g
    first, second = list(body.node)
    del body.node[:]
    body.node.extend([second, first])
    before = model.SerializeToString()
    x = np.array([0.5, -1, 2], np.float32)
    outputs = run(load_onnx(model), {"x": x})
    np.testing.assert_allclose(outputs[0], -np.exp(x), rtol=1e-6)
    assert model.SerializeToString() == before


def test_nodes_that_wait_for_each_other_are_refused() -> None:
    model = model_of("b = Neg (c)\nc = Exp (b)\ny = Add (b, x)", "float[3] x", "float[3] y")
    with pytest.raises(IrcError, match="sorted"):
        load_onnx(model)
