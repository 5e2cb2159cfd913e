"""What a step of training holds between calls: it is looked at, called, saved and loaded."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from irc.calls.evaluation import Evaluation, evaluating
from irc.calls.noted import call_kind, noting
from irc.calls.resuming import Resumed, stored_state
from irc.errors import IrcError
from irc.pipeline import Options
from irc.runtime.eager_optimizer import EagerOptimizer
from irc.runtime.given_optimizer import GivenOptimizer
from irc.runtime.host_memory import Shelf, shelf_of
from irc.runtime.initialisers import Init
from irc.runtime.join import join_processes, own_rank
from irc.runtime.kept import Keeping
from irc.runtime.loss_scale import LossScale, check_scale
from irc.runtime.pace import Pace, SlowRankWarning, Stopwatch, slowness
from irc.runtime.replicas import check_copies
from irc.runtime.state_forms import copied_box, in_box, in_torch
from irc.runtime.training_state import KEYS, SCALER, TrainingState
from irc.runtime.weight_files import WeightFilesStart
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from irc.runtime.checkpoint import Saving


class StepState:
    """The state of a step: parameters, buffers, what the optimiser keeps, seed and count.

    Args:
        module: what is trained.
        recipe: loss, optimiser, frozen parameters.
        options: of the pipeline.
        seed: of random numbers.
        init: initialises each layer of a module on the meta device.
        optimizer: one of torch, of which each step reads the numbers, or which it runs.
        scale: of the loss; None where it is not scaled.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        options: Options,
        seed: int,
        init: Init | None,
        optimizer: GivenOptimizer | EagerOptimizer | None,
        scale: LossScale | None,
    ) -> None:
        self.module, self.recipe, self.options = module, recipe, options
        self._given, self._scale = optimizer, scale
        self._eager = optimizer if isinstance(optimizer, EagerOptimizer) else None
        self._state = TrainingState(module, recipe, options.mesh, seed, init, self._eager)
        self._writes: Saving | None = None
        self._shelves: dict[Path, Shelf | None] = {}
        self._kept: dict[Path, Keeping] = {}
        self._evaluation: Evaluation | None = None
        self._stopwatch = Stopwatch()

    @property
    def count(self) -> int:
        """How many steps were made, those before a checkpoint that was loaded among them.

        Of a scaled loss also those that overflowed and moved nothing; the optimiser's own ``step``
        in :meth:`state_dict` counts the others.
        """
        return self._state.step

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales the loss: ``step.scaler.get_scale()``; None where it is not scaled."""
        return None if self._scale is None else self._scale.scaler

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
            ``seed``, of the next step's random numbers; ``step``, how many were made; and of a
            scaled loss ``scaler``, as ``torch.amp.GradScaler`` has it.

        Raises:
            IrcError: ``weights-missing`` before the first step of a module on the meta device.
        """
        self._follow()
        if parts:
            return {**self._state.state_in_parts(in_torch), **self._scaler_state()}
        state = self._state.state_dict(everywhere=everywhere)
        return {**state, **self._scaler_state()} if state else state

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
        self.join()
        return self._saving().save(self._stored(more, copied=False), self._target(folder), keep)

    def save_async(
        self, folder: str | Path, *, keep: int = 0, more: Mapping[str, Any] | None = None
    ) -> Future[Path]:
        """Save a checkpoint while training goes on: copies are taken now, and written in a thread.

        See :meth:`save`. The next one waits for it, and tells its failure where nobody asked for
        the result.
        """
        self.join()
        state = self._stored(more, copied=True)
        return self._saving().save_async(state, self._target(folder), keep)

    def keep(self, folder: str | Path, *, more: Mapping[str, Any] | None = None) -> None:
        """Keep what a run goes on from in the memory of the machines; every rank calls it.

        It is much faster than :meth:`save`, so that it can be called after each step. Where
        torchrun starts the processes again, since one failed or a machine was lost, :meth:`load` of
        the same folder goes on behind that step: on as many ranks as there are then, which send
        each other what they lack. What a lost machine held is lost unless others hold copies of it
        (they do where data parallelism alone divides the work); then the last checkpoint counts, so
        go on saving those. A process that torchrun did not start keeps nothing::

            print(step.load("run", more=more, missing_ok=True))
            for x, y in loader:
                step(x, y)
                step.keep("run", more=more)
                if step.count % 1000 == 0:
                    step.save("run", more=more)

        It takes the memory of what a rank holds twice, in ``/dev/shm``, until the process ends by
        itself.

        Args:
            folder: of the run's checkpoints, by which :meth:`load` knows it.
            more: as of :meth:`save`.

        Raises:
            IrcError: ``checkpoint-failed`` where the machine has no such memory; ``option-value``
                for a name in ``more``.
        """
        self.join()
        place = Path(folder).absolute()
        if place not in self._kept and (shelf := self._shelf(place)) is not None:
            self._kept[place] = Keeping(shelf)
        if (kept := self._kept.get(place)) is not None:
            kept.keep(self._stored(more, copied=False), self.count, self._state.parts.stage)

    def load(
        self,
        folder: str | Path,
        *,
        optimizer: bool = True,
        more: Mapping[str, Any] | None = None,
        missing_ok: bool = False,
    ) -> Resumed:
        """Go on from a checkpoint in parts, of any mesh; every rank calls it.

        Under torchrun what :meth:`keep` left in memory for the same folder is gone on from instead
        where it is of as late a step, and all of it is on ranks that are left. What ranks have no
        parts of yet is read when they take them. The groups of an optimiser of torch get the rates
        and other numbers that they had, from which a scheduler among ``more`` goes on. Loading runs
        the pickle that torch has in its checkpoints: load those alone that you would run.

        Args:
            folder: a checkpoint, or a folder of several, of which it is the one of the last step;
                also one that ``torch.distributed.checkpoint`` saved of ``{"model": ..,
                "optimizer": ..}`` with torch's own names.
            optimizer: False: the model alone; states, seed and number of the step stay.
            more: objects that :meth:`save` was given, whose ``load_state_dict`` is called.
            missing_ok: do nothing where there is no checkpoint yet, as in a script that begins and
                goes on with the same lines. A folder of weights alone is refused all the same.

        Returns:
            From what the run goes on, which prints as a sentence. Where a later state was kept and
            is lost in part, rank 0 warns of it (``StateLostWarning``).

        Raises:
            IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``, ``state-mismatch``; nothing is
                written then.
        """
        self.join()
        self._state.hide()
        shelf = self._shelf(Path(folder)) if optimizer else None
        checkpoint, place, where = stored_state(Path(folder), shelf, missing_ok=missing_ok)
        if checkpoint is None:
            return Resumed(self.count, place, f"begins: '{folder}' holds no checkpoint")
        sections = {name: checkpoint.section(name) for name in _named(more)}
        for name, section in sections.items():
            if section is None:
                raise IrcError("state-mismatch", f"'{checkpoint.path}' has no '{name}'")
        groups = checkpoint.groups() if optimizer and self._given is not None else []
        scale = checkpoint.section(SCALER) if optimizer and self._scale is not None else None
        check_scale(scale)
        self._state.take(checkpoint, optimizer=optimizer)
        self._restore(groups, scale)
        for name, each in _named(more).items():
            each.load_state_dict(sections[name])
        return Resumed(self.count, place, f"goes on behind step {self.count}, from {where}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, on any mesh; every rank is given all of it.

        Args:
            state: any of ``model``, ``optimizer``, ``seed``, ``step`` and ``scaler``; what is left
                out stays as it is.

        Raises:
            IrcError: ``state-mismatch`` for a name or a shape that does not fit; nothing is
                written then.
        """
        self._state.hide()
        check_scale(state.get(SCALER))
        self._state.load_state_dict(state)
        self._restore(state.get("optimizer", {}).get("param_groups", []), state.get(SCALER))

    def _restore(
        self, groups: Sequence[Mapping[str, Any]], scale: Mapping[str, Any] | None
    ) -> None:
        if self._given is not None:
            self._given.restore(groups)
        if self._scale is not None and scale is not None:
            self._scale.load_state_dict(scale)

    def take_weights(self, start: WeightFilesStart) -> None:
        """Write weights of a folder over what is held; :func:`irc.load_safetensors` says more."""
        self._state.hide()
        self._state.take_weights(start)

    def weights(self) -> tuple[dict[str, int], Callable[[str], torch.Tensor | None]]:
        """Return the bytes of each weight, and what puts one together on rank 0."""
        return self._state.weights()

    def _scaler_state(self) -> dict[str, Any]:
        return {} if self._scale is None else {SCALER: self._scale.state_dict()}

    def join(self) -> None:
        """Let the processes of the run find each other, unless they have."""
        if self.options.mesh.num_ranks > 1:
            join_processes(self.options.mesh)

    def _saving(self) -> Saving:
        from irc.runtime.checkpoint import Saving

        if self._writes is None:
            self._writes = Saving()
        return self._writes

    def _stored(self, more: Mapping[str, Any] | None, *, copied: bool) -> dict[str, Any]:
        self._follow()
        form = copied_box if copied else in_box
        state = self._state.state_in_parts(form, says_class=True)
        state |= self._scaler_state()
        rest = {name: each.state_dict() for name, each in _named(more).items()}
        return {**state, **(copy.deepcopy(rest) if copied else rest)}

    def _shelf(self, folder: Path) -> Shelf | None:
        """Return where this rank keeps a state: the one that it was loaded from is kept longest."""
        place = folder.absolute()
        if place not in self._shelves:
            self._shelves[place] = shelf_of(place)
        return self._shelves[place]

    def _target(self, folder: str | Path) -> Path:
        return Path(folder).absolute() / f"step-{self._state.step}"

    def check(self) -> None:
        """Compare what several ranks hold copies of (parameters, buffers, states); all call it.

        ``check_every`` of :func:`irc.compile_step` calls it after so many steps. It reads what a
        rank holds once, and sends 5 bytes for each tensor. Rank 0 warns of ranks that the others
        have waited for since (:meth:`paces`).

        Raises:
            IrcError: ``replicas-differ``, naming the first tensor and the ranks.
        """
        if self.options.mesh.num_ranks > 1:
            check_copies(self._state.copies(), f"after step {self._state.step}")
            if (text := slowness(self.paces())) and own_rank() == 0:
                warnings.warn(text, SlowRankWarning, stacklevel=2)

    def paces(self) -> list[Pace]:
        """Return what each rank does with its time, and count anew; every rank calls it.

        A rank computes where it does not wait for others: in the step and between steps, where it
        loads data. Steps that compiled do not count. With stages all time is that of computing.
        """
        return self._stopwatch.paces()

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
            if self.options.mesh.num_ranks == 1 or not self._state.parts.roles:
                self._check_values()
                return self.module(*args, **named)
            return self._evaluated(args, named)

    def _evaluated(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call the module on the parts that ranks hold."""
        self._state.hide()
        if self._evaluation is None:
            self._evaluation = Evaluation(self.module, self.options, lambda: self._state.parts)
        with noting(self.options.record):
            result = self._evaluation(args, named)
        if (record := self.options.record) is not None and record.pending:
            record.close(call_kind(self.module, args, named, of="evaluation of"))
        return result

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

    def _follow(self) -> None:
        """Read the numbers of an optimiser that was given: schedulers change them, and users."""
        if self._given is not None:
            self.recipe = self._state.recipe = self._given.recipe(self.recipe)


def _named(more: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Check what else a checkpoint has."""
    for name, each in (more or {}).items():
        if name in KEYS or "." in name:
            raise IrcError(
                "option-value",
                f"'{name}' is no name for more of a checkpoint",
                because="it is what the step saves itself" if name in KEYS else (),
            )
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise IrcError(
                "option-value",
                f"more['{name}'] is {type(each).__name__}, which has no state_dict to save and "
                "load_state_dict to go on from",
            )
    return more or {}
