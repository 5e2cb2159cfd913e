"""`irc check` names the pass, op, placement and line of faults planted into passes' work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

from irc.backends.cpu import CpuBackend
from irc.cost.actions import ActionCost
from irc.dialects.attributes import to_attribute
from irc.dialects.comm import AllGatherOp, AllReduceOp, LocalChunkOp, ReduceScatterOp
from irc.dialects.launches import LaunchOp
from irc.dialects.noted import result_id
from irc.dialects.placement import Mesh
from irc.dialects.task import KernelConstantOp, KernelOp, KernelPointwiseOp, KernelReduceOp, LoadOp
from irc.dialects.text import dump, load
from irc.dialects.whole_attention import AttentionOp
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.interpret.check import check_plan
from irc.interpret.task import kernels
from irc.kernels.orders import stored_order
from irc.pipeline import Options, lower
from irc.plan.build import build_plan
from irc.plan.load import load_plan
from irc.plan.save import make_plan, save_plan
from irc.plan.schema import Kernels, Plan
from irc.program import Program
from irc.train import training_program
from tests.models.gpt import GPT, GPTConfig

PINS = """*.up.weight = [data = B, tensor = S(0)]; *.down.weight = [data = B, tensor = S(1)]"""
OPTIONS = Options(mesh=Mesh.parse("data=2,tensor=2"), cluster="demo-gpus", pins=PINS)


def nothing(_: object) -> None:
    """Plant no fault."""


def plan_with_fault(
    folder: Path,
    *,
    after: str = "",
    fault: Callable[[ModuleOp], None] = nothing,
    in_plan: Callable[[Plan], Plan] = lambda plan: plan,
    options: Options = OPTIONS,
) -> str:
    """Compile a small GPT with a pass that does its work and then something wrong."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, hidden=32, heads=2, block=16, vocab=40)).eval()
    for parameter in model.parameters():
        # As large as activations: a fault in the smallest term must show.
        torch.nn.init.normal_(parameter, std=0.3)
    program = capture(model, (torch.randint(0, 40, (4, 16)),)).program
    return saved(folder, program, options, after=after, fault=fault, in_plan=in_plan)


def saved(
    folder: Path,
    program: Program,
    options: Options,
    *,
    after: str = "",
    fault: Callable[[ModuleOp], None] = nothing,
    in_plan: Callable[[Plan], Plan] = lambda plan: plan,
) -> str:
    """Save the plan of a program, with a fault after a pass."""
    texts: dict[str, str] = {}

    def keep(name: str, module: ModuleOp) -> None:
        if name == after:
            fault(module)
        texts[f"{len(texts):02}-{name}.mlir"] = dump(module)

    lower(program, options, keep)
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    cost = ActionCost(program.module, options.cluster, options.mesh)
    plan = in_plan(build_plan(program.module, seconds=cost))
    loaded = make_plan(plan, ir=texts, kernels=CpuBackend().emit_plan_sources(kernels))
    save_plan(folder / "plan", loaded, tensors=program.tensors)
    return str(folder / "plan")


def wrong_collective(module: ModuleOp) -> None:
    """The first reduction over an axis takes the maximum instead of the sum."""
    reductions = [op for op in module.walk() if isinstance(op, AllReduceOp | ReduceScatterOp)]
    reductions[0].properties["fn"] = to_attribute("max")


def wrong_mask(module: ModuleOp) -> None:
    """Attention sees the future."""
    for op in module.walk():
        if isinstance(op, AttentionOp):
            op.properties["is_causal"] = to_attribute(False)


def epilogue_before_reduction(module: ModuleOp) -> None:
    """What a norm does after its sum, dividing by the length, is done to another value."""
    for kernel in module.walk():
        if not isinstance(kernel, KernelOp) or "norm" not in kernel.sym_name.data:
            continue
        reduce = next(op for op in kernel.body.block.ops if isinstance(op, KernelReduceOp))
        divide = next(
            use.operation
            for use in reduce.outputs[0].uses
            if isinstance(use.operation, KernelPointwiseOp)
        )
        # sum(x) / n becomes sum(x): the division now stands where nobody reads it.
        divide.outputs[0].replace_all_uses_with(reduce.outputs[0])
        return


def swapped_shard_order(module: ModuleOp) -> None:
    """The gathers of a dim that two axes split run in the order of the wrong axis."""
    by_axis: dict[str, list[AllGatherOp | LocalChunkOp]] = {}
    for op in module.walk():
        if isinstance(op, LocalChunkOp):
            by_axis.setdefault(op.axis, []).append(op)
    assert len(by_axis) == 2
    for axis, ops in zip(reversed(list(by_axis)), by_axis.values(), strict=True):
        for op in ops:
            op.properties["axis"] = to_attribute(axis)


def stale_buffer(plan: Plan) -> Plan:
    """A launch reads what its operand held one launch ago: another live buffer of the same size."""
    actions = list(plan.actions)
    for position, action in enumerate(actions):
        if not isinstance(action, Kernels):
            continue
        for index, call in enumerate(action.calls):
            if index == 0 or "matmul" not in plan.kernels[call.kernel].name:
                continue
            previous = action.calls[index - 1]
            first, old = call.args[0], previous.args[0]
            if first == previous.args[-1] and plan.buffers[old].shape == plan.buffers[first].shape:
                changed = replace(call, args=(old, *call.args[1:]))
                calls = (*action.calls[:index], changed, *action.calls[index + 1 :])
                actions[position] = replace(action, calls=calls)
                return replace(plan, actions=tuple(actions))
    raise AssertionError("no launch to spoil")


