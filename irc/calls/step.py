"""A training step: one call computes the loss and its gradients, and moves the parameters.

On one device the parameters are the module's own. On a mesh every rank keeps its parts of
parameters and optimiser states, and the module's parameters go to the meta device when the first
call has taken their values: no rank then holds the whole (:mod:`irc.runtime.parts`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from irc.calls.compiled import MAX_VERSIONS, TRACING
from irc.calls.constants import name_constants
from irc.calls.step_plan import Loss, captured_step, check_device, training_plan
from irc.constraints.pins import constraint_text
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.loss import with_loss
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.runtime.agreement import agree_on_call, is_checked
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.initialisers import Init
from irc.runtime.join import join_processes, shared_plan
from irc.runtime.same_program import marks_of
from irc.runtime.state_forms import copied_box, in_box, in_torch
from irc.runtime.training_state import KEYS, TrainingState, shaped
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from irc.runtime.checkpoint import Saving


@dataclass
class StepVersion:
    """The step for one kind of batch."""

    captured: Captured
    plan: LoadedPlan
    executor: Executor

    def __call__(self, inputs: Sequence[torch.Tensor], lr: float) -> torch.Tensor:
        """Run on the flattened batch."""
        rate = torch.tensor(lr, dtype=torch.float64)
        loss, *written = self.executor(*inputs, rate)
        # What the module writes into its arguments comes last.
        for index, value in zip(self.captured.mutated_inputs.values(), written, strict=True):
            inputs[index].copy_(value)
        return loss


class TrainingStep:
    """A compiled step of training; :func:`irc.compile_step` makes one and says what it is.

    Args:
        module: what is trained.
        recipe: loss, optimiser, frozen parameters.
        options: of the pipeline.
        loss: a function of the module's output, where the module itself gives none.
        seed: of random numbers (dropout); each call counts it up.
        init: initialises each layer of a module on the meta device.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        options: Options,
        *,
        loss: Loss | None = None,
        seed: int = 0,
        init: Init | None = None,
    ) -> None:
        self.module, self.recipe, self.options = module, recipe, options
        self._loss = loss
        self._versions: list[StepVersion] = []
        self._state = TrainingState(module, recipe, options.mesh, seed, init)
        self._wanted = _wanted(module)
        self._writes: Saving | None = None

    def __call__(self, *batch: Any, lr: float | None = None, **named: Any) -> torch.Tensor:
        """Train on a batch, the same on every rank, and return its loss.

        On a mesh each call compares what the ranks are given; ``IRC_CHECK_RANKS=off`` on all of
        them leaves that to the first call of a kind.

        Args:
            batch: the module's arguments, then the targets of a loss function.
            lr: the learning rate of this step; by default the optimiser's.
            named: the module's keyword arguments.

        Raises:
            IrcError: ``input-mismatch`` where a rank is given another batch; on the first batch of
                a kind, what capture and planning raise.
        """
        rate = self.recipe.lr if lr is None else float(lr)
        with torch.no_grad():
            version = self._find(batch, named)
            if self.options.mesh.num_ranks > 1:
                self._agree(version, batch, named, rate)
            self._check_wanted()
            if version is None:
                version = self._add(batch, named)
            loss = version(version.captured.flatten(batch, named), rate)
            self._state.step += 1
            return loss

    def prepare(self, *batch: Any, **named: Any) -> None:
        """Compile the step for a kind of batch and take this rank's parts, but train nothing.

        Args:
            batch: as a call takes it; only shapes and dtypes count.
            named: the module's keyword arguments.
        """
        with torch.no_grad():
            if self._find(batch, named) is None:
                self._add(batch, named)

    @property
    def plan(self) -> LoadedPlan | None:
        """The plan of the last kind of batch that was compiled; None before the first call."""
        return self._versions[-1].plan if self._versions else None

    def memory_bytes(self) -> dict[str, int]:
        """Return what this rank holds: ``parameters``, ``states``, and the ``arena`` of a call."""
        parts = self._state.parts
        return {
            "parameters": parts.num_bytes("parameter") if parts.local else 0,
            "states": parts.num_bytes("state") if parts.local else 0,
            "arena": max((v.plan.plan.arena_bytes for v in self._versions), default=0),
        }

    @property
    def count(self) -> int:
        """How many steps were made, those before a checkpoint that was loaded among them."""
        return self._state.step

    def state_dict(self, *, everywhere: bool = True, parts: bool = False) -> dict[str, Any]:
        """Return everything that a run goes on from; on a mesh every rank calls it.

        Args:
            everywhere: give it to every rank; otherwise rank 0 gets it, the others ``{}``.
            parts: put nothing together. Each rank gets DTensors of the parts that it holds, in
                their own memory: what ``torch.distributed.checkpoint`` saves, and loads in place
                (``load_state_dict`` then takes what is no tensor). With stages a rank gets those
                of its own. On one device it is the tensors themselves. What no DTensor says (of a
                dim that axes split out of mesh order and unevenly) is whole.

        Returns:
            ``model``, as the module's own ``state_dict``; ``optimizer``, as torch's distributed
            checkpoints have it, ``{"state": {NAME: {"exp_avg": ..}}, "param_groups": [..]}``;
            ``seed``, of the next step's random numbers; and ``step``, how many were made.

        Raises:
            IrcError: ``weights-missing`` before the first step of a module on the meta device.
        """
        if parts:
            return self._state.state_in_parts(in_torch)
        return self._state.state_dict(everywhere=everywhere)

    def save(
        self, folder: str | Path, *, keep: int = 0, more: Mapping[str, Any] | None = None
    ) -> Path:
        """Save a checkpoint, ``FOLDER/step-N``, of what :meth:`state_dict` has, in parts.

        Each rank writes what it holds. The folder gets its name when all of it is on the disk: what
        is broken off leaves the checkpoints before it. Any mesh, with stages or without, loads it,
        and so does ``torch.distributed.checkpoint``.

        Args:
            folder: of the run's checkpoints, which all ranks see; every rank calls it.
            keep: how many checkpoints to leave there; 0 for all.
            more: what else belongs to the run, by name: objects with ``state_dict`` and
                ``load_state_dict`` (a scheduler, a sampler, a loader), alike on all ranks.

        Returns:
            The place of the checkpoint.

        Raises:
            IrcError: ``checkpoint-failed``; ``option-value`` for a name in ``more``.
        """
        self._join()
        return self._saving().save(self._stored(more, copied=False), self._target(folder), keep)

    def save_async(
        self, folder: str | Path, *, keep: int = 0, more: Mapping[str, Any] | None = None
    ) -> Future[Path]:
        """Save a checkpoint while training goes on: copies are taken now, and written in a thread.

        See :meth:`save`. The next one waits for it, and tells its failure where nobody asked for
        the result.
        """
        self._join()
        state = self._stored(more, copied=True)
        return self._saving().save_async(state, self._target(folder), keep)

    def load(
        self, folder: str | Path, *, optimizer: bool = True, more: Mapping[str, Any] | None = None
    ) -> None:
        """Go on from a checkpoint in parts, of any mesh; every rank calls it.

        What ranks have no parts of yet is read when they take them. Loading runs the pickle that
        torch has in its checkpoints: load those alone that you would run.

        Args:
            folder: a checkpoint, or a folder of several, of which it is the one of the last step;
                also one that ``torch.distributed.checkpoint`` saved of ``{"model": ..,
                "optimizer": ..}`` with torch's own names.
            optimizer: False: the model alone; states, seed and number of the step stay.
            more: objects that :meth:`save` was given, whose ``load_state_dict`` is called.

        Raises:
            IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``, ``state-mismatch``; nothing is
                written then.
        """
        from irc.runtime.checkpoint import Checkpoint

        self._join()
        checkpoint = Checkpoint(Path(folder))
        sections = {name: checkpoint.section(name) for name in _named(more)}
        for name, section in sections.items():
            if section is None:
                raise IrcError("state-mismatch", f"'{checkpoint.path}' has no '{name}'")
        self._state.take(checkpoint, optimizer=optimizer)
        for name, each in _named(more).items():
            each.load_state_dict(sections[name])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, on any mesh; every rank is given all of it.

        Args:
            state: any of ``model``, ``optimizer`` and ``seed``; what is left out stays as it is.

        Raises:
            IrcError: ``state-mismatch`` for a name or a shape that does not fit; nothing is
                written then.
        """
        self._state.load_state_dict(state)

    def _join(self) -> None:
        if self.options.mesh.num_ranks > 1:
            join_processes(self.options.mesh)

    def _saving(self) -> Saving:
        from irc.runtime.checkpoint import Saving

        if self._writes is None:
            self._writes = Saving()
        return self._writes

    def _stored(self, more: Mapping[str, Any] | None, *, copied: bool) -> dict[str, Any]:
        state = self._state.state_in_parts(copied_box if copied else in_box)
        rest = {name: each.state_dict() for name, each in _named(more).items()}
        return {**state, **(copy.deepcopy(rest) if copied else rest)}

    def _target(self, folder: str | Path) -> Path:
        return Path(folder).absolute() / f"step-{self._state.step}"

    def _check_wanted(self) -> None:
        if _wanted(self.module) != self._wanted:
            raise IrcError(
                "state-mismatch",
                "the requires_grad of a parameter changed after the step was made",
                help="make another step and load this one's state_dict()",
            )

    def _agree(
        self,
        version: StepVersion | None,
        batch: Sequence[Any],
        named: Mapping[str, Any],
        rate: float,
    ) -> None:
        """Compare a call between the ranks, before any of them moves a parameter."""
        join_processes(self.options.mesh)
        if version is not None and not is_checked():
            return
        ready = -1 if version is None else self._versions.index(version)
        agree_on_call(batch, named, rate, _wanted(self.module), ready=ready)

    def _find(self, batch: Sequence[Any], named: Mapping[str, Any]) -> StepVersion | None:
        for version in self._versions:
            if version.captured.guards.check(batch, named) is None:
                return version
        return None

    def _add(self, batch: Sequence[Any], named: Mapping[str, Any]) -> StepVersion:
        if len(self._versions) == MAX_VERSIONS:
            raise IrcError(
                "input-mismatch",
                f"this would be version {MAX_VERSIONS + 1} of one training step",
                help="pad batches to a few sizes",
            )
        rank = join_processes(self.options.mesh) if self.options.mesh.num_ranks > 1 else 0
        captured, split = self._capture(batch, named)
        recipe = replace(self.recipe, split=split)
        # The plan is made from the program, but the tensors are those of this process.
        tensors = captured.program.tensors

        def make() -> LoadedPlan:
            return training_plan(captured.program, recipe, self._options(), self.module)

        if self.options.mesh.num_ranks == 1:
            plan = make()
        else:
            own = marks_of(captured.program.module, recipe, self._options())
            plan = shared_plan(make, rank, own)
        self._state.adopt(plan.plan, tensors, rank)
        # Its parameters may have gone to the meta device, which is no other kind of batch.
        captured.guards = Guards.of(self._face(batch, named), batch, dict(named))
        version = StepVersion(captured, plan, self._executor(plan, rank))
        self._versions.append(version)
        return version

    def _executor(self, plan: LoadedPlan, rank: int) -> Executor:
        tensors, mesh = self._state.parts.local, self.options.mesh
        if mesh.num_ranks == 1:
            return executor_of(plan, tensors)
        return executor_of(plan, tensors, rank=rank, communicator=TorchCommunicator.of(mesh, rank))

    def _capture(
        self, batch: Sequence[Any], named: Mapping[str, Any], less: int = 0
    ) -> tuple[Captured, tuple[str, ...]]:
        # On a mesh the parameters are in parts after the first call, and the module's on meta.
        if not self._versions or self.options.mesh.num_ranks == 1:
            if self.options.mesh.num_ranks == 1:
                self._state.start_here()
            check_device(self.module, planned=self.options.mesh.num_ranks > 1)
        with TRACING, shaped(self.module):
            captured, split = captured_step(
                self.module, self._loss, self.recipe, batch, named, less=less
            )
        name_constants(captured.program)
        return captured, split

    def _face(self, batch: Sequence[Any], named: Mapping[str, Any]) -> nn.Module:
        if self._loss is None:
            return self.module
        return with_loss(self.module, self._loss, batch, named)

    def _options(self) -> Options:
        """What was chosen; a further kind of batch has to leave what ranks hold where it is."""
        placed = self._state.parts.placements() if self.options.mesh.num_ranks > 1 else {}
        if not placed:
            return self.options
        text, _ = constraint_text(self.options.pins)
        pins = [f'"{name}" = {placement}' for name, placement in placed.items()]
        return replace(self.options, pins="\n".join([text, *pins]))


def _named(more: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Check what else a checkpoint has."""
    for name, each in (more or {}).items():
        if name in KEYS or "." in name:
            raise IrcError("option-value", f"'{name}' is no name for more of a checkpoint")
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise IrcError(
                "option-value",
                f"more['{name}'] is {type(each).__name__}, which has no state_dict to save and "
                "load_state_dict to go on from",
            )
    return more or {}


def _wanted(module: nn.Module) -> tuple[bool, ...]:
    return tuple(p.requires_grad for p in module.parameters())
