"""External data stays in the model's own folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from tests.frontends.onnx.compare import run

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def model_with(**entries: str) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "model"
    (inner / "sub").mkdir(parents=True)
    for place in (inner, inner / "sub", tmp_path):
        (place / "w.bin").write_bytes(bytes(8) + VALUES.tobytes())
    return inner


def save(folder: Path, **entries: str) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model_with(**{"offset": "8", "length": "48", **entries}).SerializeToString())
    return path


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_data_beside_the_model_is_mapped(folder: Path, location: str) -> None:
    program = load_onnx(save(folder, location=location))
    assert torch.equal(program.tensors["w"], torch.from_numpy(VALUES))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(run(program, {"x": x})[0], x @ VALUES)
    # Copy on write: a change of the tensor does not reach the file.
    program.tensors["w"].zero_()
    assert (folder / location).read_bytes()[8:] == VALUES.tobytes()


@pytest.mark.parametrize(
    ("entries", "code", "words"),
    [
        ({"location": "../w.bin"}, "external-data", "not a path inside"),
        ({"location": "sub/../../w.bin"}, "external-data", "not a path inside"),
        ({"location": "/etc/passwd"}, "external-data", "not a path inside"),
        ({"location": ""}, "external-data", "not a path inside"),
        ({"location": "a\\..\\w.bin"}, "external-data", "not a path inside"),
        ({"location": "none.bin"}, "file-missing", "does not exist"),
        ({"location": "sub"}, "external-data", "not a regular file"),
        ({"location": "w.bin", "offset": "-8"}, "onnx-invalid", "offset"),
        ({"location": "w.bin", "offset": "16"}, "external-data", "past its end"),
        ({"location": "w.bin", "length": "1099511627776"}, "onnx-invalid", "states"),
        ({"location": "w.bin", "length": "9" * 60}, "onnx-invalid", "not a number"),
        ({"location": "w.bin", "checksum": "0" * 40}, "external-data", "SHA-1"),
    ],
)
def test_what_is_refused(folder: Path, entries: dict[str, str], code: str, words: str) -> None:
    with pytest.raises(IrcError) as caught:
        load_onnx(save(folder, **entries))
    assert caught.value.code == code
    assert words in caught.value.message


def test_links_pipes_and_devices_are_refused(folder: Path) -> None:
    (folder / "out.bin").symlink_to(folder.parent / "w.bin")
    (folder / "zero.bin").symlink_to("/dev/zero")
    (folder / "up").symlink_to(folder.parent)
    os.link(folder.parent / "w.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe.bin")
    for location in ("out.bin", "zero.bin", "up/w.bin", "hard.bin", "pipe.bin"):
        with pytest.raises(IrcError) as caught:
            load_onnx(save(folder, location=location))
        assert caught.value.code == "external-data", location


def test_a_content_store_loads(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    save(folder, location="w.bin").rename(blobs / "1a")
    (folder / "w.bin").rename(blobs / "2b")
    (snapshot / "m.onnx").symlink_to("../blobs/1a")
    (snapshot / "w.bin").symlink_to("../blobs/2b")
    program = load_onnx(snapshot / "m.onnx")
    assert torch.equal(program.tensors["w"], torch.from_numpy(VALUES))
    (snapshot / "w.bin").unlink()
    (snapshot / "w.bin").symlink_to("../w.bin")
    with pytest.raises(IrcError, match="refused"):
        load_onnx(snapshot / "m.onnx")


def test_bytes_have_no_folder() -> None:
    with pytest.raises(IrcError, match="without a folder"):
        load_onnx(model_with(location="w.bin", length="48").SerializeToString())


def test_raw_data_of_the_wrong_length() -> None:
    model = model_with()
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.DEFAULT
    weight.raw_data = bytes(47)
    with pytest.raises(IrcError, match="48 bytes") as caught:
        load_onnx(model)
    assert caught.value.code == "onnx-invalid"
