"""The command line: an ONNX file is compiled for four ranks, run and checked.

Run it with ``python examples/command_line.py``; it writes an MLP, then calls ``irc`` as a shell would.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import helper, numpy_helper


def write_mlp(path: Path, *, batch: int = 16, width: int = 64, hidden: int = 256) -> None:
    """Write a two-layer perceptron with random weights as an ONNX file."""
    draw = np.random.default_rng(0).standard_normal
    weights = [
        numpy_helper.from_array((draw(shape) / shape[0] ** 0.5).astype(np.float32), name)
        for name, shape in {"up": (width, hidden), "down": (hidden, width)}.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["raised"]),
        helper.make_node("Relu", ["raised"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch, width]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


def main() -> None:
    """Write, compile, run, check; stop at the first command that fails."""
    with TemporaryDirectory() as folder:
        write_mlp(Path(folder, "mlp.onnx"))
        for command in (
            "compile mlp.onnx -o plan --mesh data=2,tensor=2 --cluster 8xH100",
            "run plan",
            "check plan",
            "launch plan --format torchrun",
        ):
            print(f"$ irc {command}", flush=True)
            subprocess.run(
                [sys.executable, "-m", "irc.cli", *command.split()], cwd=folder, check=True
            )


if __name__ == "__main__":
    main()
