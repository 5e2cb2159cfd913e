"""The state of a training step: parameters, buffers, optimiser states and seed, whole or in parts.

Before the first call everything is the module's. After it, on a mesh, each rank has its parts, and
the module's parameters are on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from irc.dialects.placement import Mesh
from irc.errors import did_you_mean
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.plan.training import trained_by
from irc.runtime.agreement import agree_on_weights
from irc.runtime.eager_optimizer import CLASS, EagerOptimizer
from irc.runtime.eager_states import keeps_alike
from irc.runtime.initialisers import Init, InitialStart
from irc.runtime.module_tensors import Shown, canonical_names, make_room, release
from irc.runtime.parts import Parts
from irc.runtime.replicas import Copies
from irc.runtime.spread_parts import SpreadParts
from irc.runtime.starts import CheckpointStart, Start
from irc.runtime.state_checks import check_names, check_shape, mismatch, no_value
from irc.runtime.stored import StoredState
from irc.runtime.torch_optimizer import CLASSES, STEP, from_torch, state_name, to_torch
from irc.runtime.weight_files import WeightFilesStart
from irc.training.entry import globs, matches
from irc.training.optimizers import GRADIENT, OPTIMIZERS, REMAINDER
from irc.training.recipe import Recipe

Form: TypeAlias = Callable[[Parts, str], Any]
"""Makes of a tensor what a state in parts has of it; None for one that another stage has."""

MODEL, STATE, STORED_CLASS = "model.", "optimizer.state.", f"optimizer.{CLASS}"
"""How names in checkpoints begin."""

SEED = "seed"
COUNT = "step"
SCALER = "scaler"
"""Of a scaled loss, the state of its scale: :mod:`irc.runtime.loss_scale`."""
KEYS = ("model", "optimizer", SEED, COUNT, SCALER)


class TrainingState:
    """What a training step goes on from.

    Args:
        module: whose parameters and buffers are trained.
        recipe: says which optimiser, and what is frozen.
        mesh: of the run.
        seed: of random numbers.
        init: initialises each layer of a module on the meta device.
        eager: an optimiser that has states of its own, and moves the parameters.

    Attributes:
        recipe: says which optimiser, and its numbers now.
        parts: what this rank holds; empty before the first call.
        trained: names of the parameters that move.
        step: how many steps were made.
        starts: what gives values to parts when they are taken; of two that do, the later.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        mesh: Mesh,
        seed: int,
        init: Init | None = None,
        eager: EagerOptimizer | None = None,
    ) -> None:
        self._module, self.recipe, self._mesh = module, recipe, mesh
        self._eager = eager
        self.parts = Parts(mesh, 0)
        still = globs(recipe.frozen)
        self.trained = [
            name
            for name, value in module.named_parameters()
            if value.requires_grad and not matches(name, still)
        ]
        self._first = canonical_names(module)
        self._pending = {SEED: torch.tensor(seed, dtype=torch.int64)}
        self.step = 0
        self._shown = Shown(module, self._first)
        initial = InitialStart(module, self._first, seed, init)
        self.starts: list[Start] = [initial] if initial.names else []

    def start_here(self) -> None:
        """Give a module on the meta device memory and values, on one device.

        What went there later has no value to start from, and stays.
        """
        empty = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        absent = {name for name, tensor in empty.items() if tensor.is_meta}
        if not absent or absent.difference(*(start.names for start in self.starts)):
            return
        values: dict[str, torch.Tensor] = {}
        for start in self.starts:
            names = {n: empty[n] for n in start.names if n in empty}
            values |= dict(start.wholes(names))
            start.leave_out(names)
        make_room(self._module)
        held = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        with torch.no_grad():
            for name, value in values.items():
                held[name].copy_(value)

    def adopt(self, plan: Plan, tensors: Mapping[str, torch.Tensor], rank: int) -> None:
        """Take what a plan loads: values of the module at first, then what is held already.

        Args:
            plan: of one kind of batch.
            tensors: whole ones of the capture, by name.
            rank: this process's.
        """
        if not self.parts.local:
            self.parts = Parts(self._mesh, rank)
        if self._mesh.num_ranks == 1:
            # A parameter that was replaced in the module is a new tensor.
            moved = [n for n in self.parts.local if self.parts.roles[n] in ("parameter", "buffer")]
            self.parts.local.update({n: tensors[n].detach() for n in moved if n in tensors})
        later = {name for start in self.starts for name in start.names}
        wholes = {n: t for n, t in {**tensors, **self._pending}.items() if n not in later}
        if self._mesh.num_ranks > 1:
            agree_on_weights(self.parts.missing(plan, wholes))
        before = self._held()
        self.parts.adopt(plan, wholes, later)
        self._start(before)
        self._pending = {n: t for n, t in self._pending.items() if n not in self.parts.local}
        self.trained = trained_by(plan)
        if self._mesh.num_ranks > 1:
            release(self._module, self._first, self.parts.roles)
        if self._eager is not None:
            self._eager.bind(self.parts)

    def adopt_parts(self, plan: PartsPlan, tensors: Mapping[str, torch.Tensor], rank: int) -> None:
        """Take what this rank's stages load; see :meth:`adopt`."""
        is_first = not isinstance(self.parts, SpreadParts)
        parts = self.parts if isinstance(self.parts, SpreadParts) else SpreadParts(plan, rank)
        parts.check_stages(plan)
        self.parts = parts
        is_alone = plan.mesh.num_ranks == 1
        if is_alone:
            moved = [n for n in parts.local if parts.roles[n] in ("parameter", "buffer")]
            parts.local.update({n: tensors[n].detach() for n in moved if n in tensors})
        later = {name for start in self.starts for name in start.names}
        wholes = {n: t for n, t in {**tensors, **self._pending}.items() if n not in later}
        if not is_alone and is_first:  # the module has no values any more, once they were taken
            agree_on_weights(
                {n: t for n, t in wholes.items() if n in parts.roles and not t.is_meta}
            )
        before = self._held()
        parts.adopt_stages(plan, wholes, later)
        self._start(before)
        # What other stages hold stays pending here until somebody asks for the whole state.
        self._pending = {n: t for n, t in self._pending.items() if n not in parts.roles}
        self.trained = list(plan.trained)
        if not is_alone:
            release(self._module, self._first, parts.roles)
        if self._eager is not None:
            self._eager.bind(parts)

    def show(self) -> None:
        """Let the module hold its values, whole, until :meth:`hide`; every rank calls it."""
        if self.parts.roles:
            self._shown.show(self.parts)

    def hide(self) -> None:
        """Put parameters that the module was shown back on the meta device."""
        self._shown.hide()

    def _held(self) -> set[str]:
        return {name for start in self.starts for name in start.names if self.parts.holds(name)}

    def _start(self, before: Collection[str]) -> None:
        """Give their values to parts that were taken now."""
        for start in self.starts:
            start.fill(self.parts, [n for n in start.names if n not in before])

    def next_seed(self) -> int:
        """Return the seed of this step, and count it up for the next."""
        seed = int(self._pending[SEED])
        self._pending[SEED].add_(1)
        return seed

    def state_dict(self, *, everywhere: bool) -> dict[str, Any]:
        """Return the whole state; on a mesh every rank calls it."""
        held: dict[str, Any] = dict(self._pending)
        for parts, name in self._saved():
            whole = parts.whole(name, everywhere=everywhere)
            if whole is not None:
                held[name] = whole
        if not everywhere and self.parts.world_rank:
            return {}
        return self._with_class(self._assembled(held))

    def state_in_parts(self, form: Form, *, says_class: bool = False) -> dict[str, Any]:
        """Return the state with this rank's parts alone; on a mesh every rank calls it.

        Args:
            form: makes of a part what is returned.
            says_class: name the class of the optimiser, which torch's own states do not.
        """
        held: dict[str, Any] = dict(self._pending)
        for parts, name in self._saved():
            if name in (STEP, SEED):
                part = parts.local.get(name)
                held[name] = part if part is None else part.clone()
            else:
                held[name] = form(parts, name)
        state = self._assembled({n: v for n, v in held.items() if v is not None})
        return self._with_class(state) if says_class else state

    def _with_class(self, state: dict[str, Any]) -> dict[str, Any]:
        state["optimizer"][CLASS] = self._class_name
        return state

    @property
    def _class_name(self) -> str:
        if self._eager is not None:
            return self._eager.class_name
        return CLASSES[self.recipe.kind.partition("-")[0]].__name__

    def _saved(self) -> Iterator[tuple[Parts, str]]:
        """Return all that a state has, the same on every rank, and the parts that it is in."""
        gradients = {state_name(GRADIENT, name) for name in self.trained}
        yield from ((self.parts, name) for name in self.parts.names if name not in gradients)
        if self._eager is not None:
            states = self._eager.states()
            yield from ((states, name) for name in states.names)

    def copies(self) -> list[Copies]:
        """Return of each tensor which ranks hold copies of one part, the same on every rank."""
        states = [] if self._eager is None else self._eager.states().copies()
        return [*self.parts.copies(), *states]

    def num_bytes_of_states(self) -> int:
        """Return the bytes of this rank's parts of what an optimiser keeps between steps."""
        own = 0 if self._eager is None else self._eager.num_bytes()
        return own + (self.parts.num_bytes("state") if self.parts.local else 0)

    def _assembled(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state of values under irc's names, as torch names it."""
        model: dict[str, Any] = {}
        for key, value in self._module.state_dict().items():
            name = self._first.get(key, key)
            if name in held:
                model[key] = held[name]
            elif name in self.parts.roles:
                continue  # another stage's
            elif isinstance(value, torch.Tensor) and value.is_meta:
                raise no_value(key)
            else:
                model[key] = value.clone() if isinstance(value, torch.Tensor) else value
        seed = held.get(SEED, self._pending.get(SEED, 0))
        return {
            "model": model,
            "optimizer": to_torch(self.recipe, held, self.trained)
            if self._eager is None
            else self._eager.assembled(held),
            SEED: int(seed),
            COUNT: self.step,
        }

    def take(self, checkpoint: StoredState, *, optimizer: bool) -> None:
        """Go on from a checkpoint; parts that are not taken yet are read when they are.

        Args:
            checkpoint: opened by every rank.
            optimizer: read states too, with seed and step.

        Raises:
            IrcError: ``state-mismatch``; nothing is written then.
        """
        own = self._module.state_dict()
        shapes = {k: tuple(v.shape) for k, v in own.items() if isinstance(v, torch.Tensor)}
        model = {n.removeprefix(MODEL): s for n, s in checkpoint.shapes.items()
                 if n.startswith(MODEL)}  # fmt: skip
        check_names(model, shapes, f"'{checkpoint.path}'")
        stored = {self._first.get(key, key): f"{MODEL}{key}" for key in shapes}
        wanted = self._state_names() if optimizer and self._eager is None else {}
        lacking = [n for n, key in wanted.items() if key not in checkpoint.shapes]
        numbers = checkpoint.values((SEED, COUNT)) if optimizer else {}
        if wanted and len(lacking) == len(wanted) and numbers.get(COUNT) == 0:
            wanted, lacking = {}, []  # it was saved before the first step
        if wanted and len(lacking) == len(wanted):
            raise mismatch(
                f"'{checkpoint.path}' has no states of {self.recipe.kind}",
                "load the parameters alone: step.load(folder, optimizer=False)",
            )
        self._check_stored_states(checkpoint, wanted)
        if optimizer and self._eager is not None:
            self._eager.check_stored(checkpoint, STATE)
        elif optimizer:
            self._check_class(checkpoint.values((STORED_CLASS,)).get(STORED_CLASS))
        stored |= {n: key for n, key in wanted.items() if key in checkpoint.shapes}
        start = CheckpointStart(checkpoint, stored, lacking)
        # Parameters that the module has whole are written at once; it may be looked at.
        whole = {n: v for key, v in self._module.state_dict(keep_vars=True).items()
                 if (n := self._first.get(key, key)) not in self.parts.roles
                 and isinstance(v, torch.Tensor) and not v.is_meta}  # fmt: skip
        read = start.whole(whole)
        start.fill(self.parts, [n for n in stored if n in self.parts.roles])
        with torch.no_grad():
            for name, value in whole.items():
                value.copy_(read[name])
        if optimizer:
            self._set_numbers(numbers)
            if self._eager is not None:
                self._eager.take(checkpoint, STATE, is_alone=self._mesh.num_ranks == 1)
                self._eager.are_alike()
        if later := {n: k for n, k in stored.items() if n not in {*self.parts.roles, *whole}}:
            self._later(CheckpointStart(checkpoint, later, lacking))

    def take_weights(self, start: WeightFilesStart) -> None:
        """Take weights alone; parts that are not taken yet are read when they are."""
        own = self._module.state_dict(keep_vars=True)
        tensors = {self._first.get(n, n): v for n, v in own.items() if isinstance(v, torch.Tensor)}
        whole = {n: v for n, v in tensors.items() if n not in self.parts.roles and not v.is_meta}
        with torch.no_grad():
            start.write(self.parts, [n for n in start.names if n in self.parts.roles], whole)
            for name in self.trained:  # of other values than these
                if (part := self.parts.local.get(state_name(REMAINDER, name))) is not None:
                    part.zero_()
        start.leave_out({*self.parts.roles, *whole})
        self._later(start)

    def _later(self, start: Start) -> None:
        """Let parts that are not taken yet get their values from a start, and from no other."""
        for each in self.starts:
            each.leave_out(start.names)
        if start.names:
            self.starts.append(start)

    def weights(self) -> tuple[dict[str, int], Callable[[str], torch.Tensor | None]]:
        """Return the bytes of each weight by its first name, and what puts one together on rank 0.

        Raises:
            IrcError: ``weights-missing``.
        """
        own = {n: v for n, v in self._module.state_dict().items()
               if isinstance(v, torch.Tensor) and self._first.get(n, n) == n}  # fmt: skip
        for name, value in own.items():
            if value.is_meta and name not in self.parts.roles:
                raise no_value(name)

        def whole(name: str) -> torch.Tensor | None:
            if name in self.parts.roles:
                return self.parts.whole(name, everywhere=False)
            return own[name] if self.parts.world_rank == 0 else None

        return {n: v.numel() * v.element_size() for n, v in own.items()}, whole

    def _set_numbers(self, numbers: Mapping[str, Any]) -> None:
        self.step = int(numbers.get(COUNT, self.step))
        if SEED in numbers:
            value = torch.tensor(int(numbers[SEED]), dtype=torch.int64)
            if SEED in self.parts.local:
                self.parts.load(SEED, value)
            else:
                self._pending[SEED] = value

    def _state_names(self) -> dict[str, str]:
        """Return the names of states in a checkpoint, by irc's."""
        kind = OPTIMIZERS[self.recipe.kind]
        names = {
            state_name(moment, name): f"{STATE}{name}.{moment}"
            for name in self.trained
            for moment in self._states_of(name)
        }
        if kind.counts and self.trained:
            names[STEP] = f"{STATE}{self.trained[0]}.step"
        return names

    def _states_of(self, name: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the states of a parameter, by their names."""
        parameter = self._module.get_parameter(name)
        own = dict(OPTIMIZERS[self.recipe.kind].states(parameter.shape))
        is_half = parameter.dtype in (torch.bfloat16, torch.float16)
        if is_half and self.recipe.precision.masters:
            own[REMAINDER] = tuple(parameter.shape)
        return own

    def _check_class(self, name: object) -> None:
        """Refuse states of an optimiser of another class than the compiled one's."""
        if not keeps_alike(name, self._class_name):
            raise mismatch(
                f"the state is of {name}, and the step computes {self._class_name}",
                "load the parameters alone: step.load(folder, optimizer=False)",
            )

    def _check_stored_states(self, checkpoint: StoredState, wanted: Mapping[str, str]) -> None:
        for name, key in wanted.items():
            parameter, _, moment = key.removeprefix(STATE).rpartition(".")
            expected = () if name == STEP else self._states_of(parameter)[moment]
            if checkpoint.shapes.get(key, expected) != expected:
                raise mismatch(
                    f"'{key}' is {list(checkpoint.shapes[key])}; the step has {list(expected)}", ""
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write a whole state over what is held; nothing is written where something does not fit.

        Raises:
            IrcError: ``state-mismatch``, also where ranks are given different ones.
        """
        for key in state:
            if key not in KEYS:
                raise mismatch(f"a state has no '{key}'", did_you_mean(key, KEYS))
        model: Mapping[str, Any] = state.get("model", {})
        if "model" in state:
            self._check_model(model)
        states: dict[str, torch.Tensor] = {}
        own_states: Mapping[str, Any] = state.get("optimizer", {}).get("state", {})
        if self._eager is not None:
            self._eager.check(state.get("optimizer", {}))
        elif "optimizer" in state:
            self._check_class(state["optimizer"].get(CLASS))
            states = from_torch(self.recipe, state["optimizer"])
            self._check_states(states)
        model = {k: whole for k, v in model.items()
                 if (whole := self._other(self._first.get(k, k), v)) is not None}  # fmt: skip
        states = {n: w for n, v in states.items() if (w := self._other(n, v)) is not None}
        if SEED in state:
            states[SEED] = torch.tensor(int(state[SEED]), dtype=torch.int64)
        if self._mesh.num_ranks > 1 and self.parts.roles:
            model_tensors = {n: v for n, v in model.items() if isinstance(v, torch.Tensor)}
            agree_on_weights({**model_tensors, **states})
        with torch.no_grad():
            self._write_model(model)
            for name, value in states.items():
                if self.parts.holds(name):
                    self.parts.load(name, value)
                elif name not in self.parts.roles:
                    self._pending[name] = value.clone()
        if self._eager is not None and "state" in state.get("optimizer", {}):
            self._eager.load(own_states)
            if "model" in state:
                self._eager.are_alike()
        for start in self.starts:
            start.leave_out({*states, *(self._first.get(key, key) for key in model)})
        self.step = int(state.get(COUNT, self.step))

    def _other(self, name: str, value: Any) -> Any:
        """Return a given value whole; None for a DTensor of the very parts that are held."""
        if not hasattr(value, "to_local"):
            return value
        own, part = self.parts.local.get(name), value.to_local()
        if own is not None and (own.data_ptr(), own.shape) == (part.data_ptr(), part.shape):
            return None
        return value.full_tensor()

    def _write_model(self, model: Mapping[str, Any]) -> None:
        for key, value in self._module.state_dict(keep_vars=True).items():
            name = self._first.get(key, key)
            if key in model and self.parts.holds(name):
                self.parts.load(name, model[key])
            elif key not in model or not isinstance(value, torch.Tensor):
                continue
            elif not value.is_meta:
                value.copy_(model[key])
            elif name not in self.parts.roles:
                self._pending[name] = model[key].clone()

    def _check_model(self, model: Mapping[str, Any]) -> None:
        own = self._module.state_dict()
        for name in own:
            place = self._first.get(name, name)
            is_elsewhere = place in self.parts.roles and not self.parts.holds(place)
            if name not in model and not is_elsewhere:
                raise mismatch(f"the state lacks '{name}'", "give the module's whole state_dict")
        for name, value in model.items():
            if name not in own:
                raise mismatch(f"the module has no '{name}'", did_you_mean(name, own))
            if isinstance(own[name], torch.Tensor):
                check_shape(name, value, tuple(own[name].shape))

    def _check_states(self, states: Mapping[str, torch.Tensor]) -> None:
        shapes = {
            state_name(moment, name): shape
            for name in self.trained
            for moment, shape in self._states_of(name).items()
        }
        if OPTIMIZERS[self.recipe.kind].counts:
            shapes[STEP] = ()
        for name, value in states.items():
            if name not in shapes:
                kind = self.recipe.kind
                raise mismatch(f"'{kind}' keeps no '{name}'", did_you_mean(name, shapes))
            check_shape(name, value, shapes[name])
