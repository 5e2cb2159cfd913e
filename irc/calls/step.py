"""A training step: one call computes the loss and its gradients, and moves the parameters.

On one device the parameters are the module's own. On a mesh every rank keeps its parts of
parameters and optimiser states, and the module's parameters go to the meta device when the first
call has taken their values: no rank then holds the whole (:mod:`irc.runtime.parts`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.compiled import MAX_VERSIONS, TRACING
from irc.calls.constants import name_constants
from irc.calls.evaluation import Evaluation, evaluating
from irc.calls.feeding import Feeding
from irc.calls.step_plan import Loss, captured_step, check_device, training_plan
from irc.collection import collection_held
from irc.constraints.pins import constraint_text
from irc.dialects.placement import Placement
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.examples import positional
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.in_precision import store
from irc.frontends.torch.loss import with_loss
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.runtime.agreement import is_checked
from irc.runtime.call_agreement import Call, agree_on_call, collects_first, compare_call
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.given_optimizer import GivenOptimizer
from irc.runtime.initialisers import Init
from irc.runtime.join import join_processes, own_rank, shared_plan
from irc.runtime.replicas import check_copies
from irc.runtime.same_program import marks_of
from irc.runtime.state_forms import copied_box, in_box, in_torch
from irc.runtime.torch_optimizer import rates_tensor
from irc.runtime.training_state import KEYS, TrainingState, shaped
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from irc.runtime.checkpoint import Saving


@dataclass
class StepVersion:
    """The step for one kind of batch.

    Attributes:
        captured: the forward pass.
        plan: of the step.
        executor: runs it.
        communicator: starts its collectives; None on one device.
        collects_first: what ranks compare of a call may be waited for in its first collective.
        optimizer: its numbers.
    """

    captured: Captured
    plan: LoadedPlan
    executor: Executor
    communicator: TorchCommunicator | None = None
    collects_first: bool = False
    optimizer: Mapping[str, object] = field(default_factory=dict[str, object])

    def __call__(self, inputs: Sequence[torch.Tensor], lr: torch.Tensor) -> torch.Tensor:
        """Run on the flattened batch."""
        loss, *written = self.executor(*inputs, lr)
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
        feeding: what each rank is given of a batch.
        check_every: after so many steps, copies on several ranks are compared; 0: never.
        optimizer: one of torch, of which each step reads the numbers.

    Attributes:
        samples: how many this step has trained on, of all ranks together: the first dim of a
            batch's first tensor.
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
        feeding: Feeding | None = None,
        check_every: int = 0,
        optimizer: GivenOptimizer | None = None,
    ) -> None:
        self._check_every, self._given = check_every, optimizer
        self.module, self.recipe, self.options = module, recipe, options
        self._feeding = feeding or Feeding(options.mesh)
        self.samples = 0
        self._loss = loss
        store(module, recipe.precision)
        self._versions: list[StepVersion] = []
        self._state = TrainingState(module, recipe, options.mesh, seed, init)
        self._wanted = _wanted(module)
        self._writes: Saving | None = None
        self._known_names: dict[Any, list[str]] = {}
        self._evaluation: Evaluation | None = None

    def __call__(self, *batch: Any, lr: float | None = None, **named: Any) -> torch.Tensor:
        """Train on a batch and return its loss.

        On a mesh every rank is given the whole batch, or its own part of what ``batch="local"``
        says (:meth:`feeding`). Each call compares what ranks are given that has to be the same,
        before a parameter moves; ``IRC_CHECK_RANKS=off`` on all of them leaves that to the first
        call of a kind.

        Args:
            batch: the module's arguments, then the targets of a loss function.
            lr: the learning rate of this step, for all parameters; by default the optimiser's and
                those of its groups, of one of torch what its groups say now.
            named: the module's keyword arguments.

        Raises:
            IrcError: ``input-mismatch`` where a rank is given another batch; on the first batch of
                a kind, what capture and planning raise.
        """
        self._follow()
        own = self.recipe.rates
        rates = own if lr is None else (float(lr),) * len(own)
        if self._feeding.is_local:
            named = dict(sorted(named.items()))  # leaves are told by number
        self._state.hide()
        with torch.no_grad():
            version = self._find(batch, named)
            if self.options.mesh.num_ranks > 1:
                self._agree(version, batch, named, rates)
            self._check_wanted()
            if version is None:
                version = self._add(batch, named)
            inputs = version.captured.flatten(batch, named)
            loss = version(inputs, rates_tensor(rates))
            self._state.step += 1
            first = next((x for x in inputs if x.ndim), None)
            self.samples += 0 if first is None else len(first) * self._feeding.count
            if self._check_every and self._state.step % self._check_every == 0:
                self.check()
            return loss

    def _follow(self) -> None:
        """Read the numbers of an optimiser that was given: schedulers change them, and users."""
        if self._given is not None:
            self.recipe = self._state.recipe = self._given.recipe(self.recipe)

    def feeding(self) -> Feeding:
        """Return what this rank is to be given of each batch.

        With ``batch="global"`` every rank is given the whole batch. With ``batch="local"`` the axes
        of the mesh that are called ``data`` (or ``dp``, ``fsdp``, ..) divide the samples, the first
        dim of an argument: ranks that differ in other axes alone, such as ``tensor`` or ``pipe``,
        are given the very same samples, all ranks as many, and the batch is all parts one after the
        other. :func:`irc.data_sampler` gives each rank its own::

            step = irc.compile_step(model, loss=f, mesh="data=2,tensor=2", batch="local")
            sampler = irc.data_sampler(step, dataset, seed=0)
            loader = DataLoader(dataset, batch_size=8, sampler=sampler)  # 8 of the batch's 16

        Its ``count`` is the number of parts, ``part`` this rank's, ``shares`` the ranks of each.
        """
        return self._feeding.of_rank(own_rank()) if self._feeding.is_local else self._feeding

    def prepare(self, *batch: Any, **named: Any) -> None:
        """Compile the step for a kind of batch and take this rank's parts, but train nothing.

        Args:
            batch: as a call takes it; only shapes and dtypes count.
            named: the module's keyword arguments.
        """
        if self._feeding.is_local:
            named = dict(sorted(named.items()))
        self._follow()
        self._state.hide()
        with torch.no_grad():
            if self._find(batch, named) is None:
                self._add(batch, named)

    def check(self) -> None:
        """Compare what several ranks hold copies of (parameters, buffers, states); all call it.

        ``check_every`` of :func:`irc.compile_step` calls it after so many steps. It reads what a
        rank holds once, and sends 5 bytes for each tensor.

        Raises:
            IrcError: ``replicas-differ``, naming the first tensor and the ranks.
        """
        if self.options.mesh.num_ranks > 1:
            check_copies(self._state.parts.copies(), f"after step {self._state.step}")

    def evaluate(self, *args: Any, **named: Any) -> Any:
        """Call the module as it stands, in evaluation mode and without gradients.

        On a mesh every rank calls it with the same arguments, and gets the whole result. Ranks read
        the parts that they hold, which takes no further memory; with stages the parameters are
        whole on each rank until the next step (:meth:`materialize`). Before the first step it is
        the module's own call::

            for x, y in validation:
                hits += int((step.evaluate(x).argmax(-1) == y).sum())

        Args:
            args: of the module, without the targets of a loss function.
            named: keyword arguments of the module.

        Raises:
            IrcError: ``input-mismatch`` where a rank calls it with others; what capture and
                planning raise; ``weights-missing`` before the first step of a module on the meta
                device.
        """
        with torch.no_grad(), evaluating(self.module):
            if self.options.mesh.num_ranks == 1 or not self._state.parts.local:
                self._check_values()
                return self.module(*args, **named)
            return self._evaluated(args, named)

    def _evaluated(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call the module on the parts that ranks hold."""
        self._state.hide()
        if self._evaluation is None:
            self._evaluation = Evaluation(self.module, self.options, lambda: self._state.parts)
        return self._evaluation(args, named)

    def _check_values(self) -> None:
        """Refuse to call a module that has no values."""
        for name, value in self.module.named_parameters():
            if value.is_meta:
                raise IrcError(
                    "weights-missing",
                    f"'{name}' has no value yet",
                    because="the module is on the meta device until the first step, or "
                    "step.prepare(*batch), initialises the parts of each rank",
                    help="call it after that",
                )

    def materialize(self) -> nn.Module:
        """Let the module hold its values until the next step, and return it; every rank calls it.

        On a mesh the module's parameters are on the meta device, since no rank has the whole. This
        puts them together on each rank, as plain parameters: the module can be called, generate,
        and be saved as any other. It takes the memory of all parameters once on every rank, which
        the next step (or ``prepare``, ``evaluate``, a load) gives back; what is written into them
        in between does not reach the ranks' parts: :meth:`load_state_dict` does::

            step.materialize()
            torch.save(model.state_dict(), path)
        """
        with torch.no_grad():
            if self.options.mesh.num_ranks > 1:
                self._state.show()
        return self.module

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
        self._follow()
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

        What ranks have no parts of yet is read when they take them. The groups of an optimiser of
        torch get the rates and other numbers that they had, from which a scheduler among ``more``
        goes on. Loading runs the pickle that
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
        self._state.hide()
        checkpoint = Checkpoint(Path(folder))
        sections = {name: checkpoint.section(name) for name in _named(more)}
        for name, section in sections.items():
            if section is None:
                raise IrcError("state-mismatch", f"'{checkpoint.path}' has no '{name}'")
        groups = checkpoint.groups() if optimizer and self._given is not None else []
        self._state.take(checkpoint, optimizer=optimizer)
        self._restore(groups)
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
        self._state.hide()
        self._state.load_state_dict(state)
        self._restore(state.get("optimizer", {}).get("param_groups", []))

    def _restore(self, groups: Sequence[Mapping[str, Any]]) -> None:
        if self._given is not None:
            self._given.restore(groups)

    def _join(self) -> None:
        if self.options.mesh.num_ranks > 1:
            join_processes(self.options.mesh)

    def _saving(self) -> Saving:
        from irc.runtime.checkpoint import Saving

        if self._writes is None:
            self._writes = Saving()
        return self._writes

    def _stored(self, more: Mapping[str, Any] | None, *, copied: bool) -> dict[str, Any]:
        self._follow()
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
        rates: tuple[float, ...],
    ) -> None:
        """Compare a call between the ranks, before any of them moves a parameter."""
        join_processes(self.options.mesh)
        if version is not None and not is_checked():
            return
        ready = -1 if version is None else self._versions.index(version)
        call = Call(
            "a step of training",
            batch,
            named,
            {
                "the learning rate": rates[0] if len(rates) == 1 else rates,
                "the optimiser": self.recipe.optimizer,
                "the number of steps made": self._state.step,
                "the requires_grad of parameters": _wanted(self.module),
            },
            lambda: self._names(batch, named),
            self._own(batch, named),
            self._feeding.parts if self._feeding.is_local else (),
        )
        if version is not None and version.collects_first and version.communicator is not None:
            version.communicator.end_before()
            version.communicator.before = compare_call(call, ready=ready)
        else:
            agree_on_call(call, ready=ready)

    def _names(self, batch: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
        """Return the names of the leaves of a batch."""
        forward = self._face(batch, named).forward
        return argument_names(forward, positional(batch), dict(sorted(named.items())))

    def _own(self, batch: Sequence[Any], named: Mapping[str, Any]) -> frozenset[int]:
        """Return which leaves of a batch are this rank's own part."""
        if not self._feeding.is_local:
            return frozenset()
        leaves, spec = pytree.tree_flatten((positional(batch), dict(named)))
        names: list[str] = []
        if self._feeding.arguments is not None:
            names = self._known_names.get(spec) or self._names(batch, named)
            self._known_names[spec] = names
        return self._feeding.own(leaves, names)

    def _find(self, batch: Sequence[Any], named: Mapping[str, Any]) -> StepVersion | None:
        for version in self._versions:
            same = version.optimizer == self.recipe.optimizer
            if same and version.captured.guards.check(batch, named) is None:
                return version
        return None

    @collection_held()
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
        own = self._own_names(captured, batch, named)
        options = self._options(own)
        # The plan is made from the program, but the tensors are those of this process.
        tensors = captured.program.tensors

        def make() -> LoadedPlan:
            return training_plan(captured.program, recipe, options, self.module)

        if self.options.mesh.num_ranks == 1:
            plan = make()
        else:
            plan = shared_plan(make, rank, marks_of(captured.program.module, recipe, options))
        self._state.adopt(plan.plan, tensors, rank)
        # Its parameters may have gone to the meta device, which is no other kind of batch.
        captured.guards = Guards.of(self._face(batch, named), batch, dict(named))
        tensors, mesh = self._state.parts.local, self.options.mesh
        fed = self._feeding.of_plan(plan, own)
        if mesh.num_ranks == 1:
            version = StepVersion(captured, plan, executor_of(fed, tensors))
        else:
            communicator = TorchCommunicator.of(mesh, rank)
            executor = executor_of(fed, tensors, rank=rank, communicator=communicator)
            version = StepVersion(captured, plan, executor, communicator, collects_first(plan.plan))
        version.optimizer = self.recipe.optimizer
        self._versions.append(version)
        return version

    def _own_names(
        self, captured: Captured, batch: Sequence[Any], named: Mapping[str, Any]
    ) -> list[str]:
        """Return the names of the inputs of which each rank is given its own part.

        Raises:
            IrcError: ``op-unsupported`` where the module writes into one.
        """
        own = self._own(batch, named)
        names = captured.program.input_names
        found = [n for n, i in zip(names, captured.tensor_leaves, strict=True) if i in own]
        for index in captured.mutated_inputs.values():
            if names[index] in found:
                raise IrcError(
                    "op-unsupported",
                    f"the module writes into its argument '{names[index]}', of which each rank has "
                    "its own part",
                    help="copy it in the module before writing, or give every rank the whole batch",
                )
        return found

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
                self.module,
                self._loss,
                self.recipe,
                batch,
                named,
                less=less,
                own=self._own(batch, named),
                widened=self._feeding.widened if self._feeding.is_local else None,
            )
        name_constants(captured.program)
        return captured, split

    def _face(self, batch: Sequence[Any], named: Mapping[str, Any]) -> nn.Module:
        if self._loss is None:
            return self.module
        return with_loss(self.module, self._loss, batch, named)

    def _options(self, own: Sequence[str] = ()) -> Options:
        """What was chosen; a further kind of batch has to leave what ranks hold where it is.

        Args:
            own: names of the inputs of which each rank is given its own part.
        """
        placed = self._placements()
        pins = [f'"{name}" = {placement}' for name, placement in placed.items()]
        pins += self._feeding.pins(own)
        if not pins:
            return self.options
        text, _ = constraint_text(self.options.pins)
        return replace(self.options, pins="\n".join([text, *pins]))

    def _placements(self) -> Mapping[str, Placement]:
        """Return where ranks hold what they have taken."""
        return self._state.parts.placements() if self.options.mesh.num_ranks > 1 else {}


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
