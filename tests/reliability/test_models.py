"""Hostile files from end to end, one test or more for each kind: S01 to S10.

What a single part refuses is tested beside it, in tests/frontends/onnx: names and sizes in
`test_names` (S06), external data in `test_external` (S08), bytes that are no model in `test_read`
(S09, S10); launch files in tests/backends/launch (S04), command lines in tests/test_bad_input
(S07); files with random damage are those of `tests.malformed`. Here whole commands run, in a folder
where a canary would show.
"""

# pyright: basic
from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import irc
import irc.onnx
from irc.cli import main
from irc.error_pages import REGISTRY
from irc.frontends.onnx import load_onnx
from tests.frontends.onnx.test_names import HOSTILE

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not [path for path in tmp_path.rglob("*") if path.name == "canary"]


def chain(names: list[str]) -> onnx.ModelProto:
    """A node for each name, which its tensors, weights, functions and sizes bear too."""
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    functions: list[onnx.FunctionProto] = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    value = f"{names[0]} in"
    for i, name in enumerate(names):
        weights.append(helper.make_tensor(f"w{name}", FLOAT, [4], np.arange(4) + float(i)))
        body = [helper.make_node("Add", [f"a{name}", f"b{name}"], [f"c{name}"], name=name)]
        ports = ([f"a{name}", f"b{name}"], [f"c{name}"])
        functions.append(helper.make_function("local", f"f{name}", *ports, body, opsets))
        kind, domain = (f"f{name}", "local") if i % 2 else ("Mul", "")
        nodes.append(
            helper.make_node(kind, [value, f"w{name}"], [f"y{name}"], name=name, domain=domain)
        )
        nodes[-1].doc_string = name
        value = f"y{name}"
    input_info = helper.make_tensor_value_info(f"{names[0]} in", FLOAT, [names[-1], 4])
    output_info = helper.make_tensor_value_info(value, FLOAT, [names[-1], 4])
    graph = helper.make_graph(
        nodes, names[0], [input_info], [output_info], weights, doc_string=names[0]
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    helper.set_model_props(model, {name: name for name in names})
    return model


def expected(count: int, x: np.ndarray) -> np.ndarray:
    for i in range(count):
        weight = np.arange(4, dtype=np.float32) + i
        x = x + weight if i % 2 else x * weight
    return x


CODE = re.compile(r"touch canary|__import__|system\(|</script>|#SBATCH -x|\.\./|%s%n")


@pytest.mark.parametrize("backend", ["cpu", "cuda", "triton"])
def test_s01_hostile_names_reach_no_code(backend: str, here: Path) -> None:
    """S01: each name in each place, through each backend and into each file of a plan."""
    onnx.save(chain(HOSTILE), "m.onnx")
    words = ["compile", "m.onnx", "-o", "plan", "--backend", backend]
    sized = load_onnx("m.onnx").module  # the name that the first size bears
    (name,) = set(re.findall(r"tensor<\[([A-Za-z_0-9]+), 4\]", str(sized)))
    assert main([*words, "--size", f"{name}=2"]) == 0
    for path in (here / "plan").rglob("*"):
        if path.is_file() and path.suffix not in (".json", ".mlir", ".safetensors"):
            text = path.read_bytes().decode("utf-8", "replace")
            assert not CODE.search(text), path.name
            assert path.suffix == ".so" or ("\x1b" not in text and "\u202e" not in text)
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "plan"]


COLLIDING = ["a-b", "a_b", "a.b", "A", "a", "CON", "con", "for", "int", "v12", "a b", "", "\u00e9"]


def test_s02_names_that_collide_stay_apart(here: Path) -> None:
    """S02: names that any replacement of characters would make equal, as weights and values."""
    model = chain([f"{name}#{i}"[: len(name) + 1] for i, name in enumerate(COLLIDING)])
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (output,) = irc.onnx.InferenceSession(model).run(None, {model.graph.input[0].name: x})
    np.testing.assert_allclose(output, expected(len(COLLIDING), x), rtol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "cuda", "triton"])
