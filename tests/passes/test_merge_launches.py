"""Pointwise kernels of one body as one launch: the step of a training program, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.utils.exceptions import VerifyException

import irc
from irc.dialects.attributes import to_attribute
from irc.dialects.launches import LaunchOp
from irc.dialects.task import KernelOp
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.interpret.levels import execute, random_inputs
from irc.kernels.foreach import MAX_BUFFERS, join, pointwise_of
from irc.passes.merge_launches import MergeLaunchesPass
from irc.pipeline import Options, default_pipeline, run_passes
from irc.train import training_program
from tests.backends import gpu_kernels as g
from tests.backends.foreach_kernels import step, steps
from tests.models.gpt import GPT, GPTConfig


def program(lines: str, returned: str = "%a, %b, %c") -> ModuleOp:
    """Three tensors and launches on them, and kernels that they may name."""
    count = returned.count("%")
    kinds = ", ".join(["!flow.tensor<[6], f32>"] * count)
    kernels = "\n".join(_unary(f"k{i}", fn) for i, fn in enumerate(("exp", "exp", "exp", "neg")))
    return load(
        f"""func.func @forward(%x: !flow.tensor<[6], f32>, %y: !flow.tensor<[6], f32>,
        %z: !flow.tensor<[6], f32>) -> ({kinds}) {{
        {lines}
        func.return {returned} : {kinds}
        }}
        {kernels}""",
        "test",
    )


def _unary(name: str, fn: str) -> str:
    return f"""task.kernel @{name} {{template = "rows", space = array<i64: 6>, parallel = 1,
        num_inputs = 1, mapping = #task.map<spatial(1) * repeat(6)>, tile = {{}},
        sources = ["{name}"], loc = "m.py:1"}} : {{
    ^bb0(%0: !task.buffer<6, f32>, %1: !task.buffer<6, f32>):
      %2 = task.load(%0) {{offset = 0, strides = array<i64: 1>, loc = "m.py:1", id = "{name}"}}
          : (!task.buffer<6, f32>) -> !task.value<f32, row>
      %3 = task.pointwise(%2) {{fn = "{fn}", loc = "m.py:1", id = "{name}"}}
          : (!task.value<f32, row>) -> !task.value<f32, row>
      task.store(%3, %1) {{offset = 0, strides = array<i64: 1>, loc = "m.py:1"}}
          : (!task.value<f32, row>, !task.buffer<6, f32>) -> ()
    }}"""


def launch(result: str, kernel: str, operand: str) -> str:
    name = result.removeprefix("%")
    return (
        f'{result} = task.launch({operand}) {{kernel = @{kernel}, loc = "m.py:1", id = "{name}",'
        f' results = ["{name}"]}} : (!flow.tensor<[6], f32>) -> !flow.tensor<[6], f32>'
    )


def merged(module: ModuleOp) -> list[str]:
    """Run the pass, hold the numbers, and return the kernels of what is launched."""
    inputs = random_inputs(module)
    before = execute(module, inputs)
    run_passes(module, [MergeLaunchesPass()])
    module.verify()
    assert dump(load(dump(module), "again")) == dump(module)
    for one, other in zip(before, execute(module, inputs), strict=True):
        assert torch.equal(one, other)
    return [op.kernel_name for op in module.walk() if isinstance(op, LaunchOp)]


def three(*kernels: str, operands: tuple[str, ...] = ("%x", "%y", "%z")) -> str:
    names = zip(("%a", "%b", "%c"), kernels, operands, strict=True)
    return "\n".join(launch(*each) for each in names)


def test_three_of_one_body_are_one() -> None:
    assert merged(program(three("k0", "k1", "k2"))) == ["k0_each"]


def test_two_are_left_and_so_is_another_body() -> None:
    assert merged(program(three("k0", "k1", "k3"))) == ["k0", "k1", "k3"]


def test_what_reads_another_comes_after_it() -> None:
    """A chain of equal kernels is no set of parts."""
    launched = merged(program(three("k0", "k1", "k2", operands=("%x", "%a", "%b"))))
    assert launched == ["k0", "k1", "k2"]


def test_a_reader_in_between_ends_the_run() -> None:
    lines = three("k0", "k1", "k2") + "\n" + launch("%d", "k3", "%b")
    lines += "".join("\n" + launch(f"%e{i}", "k0", "%d") for i in range(3))
    launched = merged(program(lines, "%a, %b, %c, %d, %e0, %e1, %e2"))
    assert launched == ["k0_each", "k3", "k0_each1"]


def test_kernels_that_reduce_look_up_or_read_a_transpose_are_no_parts() -> None:
    assert pointwise_of(g.softmax()) is None
    assert pointwise_of(g.embedding()) is None
    assert pointwise_of(g.transposed_copy()) is None
    assert pointwise_of(g.iota()) is None
    assert pointwise_of(g.matmul()) is None
    assert pointwise_of(g.flat_add()) is not None


def test_a_single_element_fits_any_part() -> None:
    one, many = pointwise_of(step(1)), pointwise_of(step(7))
    assert one is not None and many is not None and one.fits(many) and many.fits(one)
    kernel = join([step(1), step(7)], "k", "cpu")
    kernel.verify()
    assert kernel.part_lengths == (1, 7)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("lengths", (5, 1), "parts of 6 elements"),
        ("lengths", (4, 2, 4096), "a buffer of part 0"),
        ("lengths", (5, -3, 4100), "each at least 1"),
        ("template", "rows", "template foreach"),
    ],
)
def test_the_verifier_refuses_other_parts(name: str, value: Any, what: str) -> None:
    kernel, _ = steps((5, 1, 4096))
    kernel.properties[name] = to_attribute(value)
    with pytest.raises(VerifyException, match=what):
        kernel.verify()


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(IrcError, match="no target 'sm_9'"):
        MergeLaunchesPass(target="sm_9").apply(None, ModuleOp([]))  # type: ignore[arg-type]


def training(target: str, module: nn.Module, *args: torch.Tensor) -> ModuleOp:
    training_step = training_program(
        capture(module, args).program, trainable=module, optimizer="adamw", loss=""
    )
    backend = "cpu" if target == "cpu" else "triton"
    run_passes(training_step.module, default_pipeline(Options(backend=backend, target=target)))
    return training_step.module


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_the_step_of_a_model_is_one_launch(target: str) -> None:
    """Of layers that share a function it is written out.

    What is not of a layer is updated by the kernel that makes its gradient: the embeddings, the
    last norm.
    """
    torch.manual_seed(0)
    tokens = torch.randint(0, 29, (2, 8))
    gpt = GPT(GPTConfig(layers=3, hidden=24, heads=3, block=8, vocab=29))
    module = training(target, gpt, tokens, tokens)
    (kernel,) = [k for k in module.body.block.ops if isinstance(k, KernelOp) and k.part_lengths]
    layers = list(gpt.layers.parameters())
    assert sum(kernel.part_lengths) == sum(p.numel() for p in layers)
    assert len(kernel.part_lengths) == len(layers) == 36
    calls = [op.callee.string_value() for op in module.walk() if isinstance(op, CallOp)]
    assert not [name for name in calls if name.startswith("step")]


def test_many_parameters_take_several_launches() -> None:
    count = MAX_BUFFERS // len(step(1).args) + 40
    kernels = [step(1 + i % 7) for i in range(count)]
    assert len(join(kernels[:512], "k", "cpu").args) == MAX_BUFFERS


def test_a_training_step_moves_as_with_torch() -> None:
    torch.manual_seed(0)
    net, twin = (
        nn.Sequential(nn.Linear(7, 11), nn.LayerNorm(11), nn.GELU(), nn.Linear(11, 1))
        for _ in range(2)
    )
    twin.load_state_dict(net.state_dict())
    x, y = torch.randn(6, 7), torch.randn(6, 1)
    run = irc.compile_step(net, loss=nn.MSELoss(), optimizer={"kind": "adamw", "lr": 1e-2})
    theirs = torch.optim.AdamW(twin.parameters(), 1e-2)
    for _ in range(3):
        run(x, y)
        theirs.zero_grad()
        F.mse_loss(twin(x), y).backward()
        theirs.step()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-5, atol=1e-6)
