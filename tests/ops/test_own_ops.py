"""Users' own ops end to end: torch.library, triton_op and C++; declared in Python or a plug-in.

Each is captured in a module, sharded on four ranks, differentiated, priced and explained.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from shutil import which

import pytest
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

import irc
from irc.dialects.builder import entry, results
from irc.dialects.flow import ExternOp, id_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.ops.custom import DECLARED, declaration, left_out
from irc.ops.work import UNKNOWN_FLOPS, bytes_moved, flops
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.sharding.signatures import match_signature
from tests.ops import own_ops

# It takes a C++ compiler half a minute to read torch's headers.
CPP = pytest.param("cpp", marks=pytest.mark.slow)
KINDS = ("library", "triton", CPP)
PIN = {
    "library": "[data = S(0)], [data = S(0)] -> [data = S(0)]",
    "triton": "[data = S(0)] -> [data = S(0)]",
    "cpp": "[data = S(1)], [data = S(0)] -> [data = P(sum)]",
}
"""A placement that only the declared rule allows."""


class Own(nn.Module):
    """Each op between two matmuls."""

    def __init__(self, kind: str, op: Callable[..., Tensor]) -> None:
        super().__init__()
        self.kind, self.op = kind, op
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        match self.kind:
            case "library":
                hidden = self.op(inner, x.sum(1, keepdim=True) + inner)
            case "triton":
                hidden = self.op(inner)
            case _:
                hidden = self.op(inner, self.down.weight.T @ self.down.weight, 0.5)
        return self.down(hidden).square().mean()

    def expected(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        match self.kind:
            case "library":
                hidden = inner * (x.sum(1, keepdim=True) + inner).sigmoid()
            case "triton":
                hidden = 2 * inner + 1
            case _:
                hidden = 0.5 * inner @ (self.down.weight.T @ self.down.weight)
        return self.down(hidden).square().mean()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Callable[..., Tensor]]:
    def make(kind: str) -> Callable[..., Tensor]:
        if kind == "library":
            return own_ops.library_op()
        if kind == "triton":
            if not own_ops.has_triton():
                pytest.skip("no triton here")
            return own_ops.triton_op()
        if which("g++") is None or which("ninja") is None:
            pytest.skip("no C++ compiler here")
        return own_ops.cpp_op(tmp_path_factory.getbasetemp())

    return make


def own(module: ModuleOp) -> ExternOp:
    externs = [op for op in module.walk() if isinstance(op, ExternOp)]
    (op,) = (op for op in externs if op.plain["target"].startswith("irc_own"))
    return op


@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_own_op_is_sharded_by_its_rule_forward_and_backward(
    kind: str, mesh: str, built: Callable[[str], Callable[..., Tensor]]
) -> None:
    torch.manual_seed(0)
    model, x = Own(kind, built(kind)).double(), torch.randn(8, 8, dtype=torch.float64)
    captured = irc.capture(model, (x,))
    module = captured.program.module
    inputs = [*captured.program.tensors.values(), x]
    expected = model.expected(x)
    (loss,) = run_function(module, inputs)
    torch.testing.assert_close(loss, expected)
    DifferentiatePass(loss=results(entry(module))[0][1]).apply(context(), module)
    CanonicalizePass().apply(context(), module)
    pins = f"pin op *{id_of(own(module))} = {PIN[kind]}"
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    on, op = Mesh.parse(mesh), own(module)
    signature = match_signature(op, on)
    assert signature is not None
    assert signature.splits[0]
    LowerBoxingPass().apply(context(), module)
    values = run_spmd(module, inputs, on)
    expected.backward()
    for (role, name), value in zip(results(entry(module)), values, strict=True):
        wanted = model.get_parameter(name).grad if role == "gradient" else expected.detach()
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("kind", "assumed"),
    [
        ("library", ()),
        ("triton", ("flops",)),
        pytest.param("cpp", ("bytes",), marks=pytest.mark.slow),
    ],
)
def test_work_is_what_is_declared_and_what_is_left_out_is_estimated(
    kind: str, assumed: tuple[str, ...], built: Callable[[str], Callable[..., Tensor]]
) -> None:
    op = own(irc.capture(Own(kind, built(kind)), (torch.randn(8, 8),)).program.module)
    elements = sum(prod(tensor(v).static_shape()) for v in (*op.inputs, *op.outputs))
    work = {
        "library": (5 * 96, 3 * 4 * 96),
        "triton": (UNKNOWN_FLOPS * elements, 8 * 8),
        "cpp": (2 * 8 * 12 * 12, 4 * elements),
    }
    assert (flops(op), bytes_moved(op)) == work[kind]
    assert [gap.assumed for gap in left_out([op])] == ([assumed] if assumed else [])


@pytest.mark.parametrize("kind", ["triton", CPP])
def test_the_explanation_of_a_plan_lists_what_was_assumed(
    kind: str,
    tmp_path: Path,
    built: Callable[[str], Callable[..., Tensor]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from irc.cli import main

    model = Own(kind, built(kind))
    irc.export_plan(
        model, (torch.randn(8, 8),), out=tmp_path / "plan", mesh="data=4", cluster="demo-gpus"
    )
    assert main(["explain", "plan", str(tmp_path / "plan")]) == 0
    told = capsys.readouterr().out
    name = own(irc.capture(model, (torch.randn(8, 8),)).program.module).plain["target"]
    (row,) = [line for line in told.splitlines() if name in line and "not declared" not in line][
        -1:
    ]
    assert ("flops" if kind == "triton" else "bytes") in row


def test_a_derivative_of_another_count_is_refused() -> None:
    from irc.runtime import library, vjp

    before = dict(DECLARED)
    irc.register_op("irc_own_bad::op", derivative=lambda gradients, x, y: gradients[0])
    call = {"target": "irc_own_bad::op", "arguments": '[[{"operand": 0}, {"operand": 1}], {}]'}
    x = torch.ones(2)
    with pytest.raises(IrcError, match="gives 1 gradients") as caught:
        vjp.run(["flow.extern", call, 2, [0], [0, 1]], [x, x, x], library.run)
    assert caught.value.code == "not-differentiable"
    DECLARED.clear()
    DECLARED.update(before)


def test_a_declaration_can_be_changed_in_a_running_process() -> None:
    from irc.runtime import library

    before = dict(DECLARED)
    call = {"target": "irc_own_new::op", "arguments": '[[{"operand": 0}], {}]'}
    for factor in (2, 3):
        irc.register_op("irc_own_new::op", reference=lambda x, factor=factor: factor * x)
        (output,) = library.run("flow.extern", call, [torch.ones(1)], [((1,), "f32")])
        assert output.item() == factor
    DECLARED.clear()
    DECLARED.update(before)


PACKAGE = """
import irc

@irc.register_op(
    "irc_own_package::triple",
    rule="(a b) -> (a b) linear(0)",
    flops=lambda call: call["a"] * call["b"],
    bytes=lambda call: 8 * call["a"] * call["b"],
)
def triple(x):
    return 3 * x
"""
METADATA = "Metadata-Version: 2.1\nName: irc-own-package\nVersion: 0.1\n"
PROGRAM = """
import torch
from irc.ops.custom import declaration
from irc.runtime import library

known = declaration("irc_own_package::triple")
assert known is not None and known.left_out == (), known
call = {"target": "irc_own_package::triple", "arguments": '[[{"operand": 0}], {}]'}
print(library.run("flow.extern", call, [torch.ones(2)], [((2,), "f32")]))
"""


def test_an_installed_package_declares_its_ops(tmp_path: Path) -> None:
    """A real entry point: metadata beside the module, in another process."""
    (tmp_path / "irc_own_declared.py").write_text(PACKAGE)
    folder = tmp_path / "irc_own_package-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    (folder / "entry_points.txt").write_text("[irc.ops]\nirc_own_package = irc_own_declared\n")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "tensor([3., 3.])" in ended.stdout
    assert declaration("irc_own_package::triple") is None
