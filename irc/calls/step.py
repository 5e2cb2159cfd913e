"""A training step: one call computes the loss and its gradients, and moves the parameters.

On one device the parameters are the module's own. On a mesh every rank keeps its parts of
parameters and optimiser states, and the module's parameters go to the meta device when the first
call has taken their values: no rank then holds the whole (:mod:`irc.runtime.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.constants import name_constants
from irc.calls.feeding import Feeding
from irc.calls.noted import Watch, kind_of, note_graph, noting
from irc.calls.recompiles import MAX_VERSIONS
from irc.calls.step_plan import Loss, captured_micro_batch, check_device, training_plan
from irc.calls.step_state import StepState
from irc.calls.step_version import StepVersion
from irc.calls.tracing import TRACING
from irc.collection import collection_held
from irc.constraints.pins import constraint_text
from irc.dialects.placement import Placement
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.examples import positional
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.hooks import check_backward_hooks, num_hooks_so_far
from irc.frontends.torch.in_precision import store
from irc.frontends.torch.loss import with_loss
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options
from irc.plan.in_notebook import shown_plan
from irc.plan.load import LoadedPlan
from irc.record import Recompile, Record
from irc.runtime.agreement import is_checked
from irc.runtime.call_agreement import Call, agree_on_call, collects_first, compare_call
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.eager_optimizer import EagerOptimizer
from irc.runtime.executors import executor_of
from irc.runtime.given_optimizer import GivenOptimizer
from irc.runtime.initialisers import Init
from irc.runtime.join import join_processes, own_rank, shared_plan
from irc.runtime.loss_scale import LossScale
from irc.runtime.module_tensors import shaped
from irc.runtime.same_program import marks_of
from irc.runtime.torch_optimizer import rates_tensor
from irc.training.recipe import Recipe


class TrainingStep(StepState):
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
        optimizer: one of torch, of which each step reads the numbers, or which it runs.
        scale: of the loss; None where it is not scaled.

    Attributes:
        samples: how many this step has trained on, of all ranks together: the first dim of a
            batch's first tensor.
        record: what was compiled, for :func:`irc.explain`.
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
        optimizer: GivenOptimizer | EagerOptimizer | None = None,
        scale: LossScale | None = None,
    ) -> None:
        store(module, recipe.precision)
        self.record = Record()
        options = replace(options, record=self.record)
        super().__init__(module, recipe, options, seed, init, optimizer, scale)
        self._check_every, self._loss, self._seed = check_every, loss, seed
        self._feeding = feeding or Feeding(options.mesh)
        self.samples = 0
        self._versions: list[StepVersion] = []
        self._wanted, self._hooks_checked = _wanted(module), -1
        self._known_names: dict[Any, list[str]] = {}

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
                a kind, what capture and planning raise; ``optimizer-failed`` where the step of
                an optimiser that runs eagerly does, and on several ranks after that until a
                checkpoint, or a state of both the model and the optimiser, was loaded.
        """
        if self._eager is not None:
            self._eager.check_alike()
        self._follow()
        own = self.recipe.rates
        rates = own if lr is None else (float(lr),) * len(own)
        if self._feeding.is_local:
            named = dict(sorted(named.items()))  # leaves are told by number
        self._state.hide()
        with torch.no_grad():
            version, reason = self._find(batch, named)
            is_known = version is not None
            if self.options.mesh.num_ranks > 1:
                self._agree(version, batch, named, rates)
            self._check_wanted()
            if version is None:
                version = self._compiled(batch, named, reason)
            inputs = version.captured.flatten(batch, named)
            with noting(None if is_known else self.record):
                loss = version(inputs, rates_tensor(rates), self._scale)
            if not is_known:
                self._close(batch, named)
            if self._eager is not None and not (self._scale and self._scale.overflowed):
                seed = self._seed + self._state.step
                self._eager.step(self._state.parts, version.trained, lr, seed)
            self._state.step += 1
            first = next((x for x in inputs if x.ndim), None)
            self.samples += 0 if first is None else len(first) * self._feeding.count
            self._stopwatch.ended(counts=is_known)
            if self._check_every and self._state.step % self._check_every == 0:
                self.check()
            return loss

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
            version, reason = self._find(batch, named)
            if version is None:
                self._compiled(batch, named, reason)
                self._close(batch, named)

    @property
    def plan(self) -> LoadedPlan | None:
        """The plan of the last kind of batch that was compiled; None before the first call."""
        return self._versions[-1].plan if self._versions else None

    def _repr_html_(self) -> str:
        """Return the plan as a notebook shows it."""
        plan = self.plan
        if plan is None:
            return f"<p>{type(self).__name__}: not called yet: a step is compiled at its first</p>"
        return shown_plan(plan)

    def memory_bytes(self) -> dict[str, int]:
        """Return what this rank holds: ``parameters``, ``states``, and the ``arena`` of a call."""
        parts = self._state.parts
        return {
            "parameters": parts.num_bytes("parameter") if parts.local else 0,
            "states": self._state.num_bytes_of_states(),
            "arena": max((v.plan.plan.arena_bytes for v in self._versions), default=0),
        }

    def _check_wanted(self) -> None:
        if _wanted(self.module) != self._wanted:
            raise IrcError(
                "state-mismatch",
                "the requires_grad of a parameter changed after the step was made",
                help="make another step and load this one's state_dict()",
            )
        if (latest := num_hooks_so_far()) != self._hooks_checked:
            check_backward_hooks(self.module)
            self._hooks_checked = latest

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
                "the optimiser": self._optimizer_numbers(),
                "the number of steps made": self._state.step,
                "the requires_grad of parameters": _wanted(self.module),
                **({} if self._scale is None else {"the loss scale": self._scale.state_dict()}),
            },
            lambda: self._names(batch, named),
            self._own(batch, named),
            self._feeding.parts if self._feeding.is_local else (),
        )
        if version is not None and version.collects_first and version.communicator is not None:
            version.communicator.end_before()
            version.communicator.before = compare_call(call, ready=ready)
        else:
            self._stopwatch.waiting(lambda: agree_on_call(call, ready=ready))()

    def _optimizer_numbers(self) -> object:
        return self.recipe.optimizer if self._eager is None else self._eager.numbers()

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

    def _find(
        self, batch: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[StepVersion | None, str]:
        """Return the version for a batch, or None and why the last one is not for it."""
        reason = ""
        for version in self._versions:
            same = version.optimizer == self.recipe.optimizer
            reason = version.captured.guards.check(batch, named) if same else OTHER_NUMBERS
            if reason is None:
                return version, ""
        return None, reason

    def _compiled(self, batch: Sequence[Any], named: Mapping[str, Any], reason: str) -> StepVersion:
        """Return a new version, and note why there has to be one."""
        with self.record.noting():
            version = self._add(batch, named)
        if reason:
            self.record.note(Recompile(reason))
        return version

    def _close(self, batch: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Say which batch has caused what was noted."""
        leaves = pytree.tree_leaves((positional(batch), dict(sorted(named.items()))))
        names = self._names(batch, named)
        self.record.close(kind_of(names, leaves, self.module.training, gradients=True))

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
            if not self.record.knows_graph:  # another rank has planned it
                note_graph(Watch(), "a step", plan.plan, (), options)
        self._state.adopt(plan.plan, tensors, rank)
        # Its parameters may have gone to the meta device, which is no other kind of batch.
        captured.guards = Guards.of(self._face(batch, named), batch, dict(named))
        tensors, mesh = self._state.parts.local, self.options.mesh
        fed = self._feeding.of_plan(plan, own)
        if mesh.num_ranks == 1:
            version = StepVersion(captured, plan, executor_of(fed, tensors))
        else:
            communicator = TorchCommunicator.of(mesh, rank)
            communicator.counted = self._stopwatch.waiting
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
        own_names = [n for n, i in zip(names, captured.tensor_leaves, strict=True) if i in own]
        for index in captured.mutated_inputs.values():
            if names[index] in own_names:
                raise IrcError(
                    "op-unsupported",
                    f"the module writes into its argument '{names[index]}', of which each rank has "
                    "its own part",
                    help="copy it in the module before writing, or give every rank the whole batch",
                )
        return own_names

    def _capture(
        self, batch: Sequence[Any], named: Mapping[str, Any], less: int = 0
    ) -> tuple[Captured, tuple[str, ...]]:
        # On a mesh the parameters are in parts after the first call, and the module's on meta.
        if not self._versions or self.options.mesh.num_ranks == 1:
            if self.options.mesh.num_ranks == 1:
                self._state.start_here()
            check_device(self.module, planned=self.options.mesh.num_ranks > 1)
        with TRACING, shaped(self.module):
            captured, split = captured_micro_batch(
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


OTHER_NUMBERS = "the optimiser's numbers are others than at compile time"


def _wanted(module: nn.Module) -> tuple[bool, ...]:
    return tuple(p.requires_grad for p in module.parameters())
