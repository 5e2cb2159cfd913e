"""`irc check` names the pass, op, placement and line of faults planted into passes' work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.backends.cpu import CpuBackend
from irc.cost.actions import ActionCost
from irc.dialects.comm import AllGatherOp, AllReduceOp, LocalChunkOp, ReduceScatterOp
from irc.dialects.flow import AttentionOp, to_attribute
from irc.dialects.placement import Mesh
from irc.dialects.task import KernelOp, KernelPointwiseOp, KernelReduceOp
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.interpret.check import check_plan
from irc.pipeline import Options, lower
from irc.plan.build import build_plan
from irc.plan.save import make_plan, save_plan
from irc.plan.schema import Kernels, Plan
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
) -> str:
    """Compile a small GPT with a pass that does its work and then something wrong."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, hidden=32, heads=2, block=16, vocab=40)).eval()
    for parameter in model.parameters():
        # As large as activations: a fault in the smallest term must show.
        torch.nn.init.normal_(parameter, std=0.3)
    program = capture(model, (torch.randint(0, 40, (4, 16)),)).program
    texts: dict[str, str] = {}

    def keep(name: str, module: ModuleOp) -> None:
        if name == after:
            fault(module)
        texts[f"{len(texts):02}-{name}.mlir"] = dump(module)

    lower(program, OPTIONS, keep)
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    cost = ActionCost(program.module, OPTIONS.cluster, OPTIONS.mesh)
    plan = in_plan(build_plan(program.module, seconds=cost))
    made = make_plan(plan, ir=texts, kernels=CpuBackend().emit_plan_sources(kernels))
    save_plan(folder / "plan", made, tensors=program.tensors)
    return str(folder / "plan")


def wrong_collective(module: ModuleOp) -> None:
    """The first reduction over an axis takes the maximum instead of the sum."""
    found = [op for op in module.walk() if isinstance(op, AllReduceOp | ReduceScatterOp)]
    found[0].properties["fn"] = to_attribute("max")


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
            by_axis.setdefault(op.axis.data, []).append(op)
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
    report = check_plan(plan_with_fault(tmp_path))
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


def test_a_stale_buffer_is_named(tmp_path: Path) -> None:
    folder = plan_with_fault(tmp_path, in_plan=stale_buffer)
    with pytest.raises(IrcError, match=r"pass plan-memory: task\.launch .*demo_gpt\.py") as caught:
        check_plan(folder)
    assert caught.value.code == "check-failed"