def test_a_right_plan_passes(tmp_path: Path) -> None:
    report = str(check_plan(plan_with_fault(tmp_path)))
    assert "every stage agrees" in report
    for stage in ("auto-shard", "lower-boxing", "fuse", "map-tasks", "order", "plan-memory"):
        assert stage in report


@pytest.mark.parametrize(
    ("after", "fault", "names"),
    [
        ("lower-boxing", wrong_collective, "comm.wait"),
        ("canonicalize", wrong_mask, "flow.attention"),
        ("map-tasks", epilogue_before_reduction, "task.launch"),
        ("lower-boxing", swapped_shard_order, "comm.local_chunk"),
    ],
)
def test_a_planted_fault_is_named(
    tmp_path: Path, after: str, fault: Callable[[ModuleOp], None], names: str
) -> None:
    folder = plan_with_fault(tmp_path, after=after, fault=fault)
    with pytest.raises(IrcError) as caught:
        check_plan(folder)
    assert caught.value.code == "check-failed"
    assert f"pass {after}:" in caught.value.message
    assert names in caught.value.message
    assert "demo_gpt.py:" in caught.value.message


def test_each_run_of_a_pass_is_a_stage_of_its_own(tmp_path: Path) -> None:
    runs: list[ModuleOp] = []

    def in_the_second(module: ModuleOp) -> None:
        runs.append(module)
        if len(runs) == 2:
            wrong_mask(module)

    folder = plan_with_fault(
        tmp_path, after="canonicalize", fault=in_the_second,
        options=replace(OPTIONS, passes=("canonicalize",)),
    )  # fmt: skip
    with pytest.raises(IrcError, match=r"pass canonicalize#2: flow\.attention") as caught:
        check_plan(folder)
    assert "irc opt -p canonicalize" in str(caught.value)
    assert "-p canonicalize#2" not in str(caught.value)
    before = "\n".join(caught.value.because)
    assert "canonicalize " in before and "canonicalize#2" not in before


def training_plan(
    folder: Path, after: str = "", fault: Callable[[ModuleOp], None] = nothing
) -> str:
    """Compile a step of training, whose weight's gradient reads a copy in another order."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, hidden=48, heads=6, block=16, vocab=24))
    ids, targets = torch.randint(0, 24, (2, 2, 16))
    program = training_program(capture(model, (ids, targets)).program)
    return saved(folder, program, Options(), after=after, fault=fault)


def stored_copy(module: ModuleOp) -> LaunchOp:
    """Return the launch that copies a value to another order of dims."""
    launches = [op for op in module.walk() if isinstance(op, LaunchOp) and "copy" in op.kernel_name]
    return next(op for op in launches if stored_order(result_id(op.outputs[0]))[1] is not None)


def wrong_copy(module: ModuleOp) -> None:
    """The copy in another order takes heads for the columns of a head, and columns for heads."""
    launch = stored_copy(module)
    kernel = kernels(module)[launch.kernel_name]
    load = next(op for op in kernel.body.ops if isinstance(op, LoadOp))
    heads, (_, one, *others) = kernel.space_extents[0], load.plain["strides"]
    load.properties["strides"] = to_attribute((one, heads * one, *others))


def wrong_decay(module: ModuleOp) -> None:
    """Adam's first moment takes a little too much of the gradient."""
    every = [op for op in module.walk() if isinstance(op, KernelConstantOp)]
    decays = [op for op in every if abs(op.plain["value"][0] - 0.1) < 1e-6]
    assert decays
    for op in decays:
        op.properties["value"] = to_attribute((0.11,))


def test_a_step_of_training_passes_and_no_value_is_beyond_judgement(tmp_path: Path) -> None:
    """The first step of Adam divides a gradient by its own size: a check starts from later ones."""
    folder = training_plan(tmp_path)
    texts = load_plan(Path(folder)).texts
    task = next(text for name, text in texts.items() if name.endswith("-map-tasks.mlir"))
    assert stored_copy(load(task.decode())) is not None
    report = str(check_plan(folder))
    assert "every stage agrees" in report
    assert "not judged" not in report
    allowed = [float(line.split()[-1]) for line in report.splitlines()[1:-1]]
    assert max(allowed) < 1e-3


@pytest.mark.parametrize(
    ("after", "fault", "names"),
    [
        pytest.param(
            "map-tasks",
            wrong_copy,
            r"task\.launch \(id \S+\.again\)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "map-tasks",
            wrong_decay,
            r"task\.launch \(id \S*step\S+\)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fault_in_a_step_of_training_is_named(
    tmp_path: Path, after: str, fault: Callable[[ModuleOp], None], names: str
) -> None:
    folder = training_plan(tmp_path, after, fault)
    with pytest.raises(IrcError, match=f"pass {after}: {names}") as caught:
        check_plan(folder)
    assert caught.value.code == "check-failed"


def test_a_value_more_sensitive_than_float32_is_not_judged(tmp_path: Path) -> None:
    """What is nothing but rounding is said to be that, and the rest is compared."""
    program = capture(Rounding(), (torch.rand(7, 5),)).program
    report = str(check_plan(saved(tmp_path, program, Options())))
    assert "not judged: " in report
    assert "every stage agrees" in report


class Rounding(nn.Module):
    """A sum, and what two orders of it differ by."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        whole = x.sum()
        return whole, (x.sum(0).sum() - whole) * 1e6


def test_a_stale_buffer_is_named(tmp_path: Path) -> None:
    folder = plan_with_fault(tmp_path, in_plan=stale_buffer)
    with pytest.raises(IrcError, match=r"pass plan-memory: task\.launch .*demo_gpt\.py") as caught:
        check_plan(folder)
    assert caught.value.code == "check-failed"
