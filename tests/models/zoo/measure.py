"""One model of the zoo, planned and run on virtual ranks in float64, held against torch."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.dialects.builder import entry, functions, results
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import Mesh
from irc.frontends.torch.capture import capture
from irc.interpret.spmd import run_spmd
from irc.ops.work import flops
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import run_passes
from irc.plugin import find_pass
from irc.program import Program
from irc.search.facts import call_counts
from irc.sharding.signatures import match_signature, signatures
from irc.train import training_program
from tests.models.zoo.model import Model
from tests.training.models import all_double

MESHES = ("data=4", "data=2,tensor=2")
CLUSTER = "demo-gpus"
"""Slow at arithmetic: small models are worth sharding there."""
FIRM = 1e-9
"""Relative error that float64 leaves after sums in another order."""


@dataclass(frozen=True)
class Reference:
    """What torch itself computes in float64.

    Attributes:
        outputs: of a call without labels.
        loss: of a call with labels.
        gradients: of its parameters, by name.
    """

    outputs: tuple[Tensor, ...]
    loss: Tensor
    gradients: dict[str, Tensor]


def reference(model: Model) -> Reference:
    """Run a model in eager torch, forward and backward."""
    module = model.build().double()
    if hasattr(module, "set_experts_implementation"):
        # The default, a grouped matmul, knows no float64.
        module.set_experts_implementation("eager")
    with all_double():
        with torch.no_grad():
            outputs = tensors(module(**wide(model.inputs)))
        loss = module(**wide(model.with_loss)).loss
        loss.backward()
    named = module.named_parameters()
    return Reference(outputs, loss.detach(), {n: p.grad for n, p in named if p.grad is not None})


def wide(inputs: object) -> dict[str, object]:
    """Return inputs with their real tensors in float64."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, dict(inputs)
    )


