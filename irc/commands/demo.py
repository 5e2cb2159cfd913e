"""`irc demo`: a small model, compiled for four ranks, checked and run on this machine."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

HELP = "compile, check and run a small model on four ranks of this machine"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc demo`: it has none."""


def run(_args: argparse.Namespace) -> int:
    """Run the demonstration."""
    run_demo()
    return 0


def run_demo() -> None:
    """Show the way of a model through irc, with what each step prints."""
    from irc.api import compile_file
    from irc.interpret.check import check_plan
    from irc.runtime.launch import run_plan

    with TemporaryDirectory() as folder:
        model, plan = Path(folder, "mlp.onnx"), Path(folder, "plan")
        _write_mlp(model)
        print("$ irc compile mlp.onnx -o plan --mesh data=2,tensor=2")
        print(compile_file(str(model), str(plan), mesh="data=2,tensor=2"))
        print("$ irc check plan")
        print(check_plan(str(plan)))
        print("$ irc run plan")
        print(run_plan(str(plan)))


def _write_mlp(path: Path, *, batch: int = 16, width: int = 64, hidden: int = 256) -> None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    shapes = {"up": (width, hidden), "down": (hidden, width)}
    weights = [
        numpy_helper.from_array(
            (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name
        )
        for name, shape in shapes.items()
    ]
    tensor = (onnx.TensorProto.FLOAT, [batch, width])
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "up"], ["raised"]),
            helper.make_node("Relu", ["raised"], ["active"]),
            helper.make_node("MatMul", ["active", "down"], ["y"]),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", *tensor)],
        [helper.make_tensor_value_info("y", *tensor)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path.write_bytes(model.SerializeToString())
