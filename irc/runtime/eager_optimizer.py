"""An optimiser that runs eagerly on what a compiled step computed: its own object, its own step.

The program of such a step ends with the gradients (kind ``eager`` of pass ``add-optimizer``), which
ranks hold in parts as they hold parameters. An optimiser that works element by element runs on
those parts: of a parameter and its gradient the smaller part is what a rank works on (ZeRO 1 where
the gradient alone is split), and what others need of the new values goes there by channels. Any
other sees whole tensors, the same on every rank, which then takes its own part of the result: the
numbers are those of one process, and the memory is that of whole tensors while it runs.

The optimiser's parameters stay the same objects, so that what it or a scheduler keeps of them stays
true; on a mesh they get a rank's parts, or whole values, as data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from irc.dialects.placement import Mesh, Placement
from irc.errors import IrcError
from irc.plan.weights import local_slices
from irc.runtime.agreement import fail_together
from irc.runtime.eager_kinds import is_elementwise, same_draws
from irc.runtime.eager_stages import NUMBERS, Told, told_by_all
from irc.runtime.eager_states import check_class, check_keys, check_shape
from irc.runtime.eager_work import (
    Work,
    become,
    blank,
    is_same,
    placement_of_work,
    through,
    work_on,
)
from irc.runtime.parts import Parts
from irc.runtime.spread_parts import SpreadParts
from irc.runtime.stored import StoredState
from irc.runtime.torch_optimizer import state_name
from irc.training.optimizers import GRADIENT
from irc.training.recipe import Recipe

CLASS = "class"
"""Where a state says the name of the optimiser's class."""
PLAIN = (*NUMBERS, tuple)


