"""A model whose weights lie in external data compiles within 1.2 times their size.

What counts is the most memory that the compiling process ever held (``VmHWM``), mapped pages of
the weights among it, less what compiling a small model of the same form takes. Where the plan gets
machine code, its packed weights are written through a mapped file, too, which the machine takes
back as it needs: there what counts is memory that no file stands behind (``RssAnon``).
"""

# pyright: basic
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

WIDTH = 4096
LAYER_BYTES = 4 * WIDTH * WIDTH

COMPILE = """
import sys, threading, time
from pathlib import Path
from irc.cli import main

def now(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))

def watch():
    while True:
        anonymous[0] = max(anonymous[0], now("RssAnon"))
        time.sleep(0.01)

anonymous = [0]
threading.Thread(target=watch, daemon=True).start()
code = main(["compile", *sys.argv[1:], "--cluster", "1xH100"])
print("PEAK", anonymous[0], now("VmHWM"))
sys.exit(code)
"""


def write_model(folder: Path, layers: int, width: int = WIDTH) -> Path:
    """Write products of matrices, each with a weight of its own in one file of external data."""
    folder.mkdir()
    block = np.random.default_rng(0).standard_normal((width, width), np.float32) / width**0.5
    weights: list[TensorProto] = []
    with (folder / "weights.bin").open("wb") as file:
        for i in range(layers):
            weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
            weight.data_location = TensorProto.EXTERNAL
            entries = {"location": "weights.bin", "offset": file.tell(), "length": block.nbytes}
            for key, value in entries.items():
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            block[0, 0] = i
            file.write(block.data)
    nodes = [
        node
        for i in range(layers)
        for node in (
            helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"t{i}"]),
            helper.make_node("Relu", [f"t{i}"], [f"x{i + 1}"]),
        )
    ]
    graph_input, graph_output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, width])
        for name in ("x0", f"x{layers}")
    )
    graph = helper.make_graph(nodes, "layers", [graph_input], [graph_output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    return path


def peak_bytes(model: Path, plan: Path, *options: str) -> tuple[int, int]:
    """Compile in a process of its own; return the most memory without a file behind it, and all."""
    ended = subprocess.run(
        [sys.executable, "-c", COMPILE, str(model), "-o", str(plan), *options],
        capture_output=True, text=True, check=False,
        env={**os.environ, "IRC_CACHE": "off"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    anonymous, whole = ended.stdout.split("PEAK ")[1].split()
    return int(anonymous), int(whole)


def room(path: Path, layers: int) -> None:
    needed = 2 * layers * LAYER_BYTES + (2 << 30)
    if shutil.disk_usage(path).free < needed:
        pytest.skip(f"the disk has less than {needed >> 30} GiB")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("layers", "native"), [(16, False), (16, True), (160, False)], ids=["1", "1 native", "10"]
)
def test_weights_are_mapped_once(layers: int, native: bool, tmp_path: Path) -> None:
    room(tmp_path, layers)
    size, options = layers * LAYER_BYTES, () if native else ("--native", "none")
    small = write_model(tmp_path / "small", layers, width=64)
    base = peak_bytes(small, tmp_path / "small-plan", *options)
    large = write_model(tmp_path / "large", layers)
    try:
        peak = peak_bytes(large, tmp_path / "plan", *options)
        stored = (tmp_path / "plan" / "weights.safetensors").stat().st_size
    finally:
        shutil.rmtree(tmp_path / "large")
        shutil.rmtree(tmp_path / "plan", ignore_errors=True)
    assert size <= stored < 1.01 * size
    anonymous, whole = (a - b for a, b in zip(peak, base, strict=True))
    print(f"{anonymous / size:.2f} anonymous, {whole / size:.2f} in all, times the weights")
    assert anonymous <= 0.2 * size
    assert native or whole <= 1.2 * size
