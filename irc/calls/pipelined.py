"""A training step in stages: what :func:`irc.compile_step` makes of a mesh with an axis ``pipe``.

Each rank has the parameters of its stages alone, and runs their functions in the order of the
schedule. A step of several micro-batches on one stage is the same with a pipe of one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from irc.calls.feeding import Feeding
from irc.calls.noted_stages import note_stages
from irc.calls.recompiles import MAX_VERSIONS
from irc.calls.step import TrainingStep
from irc.calls.step_plan import Loss, uneven_samples
from irc.collection import collection_held
from irc.dialects.placement import Placement
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.guards import Guards
from irc.pipeline import Options
from irc.plan.parts import PIPE, PartsPlan
from irc.plan.parts_packing import pack_parts, unpack_parts
from irc.programs.held_pins import names_by_stage, stage_pins
from irc.programs.in_order import check_order, plan_alike, plan_in_order
from irc.programs.make import make_parts_plan
from irc.programs.schedules import searched_stages
from irc.programs.uneven import make_uneven_plan
from irc.runtime.eager_optimizer import EagerOptimizer
from irc.runtime.given_optimizer import GivenOptimizer
from irc.runtime.initialisers import Init
from irc.runtime.join import join_processes, shared_bytes
from irc.runtime.loss_scale import LossScale
from irc.runtime.pipeline import PipelineExecutor
from irc.runtime.same_program import marks_of
from irc.schedule.actions import Schedule
from irc.training.recipe import Recipe


@dataclass(frozen=True)
class Pipelining:
    """How a step is divided in time.

    Attributes:
        schedule: by name or file.
        stages: where stages begin, by names of parameters; empty: the best cut.
    """

    schedule: str = "1f1b"
    stages: str = ""


@dataclass
class PartsVersion:
    """The step for one kind of batch."""

    captured: Captured
    plan: PartsPlan
    executor: PipelineExecutor
    state: Any
    communicator: None = None
    collects_first: bool = False
    optimizer: Mapping[str, object] = field(default_factory=dict[str, object])

    def __call__(
        self, inputs: Sequence[torch.Tensor], lr: torch.Tensor, scale: LossScale | None = None
    ) -> torch.Tensor:
        """Run on the flattened batch, and let the scale of the loss go on."""
        scales = None if scale is None else scale.read()
        loss = self.executor(inputs, lr, self.state.next_seed(), scales)
        if scale is not None:
            scale.update(self.executor.overflows)
        return loss

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that it moves, or whose gradients it computes."""
        return frozenset(self.plan.trained)


def stages_recipe(module: nn.Module, captured: Captured, recipe: Recipe) -> Recipe:
    """Return how the stages of a module are trained: what requires no gradient stays as it is.

    Raises:
        IrcError: ``pipeline-unsupported``.
    """
    if captured.mutated_inputs:
        raise IrcError(
            "pipeline-unsupported",
            "the model writes into its inputs, which are cut into micro-batches",
            help="copy them in the model before writing",
        )
    still = [name for name, p in module.named_parameters() if not p.requires_grad]
    return replace(recipe, frozen=",".join(filter(None, [recipe.frozen, *still])))


