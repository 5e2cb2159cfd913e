"""The stages of a plan folder as ``irc check`` runs them: each gives its values by op id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import id_of, loc_of
from irc.dialects.placement import Broadcast, Mesh, Placement, Split
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.levels import level_of, padded_inputs, random_inputs
from irc.interpret.plan import run_plan_ranks
from irc.interpret.sharded import run_sharded
from irc.interpret.spmd import placement_of, run_spmd
from irc.interpret.stage_values import AGAIN, Key, Stages, Value
from irc.interpret.states import moving
from irc.interpret.task import result_key
from irc.kernels.orders import stored_order
from irc.plan.load import LoadedPlan, load_plan
from irc.runtime.arguments import whole_shape
from irc.runtime.code import asked, load_program
from irc.runtime.inputs import inputs_for
from irc.runtime.weights import load_weights
from irc.sharding.mesh import mesh_of
from irc.sharding.shards import combine

Values = dict[Key, Value]


def plan_stages(
    folder: Path, inputs: str | None, *, trust: bool = False
) -> tuple[Values, Values, Stages]:
    """Load a plan and prepare its stages.

    Returns:
        Captured flow in float32 (which is eager), the same in float64 (the reference), and for
        each pass, in order, what runs the program after it; last, ``plan-memory`` on the plan.
    """
    loaded = asked(load_plan(folder, trust=trust))
    texts: dict[str, str] = {}
    for file in sorted(name for name in loaded.texts if name.startswith("ir/")):
        stage = Path(file).stem.split("-", 1)[1]
        runs = 1 + sum(name.partition(AGAIN)[0] == stage for name in texts)
        texts[stage if runs == 1 else f"{stage}{AGAIN}{runs}"] = loaded.texts[file].decode()
    if "capture" not in texts:
        raise IrcError("plan-missing", f"'{folder}' holds no IR: it was saved without")
    modules = {name: load_program(loaded, text, f"{name}.mlir") for name, text in texts.items()}
    captured = modules["capture"]
    weights = load_weights(loaded, None)
    names = [loaded.plan.buffers[i].name for i in loaded.plan.inputs]
    chosen = dict(zip(names, inputs_for(loaded, inputs, 0), strict=True))
    for index, tensor in zip(loaded.plan.inputs, chosen.values(), strict=True):
        wanted, shape = whole_shape(loaded.plan, index), tuple(tensor.shape)
        if shape != tuple(wanted):
            raise IrcError(
                "input-mismatch",
                f"input '{loaded.plan.buffers[index].name}' is {list(shape)}; the stages of the "
                f"plan take {list(wanted)}",
                because="they are checked at the sizes of the plan's example",
                help="irc run PLAN --inputs FILE compares other sizes with eager",
            )
    tensors = moving(captured, random_inputs(captured, fixed={**weights, **chosen}))
    eager = run_flow(captured, tensors, None)
    reference = run_flow(captured, tensors, torch.float64)
    once = _Once(texts["capture"], eager)
    stages = {
        name: partial(once.run, texts[name], module, tensors)
        for name, module in modules.items()
        if name != "capture"
    }
    stages["plan-memory"] = partial(
        run_planned, loaded, list(modules.values())[-1], captured, tensors
    )
    return eager, reference, stages


@dataclass
class _Once:
    """Runs a program, unless the last pass has left it as it was."""

    text: str
    values: Values

    def run(self, text: str, module: ModuleOp, inputs: Sequence[torch.Tensor]) -> Values:
        if text != self.text:
            self.text, self.values = text, run_stage(module, inputs)
        return self.values


def run_stage(module: ModuleOp, inputs: Sequence[torch.Tensor]) -> Values:
    """Run a program of any level in float32 and return its values by op id."""
    inputs = padded_inputs(module, inputs)
    level, mesh, values = level_of(module), mesh_of(module), dict[Key, Value]()
    if level == "flow":
        return run_flow(module, inputs, None)
    if level == "flow+sbp":

        def joined(key: str, index: int, whole: torch.Tensor, op: Operation) -> None:
            placed = getattr(op.results[index].type, "placement", None)
            values[key, index] = Value((whole.clone(),), op.name, loc_of(op), placed)

        run_sharded(module, inputs, mesh, trace=joined)
        return values

    def by_rank(
        key: str, index: int, parts: list[torch.Tensor], op: Operation, placed: Placement | None
    ) -> None:
        if placed is None and mesh.num_ranks > 1:
            return  # what one rank has of it, nobody says
        name, number = result_key(op, index)
        path = key.removesuffix(id_of(op))
        (name, number), wholes = _logical(path + name, number, parts, placed, mesh)
        value = Value(wholes, op.name, loc_of(op), placed)
        if (name, number) in values:  # a copy
            value = replace(value, wholes=(*values[name, number].wholes, *wholes))
        values[name, number] = value

    run_spmd(module, inputs, mesh, trace=by_rank)
    return values


def _logical(
    name: str, number: int, parts: Sequence[torch.Tensor], placed: Placement | None, mesh: Mesh
) -> tuple[Key, tuple[torch.Tensor, ...]]:
    """Return under which key a value goes, and the value: joined, its dims in their order."""
    name, order = stored_order(name)
    if order is not None:
        parts = [part.permute([order.index(d) for d in range(len(order))]) for part in parts]
    where = placed or Placement.replicated(mesh.names)
    return (name, number), wholes([part.clone() for part in parts], where, mesh)


def run_flow(module: ModuleOp, inputs: Sequence[torch.Tensor], dtype: torch.dtype | None) -> Values:
    """Run a program of level flow and return its values by op id."""
    values: Values = {}

    def keep(key: str, index: int, whole: torch.Tensor, op: Operation) -> None:
        values[key, index] = Value((whole.clone(),), op.name, loc_of(op), None)

    for index, tensor in enumerate(inputs):
        wide = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
        values[f"arg{index}", 0] = Value((wide,), "argument", "unknown", None)
    run_function(module, inputs, dtype=dtype, trace=keep)
    return values


def wholes(
    parts: Sequence[torch.Tensor], placement: Placement, mesh: Mesh
) -> tuple[torch.Tensor, ...]:
    """Join the shards once for each replica that the mesh holds, so that none goes unread."""
    shape = list(parts[0].shape)
    for axis, placed in placement.axes:
        if isinstance(placed, Split):
            shape[placed.dim] *= mesh.size(axis)
    copies: list[dict[str, int]] = [{}]
    for axis, placed in placement.axes:
        if isinstance(placed, Broadcast):
            copies = [{**c, axis: i} for c in copies for i in range(mesh.size(axis))]
    return tuple(combine(parts, placement, mesh, shape, replica) for replica in copies)


def run_planned(
    loaded: LoadedPlan, last: ModuleOp, captured: ModuleOp, inputs: Sequence[torch.Tensor]
) -> Values:
    """Run a plan's actions in float32 and return its values by op id.

    Args:
        loaded: the plan.
        last: its program after the last pass, whose kernels it calls.
        captured: its program before the first, whose arguments have the names of weights.
        inputs: the arguments of that, whole.
    """
    plan, mesh, values = loaded.plan, loaded.plan.device_mesh, dict[Key, Value]()
    by_name = {name: t for (_, name, _), t in zip(arguments(entry(captured)), inputs, strict=True)}
    kernels = {op.sym_name.data: op for op in last.body.block.ops if isinstance(op, KernelOp)}
    said = _placements(last)

    def keep(key: str, index: int, parts: list[torch.Tensor]) -> None:
        op, placed = said.get((key.rpartition("/")[2], index), (None, None))
        if placed is None and mesh.num_ranks > 1:
            return
        known, wholes = _logical(key, index, parts, placed, mesh)
        name, loc = ("plan action", "unknown") if op is None else (op.name, loc_of(op))
        values[known] = Value(wholes, name, loc, placed, before=values.get(known))

    names = [plan.buffers[i].name for i in plan.inputs]
    run_plan_ranks(plan, kernels, [by_name[n] for n in names], by_name, trace=keep)
    return values


def _placements(module: ModuleOp) -> Mapping[Key, tuple[Operation, Placement | None]]:
    """Return the op and placement of each value of level task, by its id and number."""
    placements: dict[Key, tuple[Operation, Placement | None]] = {}
    for op in module.walk():
        if isinstance(op.parent_op(), KernelOp):
            continue
        for index in range(len(op.results)):
            name, number = result_key(op, index)
            if name:
                placements[name.rpartition("/")[2], number] = (op, placement_of(op, index))
    return placements
