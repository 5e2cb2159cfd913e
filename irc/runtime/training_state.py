"""The state of a training step: parameters, buffers, optimiser states and seed, whole or in parts.

Before the first call everything is the module's. After it, on a mesh, each rank has its parts, and
the module's parameters are on the meta device.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from irc.dialects.placement import Mesh
from irc.errors import IrcError, did_you_mean
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.runtime.agreement import agree_on_weights
from irc.runtime.parts import Parts
from irc.runtime.spread_parts import SpreadParts
from irc.runtime.torch_optimizer import STEP, from_torch, state_name, to_torch
from irc.training.entry import globs, matches
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe

SEED = "seed"
KEYS = ("model", "optimizer", SEED)


class TrainingState:
    """What a training step goes on from.

    Args:
        module: whose parameters and buffers are trained.
        recipe: says which optimiser, and what is frozen.
        mesh: of the run.
        seed: of random numbers.

    Attributes:
        parts: what this rank holds; empty before the first call.
        trained: names of the parameters that move.
    """

    def __init__(self, module: nn.Module, recipe: Recipe, mesh: Mesh, seed: int) -> None:
        self._module, self._recipe, self._mesh = module, recipe, mesh
        self.parts = Parts(mesh, 0)
        still = globs(recipe.frozen)
        self.trained = [
            name
            for name, value in module.named_parameters()
            if value.requires_grad and not matches(name, still)
        ]
        self._first = canonical_names(module)
        self._pending = {SEED: torch.tensor(seed, dtype=torch.int64)}

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
        wholes = {**tensors, **self._pending}
        if self._mesh.num_ranks > 1:
            agree_on_weights(self.parts.missing(plan, wholes))
        self.parts.adopt(plan, wholes)
        self._pending = {n: t for n, t in self._pending.items() if n not in self.parts.local}
        self.trained = [
            plan.buffers[i].name for i in plan.states() if plan.buffers[i].role == "parameter"
        ]
        if self._mesh.num_ranks > 1:
            release(self._module, self._first, self.parts.roles)

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
        wholes = {**tensors, **self._pending}
        if not is_alone and is_first:  # the module has no values any more, once they were taken
            agree_on_weights(
                {n: t for n, t in wholes.items() if n in parts.roles and not t.is_meta}
            )
        parts.adopt_stages(plan, wholes)
        # What other stages hold stays pending here until somebody asks for the whole state.
        self._pending = {n: t for n, t in self._pending.items() if n not in parts.roles}
        self.trained = list(plan.trained)
        if not is_alone:
            release(self._module, self._first, parts.roles)

    def next_seed(self) -> int:
        """Return the seed of this step, and count it up for the next."""
        seed = int(self._pending[SEED])
        self._pending[SEED].add_(1)
        return seed

    def state_dict(self, *, everywhere: bool) -> dict[str, Any]:
        """Return the whole state; on a mesh every rank calls it."""
        found = dict(self._pending)
        for name in self.parts.names:
            whole = self.parts.whole(name, everywhere=everywhere)
            if whole is not None:
                found[name] = whole
        if not everywhere and self.parts.world_rank:
            return {}
        model = {
            key: found.get(self._first.get(key, key), value)
            for key, value in self._module.state_dict().items()
        }
        copied = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in model.items()}
        optimizer = to_torch(self._recipe, found, self.trained)
        return {"model": copied, "optimizer": optimizer, SEED: int(found[SEED])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write a whole state over what is held; nothing is written where something does not fit.

        Raises:
            IrcError: ``state-mismatch``, also where ranks are given different ones.
        """
        for key in state:
            if key not in KEYS:
                raise _mismatch(f"a state has no '{key}'", did_you_mean(key, KEYS))
        model: Mapping[str, Any] = state.get("model", {})
        if "model" in state:
            self._check_model(model)
        states = from_torch(self._recipe, state["optimizer"]) if "optimizer" in state else {}
        self._check_states(states)
        if SEED in state:
            states[SEED] = torch.tensor(int(state[SEED]), dtype=torch.int64)
        if self._mesh.num_ranks > 1 and self.parts.local:
            given = {n: v for n, v in model.items() if isinstance(v, torch.Tensor)}
            agree_on_weights({**given, **states})
        with torch.no_grad():
            self._write_model(model)
            for name, value in states.items():
                if self.parts.holds(name):
                    self.parts.load(name, value)
                elif name not in self.parts.roles:
                    self._pending[name] = value.clone()

    def _write_model(self, model: Mapping[str, Any]) -> None:
        for key, value in self._module.state_dict(keep_vars=True).items():
            name = self._first.get(key, key)
            if key in model and self.parts.holds(name):
                self.parts.load(name, model[key])
            elif key in model and isinstance(value, torch.Tensor) and not value.is_meta:
                value.copy_(model[key])

    def _check_model(self, model: Mapping[str, Any]) -> None:
        own = self._module.state_dict()
        for name in own:
            if name not in model:
                raise _mismatch(f"the state lacks '{name}'", "give the module's whole state_dict")
        for name, value in model.items():
            if name not in own:
                raise _mismatch(f"the module has no '{name}'", did_you_mean(name, own))
            if isinstance(own[name], torch.Tensor):
                _check_shape(name, value, tuple(own[name].shape))

    def _check_states(self, states: Mapping[str, torch.Tensor]) -> None:
        parameters = dict(self._module.named_parameters())
        moments = OPTIMIZERS[self._recipe.kind].moments
        shapes = {
            state_name(moment, name): tuple(parameters[name].shape)
            for name in self.trained
            for moment in moments
        }
        if OPTIMIZERS[self._recipe.kind].counts:
            shapes[STEP] = ()
        for name, value in states.items():
            if name not in shapes:
                kind = self._recipe.kind
                raise _mismatch(f"'{kind}' keeps no '{name}'", did_you_mean(name, shapes))
            _check_shape(name, value, shapes[name])