def tensors(tree: object) -> tuple[Tensor, ...]:
    """Return the tensors of an output."""
    return tuple(leaf.detach() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


@dataclass
class Graphs:
    """Both programs of a model, in float64, and their arguments.

    Attributes:
        forward: gives the outputs.
        training: gives the loss and the gradients.
        arguments: all arguments of each.
        capture_s: CPU seconds of both captures and of differentiation.
        parameters: how many numbers are trained.
    """

    forward: Program
    training: Program
    arguments: dict[str, list[Tensor]]
    capture_s: float
    parameters: int


def graphs(model: Model) -> Graphs:
    """Capture a model with and without its loss, and differentiate it."""
    module, start = model.build().double(), time.process_time()
    # In float32 the model's constants would be rounded, where it casts as well as elsewhere.
    with all_double() if model.widened else nullcontext():
        plain = capture(module, (), inputs := wide(model.inputs))
        lossy = capture(module, (), labelled := wide(model.with_loss))
    arguments = {
        "forward": _bound(plain.program, plain.flatten((), inputs)),
        "training": _bound(lossy.program, lossy.flatten((), labelled)),
    }
    training = training_program(lossy.program, trainable=module, optimizer=None, loss="loss")
    seconds = time.process_time() - start
    count = sum(value.numel() for value in module.parameters())
    return Graphs(plain.program, training, arguments, seconds, count)


def _bound(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    return program.bind(dict(zip(program.input_names, inputs, strict=True)))


@dataclass(frozen=True)
class Planned:
    """A program on a mesh.

    Attributes:
        module: level spmd.
        plan_s: CPU seconds of the search.
        gap: how far from the proven bound.
        ops: distinct ops, each block once.
        blocks: functions beside the entry.
        split: how many distinct ops a mesh axis splits.
        fallen: share of FLOPs in ops that can only be replicated, by name.
        whole: share of FLOPs in ops that every rank computes whole.
        collectives: how many are issued, blocks once, by kind.
    """

    module: ModuleOp
    plan_s: float
    gap: float
    ops: int
    blocks: int
    split: int
    fallen: dict[str, float]
    whole: float
    collectives: dict[str, int]


def plan(
    program: Program, mesh: str, *, cluster: str = CLUSTER, part: float | None = None
) -> Planned:
    """Plan a copy of a program; a device stores at most a part of its weights all the time."""
    module = program.module.clone()
    start = time.process_time()
    run_passes(module, [find_pass("canonicalize")()])
    options: dict[str, Any] = {"mesh": mesh, "cluster": cluster}
    if part is not None:
        held = sum(t.numel() * t.element_size() for t in program.tensors.values())
        options["stored_bytes"] = int(held * part)
    run_passes(module, [AutoShardPass(**options)])
    seconds = time.process_time() - start
    said = module.attributes["irc.plan_cost"]
    assert isinstance(said, StringAttr)
    ops, split, fallen, whole = _shares(module, Mesh.parse(mesh))
    run_passes(module, [find_pass("lower-boxing")()])
    module.verify()
    collectives = Counter(
        op.name.removeprefix("comm.")
        for op in module.walk()
        if op.name.startswith("comm.") and op.name != "comm.wait"
    )
    return Planned(
        module,
        seconds,
        json.loads(said.data)["gap"],
        ops,
        len(functions(module)) - 1,
        split,
        fallen,
        whole,
        dict(collectives),
    )


def _shares(module: ModuleOp, mesh: Mesh) -> tuple[int, int, dict[str, float], float]:
    """Return distinct ops, how many are split, and shares of FLOPs: fallen back, and whole."""
    counts = call_counts(functions(module))
    total, whole, number, split = 0.0, 0.0, 0, 0
    fallen: Counter[str] = Counter()
    for name, func in functions(module).items():
        for op in func.body.block.ops:
            if not isinstance(op, FlowOp) or op.name == "sbp.boxing":
                continue
            work = flops(op) * counts[name]
            chosen = match_signature(op, mesh)
            assert chosen is not None, id_of(op)
            number, total = number + 1, total + work
            split += any(chosen.splits)
            whole += 0 if any(chosen.splits) else work
            if work and not any(any(s.splits) for s in signatures(op, mesh)):
                fallen[str(op.plain.get("target", op.plain.get("fn", op.name)))] += work
    shares = {name: work / total for name, work in fallen.most_common()}
    return number, split, shares, whole / total


def error(actual: Iterable[Tensor], wanted: Iterable[Tensor], least_part: float = 1e-6) -> float:
    """Return the largest difference of two tensors, relative to the largest number of its own.

    A tensor's largest counts as at least ``least_part`` of the largest of all: the gradient of a
    bias that softmax cancels is zero, and what rounding leaves of it is no number to divide by.
    """
    pairs = [(a.double(), b.double()) for a, b in zip(actual, wanted, strict=True)]
    if any(a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()) for a, b in pairs):
        return float("inf")
    finite = [(a[a.isfinite()], b[b.isfinite()]) for a, b in pairs]
    largest = [float(b.abs().max()) if b.numel() else 0.0 for _, b in finite]
    least = least_part * max(largest, default=0.0)
    return max(
        (
            float((a - b).abs().max()) / (max(size, least) or 1.0) if b.numel() else 0.0
            for (a, b), size in zip(finite, largest, strict=True)
        ),
        default=0.0,
    )


def run(planned: Planned, arguments: Sequence[Tensor], mesh: str) -> dict[tuple[str, str], Tensor]:
    """Run on all virtual ranks in float64; results by role and name."""
    with torch.no_grad():
        copies = [copy.deepcopy(t) for t in arguments]
        outputs = run_spmd(planned.module, copies, Mesh.parse(mesh), dtype=torch.float64)
    return dict(zip(results(entry(planned.module)), outputs, strict=True))


def of_role(outputs: Mapping[tuple[str, str], Tensor], role: str) -> dict[str, Tensor]:
    """Return the results of a role by name."""
    return {name: value for (kind, name), value in outputs.items() if kind == role}


def training_error(
    outputs: Mapping[tuple[str, str], Tensor], wanted: Reference, least_part: float = 1e-6
) -> float:
    """Return the error of loss and gradients; infinite where gradients lack or are too many."""
    gradients = of_role(outputs, "gradient")
    if set(gradients) != set(wanted.gradients):
        return float("inf")
    return max(
        error([outputs["output", "loss"]], [wanted.loss]),
        error(
            [gradients[name] for name in wanted.gradients], wanted.gradients.values(), least_part
        ),
    )