def test_s03_what_ends_a_comment(backend: str, here: Path) -> None:
    """S03: names and places that would end a comment, or continue a line of one."""
    names = ["*/", "??/", "end\\", "one\ntwo", '"""', "'''", "#", "//", "\r", "\u2028"]
    model = chain(names)
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for size in (2, 4):
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = size
    onnx.save(model, "m.onnx")
    assert main(["compile", "m.onnx", "-o", "plan", "--backend", backend]) == 0
    sources = sorted((here / "plan" / "kernels").iterdir())
    assert sources
    for path in sources:
        text = path.read_text()
        assert "??/" not in text and "\r" not in text and "\u2028" not in text
        if path.suffix == ".cu":
            assert text.count("/*") == text.count("*/")
        for line in text.splitlines():
            assert not line.rstrip().endswith("\\") or not line.lstrip().startswith("//")
        if path.suffix == ".py":
            compile(text, path.name, "exec")


def test_s04_a_hostile_folder_in_launch_files(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S04: the place of a plan is quoted in what starts it, or refused."""
    onnx.save(chain(["w"]), "m.onnx")
    folder = "$(touch canary); touch canary #"
    assert main(["compile", "m.onnx", "-o", folder, "--size", "w=2"]) == 0
    capsys.readouterr()
    assert main(["launch", folder]) == 0
    script = Path("start.sh")
    script.write_text(capsys.readouterr().out)
    (here / "bin").mkdir()
    (here / "bin" / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (here / "bin" / "torchrun").chmod(0o755)
    env = {**os.environ, "PATH": f"{here}/bin:{os.environ['PATH']}"}
    said = subprocess.run(["sh", "start.sh"], env=env, capture_output=True, text=True, check=True)
    assert folder in said.stdout


def test_s05_names_of_a_module_reach_no_code(here: Path) -> None:
    """S05: parameters and submodules of a module may bear any name, too."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, name in enumerate(n for n in HOSTILE if "." not in n):
                self.register_parameter(f"{name} {i}", nn.Parameter(torch.full((4,), 1.0 + i)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for parameter in self.parameters():
                x = x + parameter
            return x

    module = Odd()
    irc.export_plan(module, (torch.ones(2, 4),), out="plan")
    for path in (here / "plan" / "kernels").iterdir():
        assert not CODE.search(path.read_text())
    x = torch.randn(2, 4)
    torch.testing.assert_close(irc.compile(module)(x), module(x))


BOMBS = ('__import__("os").system("touch canary")', "9**9**9", "(" * 10_000, "a+" * 5_000, "\u0663")


@pytest.mark.parametrize("text", BOMBS)
def test_s06_expressions_of_sizes_are_not_run(
    text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S06: the name of a size is a name; as the value of --size it is refused."""
    model = chain(["w"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
    onnx.save(model, "m.onnx")
    (output,) = irc.onnx.InferenceSession("m.onnx").run(None, {"w in": np.ones((2, 4), np.float32)})
    assert output.shape == (2, 4)
    assert main(["compile", "m.onnx", "-o", "plan", "--size", f"w={text}"]) == 2
    assert "error[" in capsys.readouterr().err


OPTIONS = (
    "fuse{", "fuse}", "fuse{a={b={c=1}}}", 'fuse{a="}', "fuse{" * 20_000, "fusse," * 20_000,
    "x" * 100_000, "fuse{a=" + "1" * 100_000 + "}", "__import__('os')", "'", "{", ",",
    "fuse{a=1 a=2}",
)  # fmt: skip


@pytest.mark.parametrize("text", OPTIONS, ids=range(len(OPTIONS)))
def test_s07_text_of_pipelines(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S07: quotes, braces and length in what names passes and their options."""
    Path("p.mlir").write_text("builtin.module {\n}\n")
    status = main(["opt", "p.mlir", "-p", text])
    errors = capsys.readouterr().err
    (code,) = re.findall(r"^error\[([a-z-]+)\]: ", errors, re.MULTILINE)
    assert status == REGISTRY[code].exit_code == 2
    assert len(errors) < 4000 and "Traceback" not in errors


def with_external(**entries: str) -> onnx.ModelProto:
    model = chain(["w", "v"])
    for tensor in model.graph.initializer:
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "w.bin", "offset": "0", "length": "16", **entries}.items():
            tensor.external_data.add(key=key, value=value)
    return model


def test_s08_external_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S08: devices, pipes and a file that is large only by its name; overlapping parts load."""
    weight = np.arange(4, dtype=np.float32)
    Path("w.bin").write_bytes(weight.tobytes())
    onnx.save(with_external(), "m.onnx")
    x = np.ones((2, 4), np.float32)
    (output,) = irc.onnx.InferenceSession("m.onnx").run(None, {"w in": x})
    np.testing.assert_allclose(output, x * weight + weight)
    os.mkfifo("pipe")
    with Path("sparse.bin").open("wb") as file:
        file.truncate(1 << 40)
    Path("up").symlink_to("/")
    for entries in (
        {"location": "/dev/zero"}, {"location": "pipe"}, {"location": "up/etc/passwd"},
        {"location": "sparse.bin", "length": str(1 << 40)}, {"offset": "8"}, {"offset": "-8"},
        {"location": "."}, {"checksum": "0" * 40},
    ):  # fmt: skip
        onnx.save(with_external(**entries), "bad.onnx")
        assert main(["compile", "bad.onnx", "-o", "plan", "--size", "v=2"]) == 2, entries
        assert "Traceback" not in capsys.readouterr().err
        assert not Path("plan").exists()


def test_s09_files_that_are_no_models(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S09: also one of over 2 GB, which protobuf cannot hold, is not read into memory."""
    good = chain(["w"]).SerializeToString()
    files = {
        "empty": b"", "short": good[:-9], "noise": os.urandom(300), "page": b"<html>404</html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\n", "gzip": b"\x1f\x8b" + good,
        "zip": b"PK\x03\x04" + good,
    }  # fmt: skip
    for name, data in files.items():
        Path(f"{name}.onnx").write_bytes(data)
        assert main(["compile", f"{name}.onnx", "-o", "plan"]) == 2, name
        assert "error[not-onnx]" in capsys.readouterr().err
    with Path("huge.onnx").open("wb") as file:
        file.write(good)
        file.truncate(3 << 30)
    assert main(["compile", "huge.onnx", "-o", "plan"]) == 2
    assert "2 GiB" in capsys.readouterr().err
    for change in ("ir_version", "opset", "domain"):
        model = chain(["w"])
        model.ir_version = 999 if change == "ir_version" else 8
        model.opset_import[0].version = 999 if change == "opset" else 17
        model.graph.node[0].domain = "nobody.example" if change == "domain" else ""
        onnx.save(model, "m.onnx")
        assert main(["compile", "m.onnx", "-o", "plan", "--size", "w=2"]) in (2, 3)
        assert re.match(r"error\[[a-z-]+\]: ", capsys.readouterr().err)


def test_s10_sizes_and_graphs_without_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S10: sizes that no memory holds, a loop of 2**63 trips, a graph of a million nodes."""
    for size in (1 << 40, 1 << 62):
        model = chain(["w"])
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
        onnx.save(model, "m.onnx")
        status = main(["compile", "m.onnx", "-o", "plan"])
        assert status in (2, 3, 4), size
        assert re.match(r"error\[[a-z-]+\]: ", capsys.readouterr().err)
    trips = helper.make_tensor("n", TensorProto.INT64, [], [(1 << 63) - 1])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["s"], ["t"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", FLOAT, [2])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", FLOAT, [2])],
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("x", "y")]
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", ends[:1], ends[1:], [trips])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m.onnx")
    # The loop is the run's: what is compiled is its body.
    assert main(["compile", "m.onnx", "-o", "plan"]) == 0
    assert not [file for file in Path("plan").rglob("*") if file.stat().st_size > 1 << 20]
    nodes = [helper.make_node("Neg", [f"x{i}"], [f"x{i + 1}"]) for i in range(300_000)]
    ends = [helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("x0", "x300000")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m.onnx")
    assert main(["compile", "m.onnx", "-o", "other"]) == 2
    assert "nodes" in capsys.readouterr().err