def _check_shape(name: str, value: Any, expected: tuple[int, ...]) -> None:
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != expected:
        given = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise _mismatch(f"'{name}' is {given}; the step has {list(expected)}", "")


def _mismatch(message: str, advice: str) -> IrcError:
    return IrcError("state-mismatch", message, help=advice)


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return for each name of a parameter or buffer the first name of the same tensor."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for walk in (module.named_parameters, module.named_buffers):
        for name, value in walk(remove_duplicate=False):
            found[name] = first.setdefault(id(value), name)
    return found


def release(module: nn.Module, first: Mapping[str, str], roles: Mapping[str, str]) -> None:
    """Move parameters that ranks hold in parts to the meta device; tied ones stay tied."""
    made: dict[str, nn.Parameter] = {}
    for path, child in module.named_modules():
        for key, value in child._parameters.items():
            name = first.get(f"{path}.{key}" if path else key)
            if value is None or value.is_meta or name is None or roles.get(name) != "parameter":
                continue
            if name not in made:
                shown = torch.empty_like(value, device="meta")
                made[name] = nn.Parameter(shown, requires_grad=value.requires_grad)
            child._parameters[key] = made[name]


@contextmanager
def shaped(module: nn.Module) -> Iterator[None]:
    """Give parameters of the meta device memory that nobody reads, so that capture takes them."""
    kept: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    made: dict[int, nn.Parameter] = {}
    for child in module.modules():
        for key, value in child._parameters.items():
            if value is not None and value.is_meta:
                kept.append((child._parameters, key, value))
                # Never touched, so the system gives it no pages.
                room = torch.empty_like(value, device="cpu")
                made.setdefault(id(value), nn.Parameter(room, requires_grad=value.requires_grad))
    try:
        for slots, key, value in kept:
            slots[key] = made[id(value)]
        yield
    finally:
        for slots, key, value in kept:
            slots[key] = value