class PipelinedStep(TrainingStep):
    """A compiled step of training in stages.

    Args:
        module: what is trained.
        recipe: loss, optimiser, frozen parameters; its micro-batches are those of the schedule.
        options: of the pipeline of passes; the mesh is the whole one.
        pipelining: schedule and stages.
        loss: a function of the module's output, where the module itself gives none.
        seed: of random numbers (dropout).
        init: initialises each layer of a module on the meta device.
        feeding: what each rank is given of a batch.
        check_every: after so many steps, copies on several ranks are compared; 0: never.
        optimizer: one of torch, of which each step reads the numbers, or which it runs.
        scale: of the loss; None where it is not scaled.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        options: Options,
        pipelining: Pipelining,
        *,
        loss: Loss | None = None,
        seed: int = 0,
        init: Init | None = None,
        feeding: Feeding | None = None,
        check_every: int = 0,
        optimizer: GivenOptimizer | EagerOptimizer | None = None,
        scale: LossScale | None = None,
    ) -> None:
        super().__init__(
            module, recipe, options, loss=loss, seed=seed, init=init, feeding=feeding,
            check_every=check_every, optimizer=optimizer, scale=scale,
        )  # fmt: skip
        self.pipelining, self._cut = pipelining, ""
        # The first plan whose order was searched: further ones have its order.
        self._ordered: PartsPlan | None = None
        mesh = options.mesh
        self._pipe = mesh.size(PIPE) if PIPE in mesh.names else 1
        check_order(pipelining.schedule, self._pipe, recipe.micro_batches)

    @property
    def plan(self) -> Any:
        """The plan of the last kind of batch that was compiled; None before the first call."""
        return self._versions[-1].plan if self._versions else None

    def memory_bytes(self) -> dict[str, int]:
        """Return what this rank holds.

        ``parameters``, ``states``, ``accumulators`` of gradients, ``registers`` of what functions
        hand on, and the ``arena`` that functions work in; with ``offload``, ``outside``: on the
        disk, or in the memory of a GPU's host.
        """
        parts = self._state.parts
        roles = {"parameters": "parameter", "states": "state", "accumulators": "accumulator"}
        held = {k: parts.num_bytes(role) if parts.local else 0 for k, role in roles.items()}
        held["states"] = self._state.num_bytes_of_states()
        executors = [version.executor for version in self._parts_versions]
        held["registers"] = max((e.register_bytes for e in executors), default=0)
        held["arena"] = max((e.arena_bytes for e in executors), default=0)
        if self.options.offload:
            held["outside"] = max((e.outside_bytes for e in executors), default=0)
        return held

    def _evaluated(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return self.materialize()(*args, **named)

    @property
    def _parts_versions(self) -> list[PartsVersion]:
        return [v for v in self._versions if isinstance(v, PartsVersion)]

    @collection_held()
    def _add(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if len(self._versions) == MAX_VERSIONS:
            raise IrcError(
                "input-mismatch",
                f"this would be version {MAX_VERSIONS + 1} of one training step",
                help="pad batches to a few sizes",
            )
        mesh = self.options.mesh
        rank = join_processes(mesh) if mesh.num_ranks > 1 else 0
        captured, split = self._capture(batch, named)
        recipe = stages_recipe(self.module, captured, replace(self.recipe, split=split))
        own = self._own_names(captured, batch, named)
        tensors, options = captured.program.tensors, self._options(own)
        samples = uneven_samples(batch, named, self.recipe.micro_batches)
        smaller = self._capture(batch, named, less=1)[0].program if samples else None
        if smaller is not None:
            tensors = {**smaller.tensors, **tensors}

        def in_order(schedule: Schedule) -> PartsPlan:
            how = recipe, options, schedule, self.pipelining.stages
            program = captured.program.copy()
            if smaller is None:
                plan = make_parts_plan(program, *how, cut=self._cut)
            else:
                plan = make_uneven_plan(program, smaller.copy(), samples, *how, cut=self._cut)
            if not self.pipelining.stages:
                # The best cut for a further kind of batch may be another; weights stay.
                self._cut = self._cut or stage_pins(names_by_stage(program.module))
            return plan

        def make() -> PartsPlan:
            if self._ordered is not None:
                # Another placement may have stages on other ranks; weights stay.
                return plan_alike(self.pipelining.schedule, self._ordered, in_order, options)
            how = self.pipelining.schedule, self._pipe, self.recipe.micro_batches
            return plan_in_order(*how, in_order, options)

        start = time.perf_counter()
        if mesh.num_ranks == 1:
            plan = make()
        else:
            marks = marks_of(captured.program.module, recipe, options, self.pipelining)
            plan = unpack_parts(shared_bytes(lambda: pack_parts(make()), rank, marks))
        if self._ordered is None and searched_stages(self.pipelining.schedule) is not None:
            self._ordered = plan
        note_stages(plan, options, 0.0 if rank else time.perf_counter() - start)
        self._state.adopt_parts(plan, tensors, rank)
        captured.guards = Guards.of(self._face(batch, named), batch, dict(named))
        fed = self._feeding.of_parts(plan, own)
        executor = PipelineExecutor(
            fed, self._state.parts, rank, divided=own, axes=self._feeding.axes
        )
        version: Any = PartsVersion(
            captured, plan, executor, self._state, optimizer=self.recipe.optimizer
        )
        self._versions.append(version)
        return version

    def _placements(self) -> Mapping[str, Placement]:
        """Return where ranks hold what they have taken."""
        parts = self._state.parts
        return parts.placements() if parts.roles and parts.mesh.axes else {}