class EagerOptimizer:
    """An optimiser of torch, or of a user's own class, over parameters of a module.

    Args:
        optimizer: whose ``step()`` is called.
        module: what is trained.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self._optimizer = optimizer
        names = {id(value): name for name, value in module.named_parameters()}
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self._own: dict[str, torch.Tensor] = {names[id(p)]: p for p in every}
        self._names = {id(p): name for name, p in self._own.items()}
        self._is_elementwise = is_elementwise(optimizer)
        self._work: dict[str, Work] = {}
        # Some classes make states with the optimiser, and look for them in each step.
        self._early = {n: set(own) for n, p in self._own.items()
                       if (own := optimizer.state.get(p, {}))}  # fmt: skip
        self._later: tuple[StoredState, str] | None = None
        self._parts: Parts | None = None
        self._mesh, self._place, self._rank = Mesh(()), 0, 0
        self._elsewhere: set[str] = set()
        self._told: dict[str, Told] = {}
        self._has_failed = False

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of the next step, which does not depend on the optimiser's numbers.

        Raises:
            IrcError: ``option-value`` where the optimiser has other parameters than it had.
        """
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        if len(every) != len(self._own) or any(id(p) not in self._names for p in every):
            raise IrcError(
                "option-value",
                "the optimiser has other parameters than when the step was made",
                help="make another step, and give it this one's state_dict()",
            )
        return recipe

    def numbers(self) -> list[dict[str, Any]]:
        """Return what the groups say now: numbers, flags and names."""
        return [
            {key: own for key, value in group.items() if isinstance(own := _number(value), PLAIN)}
            for group in self._optimizer.param_groups
        ]

    def bind(self, parts: Parts) -> None:
        """Let the optimiser's parameters be what ranks hold, once they hold it; all ranks call it.

        Args:
            parts: of this rank, with its gradients.

        Raises:
            IrcError: ``option-value`` for states without values; ``checkpoint-corrupt``.
        """
        self._parts = parts
        self._mesh, self._place, self._rank = parts.mesh, parts.rank, parts.world_rank
        for name, parameter in self._own.items():
            if name not in self._work and parts.holds(state_name(GRADIENT, name)):
                self._work[name] = work_on(parts, name, elementwise=self._is_elementwise)
                self._move_states(name, parameter)
                self._show(parts, name)
            # What ranks do not hold stays the module's: its values are nowhere else.
            elif name not in self._work and parts.world > 1 and name in parts.roles:
                become(parameter, blank(parameter, parameter.shape))
                if not parts.holds(name):  # another stage's, which has its states
                    self._elsewhere.add(name)
                    self._optimizer.state.pop(parameter, None)
        self._read_later()

    def step(
        self, parts: Parts, trained: Collection[str], lr: float | None = None, seed: int = 0
    ) -> None:
        """Move the parameters by the gradients that ranks hold; every rank calls it.

        Args:
            parts: of this rank; its parameters get the new values.
            trained: names of the parameters whose gradients were computed now; to the optimiser
                the others have none, as after ``zero_grad()``.
            lr: of this step, in the place of what the groups say.
            seed: of what the optimiser draws, the same on every rank.

        Raises:
            IrcError: ``optimizer-failed`` on every rank, naming the first that it failed on;
                ``rank-lost``.
        """
        moving = {name: work for name, work in self._work.items() if name in trained}
        for parameter in self._own.values():
            parameter.grad = None
        for name, work in moving.items():
            parameter = self._own[name]
            self._fetch(parts, name)
            gradient = parts.local[state_name(GRADIENT, name)]
            gradient = through(work.gradient, self._rank, gradient)
            parameter.grad = gradient.to(parameter.device, parameter.dtype)
        said = [group["lr"] for group in self._optimizer.param_groups if "lr" in group]
        tied = next((n for n in moving if isinstance(parts, SpreadParts) and parts.is_tied(n)), "")
        failed: IrcError | None = None
        try:
            if lr is not None:
                self._set_rates([lr] * len(said))
            with same_draws(self._optimizer, seed, parts.world, tied):
                self._optimizer.step()
        except Exception as error:
            failed = self._failure(error)
        finally:
            if lr is not None:
                self._set_rates(said)
        # Before new values go from rank to rank: the others would wait for this one.
        try:
            fail_together(failed)
        except IrcError:
            self._has_failed = parts.world > 1
            raise
        for name, work in moving.items():
            parameter, part = self._own[name], parts.local[name]
            parameter.grad = None
            if not is_same(parameter, part):
                part.copy_(through(work.give, self._rank, parameter.detach()))
                self._show(parts, name)
            # torch does not count writes through ``.data``: what is made of weights is out of date.
            torch.autograd.graph.increment_version(part)

    def check_alike(self) -> None:
        """Refuse a step after one that failed: ranks may have moved parameters, or not.

        Raises:
            IrcError: ``optimizer-failed`` until :meth:`are_alike`.
        """
        if self._has_failed:
            raise IrcError(
                "optimizer-failed",
                f"{self.class_name}.step() failed in an earlier step, and nothing was loaded since",
                because="some ranks may have moved their parameters and others not",
                help="go on from a checkpoint, step.load(folder), or from a state of the model and "
                "of the optimiser, step.load_state_dict(state)",
            )

    def are_alike(self) -> None:
        """Take note that parameters and states were loaded on every rank."""
        self._has_failed = False

    def _failure(self, error: Exception) -> IrcError:
        """Return what is raised where the optimiser's own step raises an error."""
        if isinstance(error, IrcError):
            return error
        name = type(self._optimizer).__name__
        failed = IrcError(
            "optimizer-failed",
            f"{name}.step() failed on rank {self._rank}: {type(error).__name__}: {error}",
            because="it ran after forward and backward, without a closure; parameters may "
            "have moved in part",
            help="go on from a checkpoint, with an optimiser whose step() needs the gradients "
            "alone",
        )
        failed.__cause__ = error
        return failed

    def restore(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Give groups what they had when a state was saved: schedulers go on from them.

        Args:
            groups: as torch's distributed checkpoints have them, ``params`` being names.
        """
        for own in self._optimizer.param_groups:
            names = {self._names[id(p)] for p in own["params"]}
            none: Mapping[str, Any] = {}
            saved = next((g for g in groups if names & set(g.get("params", ()))), none)
            for key, value in saved.items():
                if key == "params":
                    continue
                if isinstance(own.get(key), torch.Tensor):
                    own[key].fill_(float(value))
                else:
                    own[key] = value

    def states(self) -> Parts:
        """Return this rank's parts of the states, under irc's names; numbers are not among them.

        What a checkpoint has for parts that are not taken yet is read whole. With stages every rank
        calls it: each says what those of its own keep.
        """
        self._read_later()
        states = Parts(self._mesh, self._place)
        for name, key, value in self._tensors():
            work = self._work.get(name)
            whole = Placement.replicated(self._mesh.names)
            placement, shape = whole, tuple(value.shape)
            if work is not None and shape == tuple(self._own[name].shape):
                placement, shape = work.placement, work.shape
            states.put(state_name(key, name), value.detach(), placement, shape)
        if isinstance(self._parts, SpreadParts) and self._parts.has_others:
            return self._with_others(self._parts, states)
        return states

    def num_bytes(self) -> int:
        """Return the bytes of this rank's parts of the states."""
        self._read_later()
        return sum(value.numel() * value.element_size() for _, _, value in self._tensors())

    def _with_others(self, parts: SpreadParts, own: Parts) -> Parts:
        """Return this rank's states, and what other stages say of theirs; every rank calls it."""
        # What is frozen has no gradient here, and may have states from the optimiser's beginning.
        roles = {n: parts.roles[n] for n in self._own if n in parts.ranks and parts.holds(n)}
        held = [n for n, role in roles.items() if role == "parameter"]
        states = {n: self._optimizer.state.get(self._own[n], {}) for n in held}
        self._told = told_by_all(states, own.shape, self._place == 0)
        every = parts.like_parameters()
        whole = Placement.replicated(self._mesh.names)
        for name, (tensors, _) in sorted(self._told.items()):
            placement, shape = whole, parts.shape(name)
            if state_name(GRADIENT, name) in parts.roles:
                placement = placement_of_work(parts, name, elementwise=self._is_elementwise)
            for key, kind in sorted(tensors.items()):
                lies = placement if tuple(kind.shape) == shape else whole
                every.know(state_name(key, name), parts, name, lies, kind)
        every.local |= own.local
        return every

    def assembled(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state as torch's distributed checkpoints have it.

        Args:
            held: what is to be there of each of :meth:`states`, by name.
        """
        states: dict[str, dict[str, Any]] = {}
        for name, parameter in self._own.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    place = state_name(key, name)
                    value = held[place] if place in held else value.detach().clone()
                states.setdefault(name, {})[key] = value
        for name in self._elsewhere:
            tensors, numbers = self._told.get(name, ({}, {}))
            known = {k: held[n] for k in tensors if (n := state_name(k, name)) in held}
            if numbers or known:
                states[name] = {**numbers, **known}
        groups = [
            {key: _number(value) for key, value in group.items() if key != "params"}
            | {"params": [self._names[id(p)] for p in group["params"]]}
            for group in self._optimizer.param_groups
        ]
        return {"state": states, "param_groups": groups}

    @property
    def class_name(self) -> str:
        """What the optimiser's class is called in a state."""
        return type(self._optimizer).__name__

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse states of what the optimiser does not have.

        Args:
            state: of an optimiser, as :meth:`assembled` returns it.

        Raises:
            IrcError: ``state-mismatch``.
        """
        check_class(self._optimizer, state.get(CLASS))
        states = state.get("state")
        if states is None:
            return
        for name in states:
            if name not in self._own:
                raise IrcError("state-mismatch", f"the optimiser has no parameter '{name}'")
        self._check_states({
            name: {k: tuple(v.shape) if isinstance(v, torch.Tensor) else () for k, v in own.items()}
            for name, own in states.items()
        })  # fmt: skip

    def check_stored(self, checkpoint: StoredState, prefix: str) -> None:
        """Refuse a checkpoint's states of what the optimiser does not have; every rank calls it.

        Args:
            checkpoint: opened by every rank.
            prefix: how names of states begin.

        Raises:
            IrcError: ``state-mismatch``, ``checkpoint-corrupt``.
        """
        place = f"{prefix.partition('.')[0]}.{CLASS}"
        check_class(self._optimizer, checkpoint.values((place,)).get(place))
        states: dict[str, dict[str, tuple[int, ...]]] = {}
        for place, (name, key) in self._places(checkpoint, prefix).items():
            states.setdefault(name, {})[key] = checkpoint.shapes.get(place, ())
        self._check_states(states)

    def _check_states(self, states: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        """Refuse states by name of the parameter and of the state, of which these are shapes."""
        groups = {id(p): g for g in self._optimizer.param_groups for p in g["params"]}
        for name, own in states.items():
            parameter = self._own[name]
            check_keys(self._optimizer, groups[id(parameter)], name, own)
            work = self._work.get(name)
            whole = tuple(parameter.shape) if work is None else work.shape
            for key, shape in own.items():
                if self._is_elementwise:
                    check_shape(name, key, shape, whole)
        for name, keys in self._early.items():
            if lacking := sorted(keys - set(states.get(name, ()))):
                raise IrcError(
                    "state-mismatch",
                    f"the state lacks '{lacking[0]}' of '{name}', which the optimiser has from "
                    "its beginning",
                    help="load the parameters alone: step.load(folder, optimizer=False)",
                )

    def load(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Take whole states by parameter and name, and drop all others.

        Every rank calls it with the same.
        """
        self._later = None
        self._optimizer.state.clear()
        for name, own in states.items():
            if name in self._elsewhere:
                continue
            self._optimizer.state[self._own[name]] = {
                key: self._part(
                    name, value.full_tensor() if hasattr(value, "full_tensor") else value
                )
                for key, value in own.items()
            }

    def take(self, checkpoint: StoredState, prefix: str, *, is_alone: bool) -> None:
        """Take the states of a checkpoint, at once or when this rank knows its parts.

        Args:
            checkpoint: opened by every rank.
            prefix: how names of states begin.
            is_alone: there is one rank, which has all parts.
        """
        if self._parts is not None or is_alone:
            self._read(checkpoint, prefix)
        else:
            self._later = checkpoint, prefix

    def _read_later(self) -> None:
        if self._later is not None:
            (checkpoint, prefix), self._later = self._later, None
            self._read(checkpoint, prefix)

    def _read(self, checkpoint: StoredState, prefix: str) -> None:
        from irc.runtime.boxes import Box

        every = self._places(checkpoint, prefix).items()
        places = {place: own for place, own in every if own[0] not in self._elsewhere}
        boxes: dict[str, Box] = {}
        fresh: dict[str, dict[str, Any]] = {}
        for place, (name, key) in places.items():
            if (shape := checkpoint.shapes.get(place)) is None:
                continue
            where = self._slices(name, shape)
            room = [s.stop - s.start for s in where]
            part = torch.empty(room, dtype=checkpoint.dtypes[place])
            boxes[place] = Box([part], [where], shape)
            fresh.setdefault(name, {})[key] = part
        checkpoint.read(boxes)
        for place, value in checkpoint.values(n for n in places if n not in boxes).items():
            name, key = places[place]
            fresh.setdefault(name, {})[key] = value
        self._optimizer.state.clear()  # it had no others then
        for name, own in fresh.items():
            self._optimizer.state[self._own[name]] = own

    def _places(self, checkpoint: StoredState, prefix: str) -> dict[str, tuple[str, str]]:
        """Return names of the parameter and of the state by what a checkpoint calls them."""
        stored = [n for n in (*checkpoint.shapes, *checkpoint.objects) if n.startswith(prefix)]
        places = {n: n.removeprefix(prefix).rpartition(".") for n in stored}
        return {n: (own, key) for n, (own, _, key) in places.items() if own in self._own}

    def _fetch(self, parts: Parts, name: str) -> None:
        """Give a parameter of the optimiser its values, unless it is what this rank holds."""
        parameter, part = self._own[name], parts.local[name]
        if not is_same(parameter, part):
            become(parameter, through(self._work[name].fetch, self._rank, part))

    def _show(self, parts: Parts, name: str) -> None:
        """Let a parameter be this rank's part between steps, or no memory but a shape."""
        work, parameter, part = self._work[name], self._own[name], parts.local[name]
        if parts.world > 1 and work.fetch is None:
            become(parameter, part)
        elif parts.world > 1:
            where = local_slices(work.placement, self._mesh, self._place, work.shape)
            become(parameter, blank(part, [s.stop - s.start for s in where]))

    def _move_states(self, name: str, parameter: torch.Tensor) -> None:
        """Take this rank's part of states that the optimiser has already."""
        own = self._optimizer.state.get(parameter, {})
        for key, value in own.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise IrcError(
                    "option-value",
                    f"the optimiser has made '{key}' of a parameter on the meta device",
                    help="choose an optimiser that makes its states in its first step",
                )
            own[key] = self._part(name, value)

    def _part(self, name: str, value: Any) -> Any:
        """Return what this rank is to have of a whole state."""
        if not isinstance(value, torch.Tensor):
            return value
        return value[self._slices(name, tuple(value.shape))].clone()

    def _slices(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        work = self._work.get(name)
        if work is None or shape != work.shape:
            return tuple(slice(0, size) for size in shape)
        return local_slices(work.placement, self._mesh, self._place, shape)

    def _tensors(self) -> list[tuple[str, str, torch.Tensor]]:
        """Return name of the parameter, name and value of each state that has dims."""
        return [
            (name, key, value)
            for name, parameter in self._own.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and value.ndim
        ]

    def _set_rates(self, rates: Sequence[Any]) -> None:
        groups = [group for group in self._optimizer.param_groups if "lr" in group]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def _number(value: Any) -> Any:
    is_number = isinstance(value, torch.Tensor) and value.ndim == 0
    return value.item() if is_number else value
