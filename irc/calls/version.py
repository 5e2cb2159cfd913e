"""One compiled version of a module: guards, the way in and out, and what runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from irc.calls.direct import MISS, Direct, handing, have_memory
from irc.calls.direct import direct as make_direct
from irc.calls.trial import LONGEST_FIRST_S, has_saved_hooks, is_behind, undone
from irc.dialects.placement import Mesh, Placement
from irc.errors import IrcError
from irc.frontends.torch.caches import adopt, caches_in, is_cache
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.result_memory import View
from irc.frontends.torch.settings import is_elsewhere
from irc.plan.schema import Buffer, Copy, Kernels, Library, Plan, placement_of
from irc.record import FallBack, Record
from irc.runtime import held
from irc.runtime.executor import Executor
from irc.runtime.shared_memory import clash
from irc.runtime.whole import whole

_TURN = threading.Lock()
"""Held while it is seen which thread tries a version: the others run what was compiled."""


class Version:
    """Runs calls that meet its guards.

    What the module writes into its arguments is written in place, into the caller's memory. On a
    mesh, tensors of a cache stay with the ranks: each has its part between calls, and the cache
    that the caller holds has DTensors. A cache of plain tensors is split once, when it first comes.

    Args:
        captured: with caches in place (:func:`irc.frontends.torch.in_place.in_place`).
        executor: of the plan made from it.
        record: where what the first call shows is noted.
        torchs: runs a call as eager mode does; the first call shows whether it is faster
            (:mod:`irc.calls.trial`). None: what was compiled runs.

    Attributes:
        layout: how inputs and results lie.
        rank: of this process.
        accepts: a quick check of positional arguments, after which :meth:`run` may be called; None
            where calls have to go the whole way.
        direct: a call as one function of positional arguments, which returns MISS where it is not
            for them; None where calls have to go the whole way.
        left: torch runs the calls: it is faster.
    """

    def __init__(
        self,
        captured: Captured,
        executor: Executor,
        torchs: Callable[..., Any] | None = None,
        record: Record | None = None,
    ) -> None:
        plan = executor.plan
        self._record = record
        self._torchs, self._is_tried, self.left = torchs, torchs is None, False
        if plan.device_mesh.num_ranks > 1:
            captured = replace(captured, guards=captured.guards.of_ranks())
        self._captured = captured
        self._executor = executor
        self._mesh, self.rank = plan.device_mesh, executor.rank
        self.layout = Layout(plan, captured.cached_inputs)
        # What a plan may write it takes row by row, also where it turns out to write nothing.
        held_here = self.layout.held if plan.device_mesh.num_ranks == 1 else set[int]()
        self._rows = sorted({*self.layout.written, *held_here})
        self._has_caches = bool(captured.cached_inputs) or any(p.spec for p in captured.parts)
        self._is_single = captured.out_spec.is_leaf()
        self._views = [each.view for each in captured.outputs]
        self._set_guards(captured)

    def _set_guards(self, captured: Captured) -> None:
        direct = _is_direct(captured, self.plan) and not self.layout.written
        self._captured = captured
        self.accepts = quick = captured.guards.quick() if direct else None
        self.direct: Direct | None = None
        if quick is not None:
            short = make_direct(quick, self._executor, is_single=self._is_single, views=self._views)
            self.direct = self._accepted if short is None else short

    def _leave(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Leave calls to torch where it is faster: time both ways on the arguments of a call."""
        with _TURN:
            is_tried, self._is_tried = self._is_tried, True
        torchs = self._torchs
        if is_tried or torchs is None or self._has_caches or has_saved_hooks():
            return
        if self._captured.is_foreign:  # to call it is to be seen
            return
        arguments = _apart(args, kwargs, self._captured, self.layout.written)
        direct = self.direct

        def whole() -> None:  # the way in is most of a small call
            if self.mismatch(*arguments) is None and self.shared(*arguments) is None:
                self._planned(*arguments)

        tensors = self._captured.program.tensors
        with undone([tensors[name] for name in self._captured.states if name in tensors]):
            start = time.thread_time()
            is_direct = direct is not None and not kwargs and direct(arguments[0]) is not MISS
            if time.thread_time() - start > LONGEST_FIRST_S:
                return  # nor is it run again
            try:
                behind = is_behind(
                    (lambda: direct(arguments[0])) if is_direct and direct else whole,
                    lambda: torchs(*arguments[0], **arguments[1]),
                    self._note_behind,
                )
            except Exception:  # the call itself is to raise what it raises
                return
        if behind:
            self.left, self.accepts = True, None
            self.direct = (
                handing(torchs, args, self._captured.guards.tensors) if not kwargs else None
            )

    def _note_behind(self, why: str) -> None:
        if self._record is not None:
            self._record.note(FallBack("timing", "calls of this kind", why, ""))

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self._executor.plan

    def run(self, args: Sequence[torch.Tensor]) -> Any:
        """Run on arguments that were accepted: they are the plan's inputs."""
        results = self._executor.run(args)
        if any(self._views):
            pairs = zip(self._views, results, strict=True)
            results = tuple(x if view is None else view.of(x) for view, x in pairs)
        return results[0] if self._is_single else results

    def _accepted(self, args: Sequence[Any]) -> Any:
        """Run on arguments that are accepted, though there is more to it than kernels."""
        assert self.accepts is not None
        # What runs between kernels would make its tensors there, too.
        return MISS if is_elsewhere() or not self.accepts(args) else self.run(args)

    def refresh(self) -> None:
        """See writes to weights that torch does not count."""
        self._executor.forget_prepared()

    def weights(self) -> frozenset[str]:
        """Return the names of the weights that the plan takes."""
        return frozenset(self.plan.buffers[index].name for index in self.plan.weights)

    def unread(self) -> frozenset[str]:
        """Return those of which calls read packed copies alone."""
        return self._executor.unread()

    def release(self, names: Collection[str], replaced: Mapping[int, torch.Tensor]) -> None:
        """Let go of weights that are unread; the module holds others in their places.

        Args:
            names: of the weights.
            replaced: by the identity of a tensor, what stands for it.
        """
        self._executor.release(names)
        self._is_tried, self.left = True, False
        captured = self._captured
        for name in names:
            captured.program.tensors.pop(name, None)
        self._set_guards(replace(captured, guards=captured.guards.exchanged(replaced)))

    def mismatch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return None where the call can run, else the first reason why not."""
        reason = self._captured.guards.check(args, kwargs)
        if reason is None and self.layout.split:
            tensors = self._captured.flatten(args, dict(kwargs))
            reason = self.layout.mismatch(tensors, self._mesh)
        return reason

    def shared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Say which input the call writes to while another lies over it; None where none does.

        The program was traced for inputs that are apart: what one op writes, no other one reads.
        """
        if not self.layout.written or self._mesh.num_ranks > 1:
            return None
        clashing = clash(self._captured.flatten(args, dict(kwargs)), self.layout.written)
        if clashing is None:
            return None
        one, other = (self.layout.names[i] for i in clashing)
        where = f"with '{other}'" if one != other else "among its own elements: it was expanded"
        return f"'{one}' is written to and shares memory {where}"

    def resized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, int, int, int] | None:
        """Return the argument, the dim and its two sizes where only that differs."""
        return self._captured.guards.resized(args, kwargs)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments that meet the guards."""
        if not self._is_tried:
            self._leave(args, kwargs)
        if self.left and self._torchs is not None and self._have_memory(args, kwargs):
            return self._torchs(*args, **kwargs)
        return self._planned(args, kwargs)

    def _have_memory(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether torch may run a call: not all its kernels look where there is nothing."""
        tensors = self._captured.flatten(args, dict(kwargs))
        return have_memory([each for each in tensors if each.numel()])

    def _planned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the plan."""
        captured = self._captured
        named = dict(kwargs)
        inputs = captured.flatten(args, named)
        caches: list[Any] = []
        if self._has_caches:
            caches = caches_in((tuple(args), captured.guards.ordered(named)))
        if self._mesh.num_ranks > 1:
            inputs = self.layout.placed(inputs, caches, self._mesh, self.rank)
        parts = [held.part_of(tensor) for tensor in inputs]
        apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in self._rows:
            part = parts[index]
            if not part.is_contiguous() or part.is_neg() or part.is_conj():
                parts[index] = part.resolve_conj().resolve_neg().contiguous()
                if index in self.layout.written:
                    apart.append((part, parts[index]))
        results = list(self._executor(*parts))
        for own, copy in apart:
            own.copy_(copy)
        self.layout.count_writes(parts)
        for position, placement in self.layout.split_outputs:
            results[position] = held.hold(results[position], placement, self._mesh)
        return captured.returned(results, inputs, caches)


def _apart(
    args: Sequence[Any], kwargs: Mapping[str, Any], captured: Captured, written: Collection[int]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments of a call, with copies of what it writes to."""
    if not written:
        return args, dict(kwargs)
    leaves, spec = pytree.tree_flatten((tuple(args), captured.guards.ordered(kwargs)))
    for index in (captured.tensor_leaves[i] for i in written):
        leaves[index] = leaves[index].detach().clone()
    return pytree.tree_unflatten(leaves, spec)


def _is_direct(captured: Captured, plan: Plan) -> bool:
    """True where arguments are the plan's inputs, and results those of the module, one to one.

    The guards have then checked all there is to check: such a call costs little more than its
    kernels.
    """
    inputs = captured.guards.flat and captured.tensor_leaves == tuple(range(len(plan.inputs)))
    places = [each.position for each in captured.outputs]
    results = places == list(range(len(plan.outputs))) and all(
        not each.number and (each.view is None or _is_all(each.view, plan.buffers[index]))
        for each, index in zip(captured.outputs, plan.outputs, strict=True)
    )
    structure = captured.out_spec.is_leaf() or (
        captured.out_spec.type is tuple
        and all(map(pytree.TreeSpec.is_leaf, captured.out_spec.children()))
    )
    alone = plan.device_mesh.num_ranks == 1 and not captured.cached_inputs
    return inputs and results and structure and alone and not any(p.spec for p in captured.parts)


def _is_all(view: View, result: Buffer) -> bool:
    """True where a view has all of a result's memory, and its own dims apart from each other."""
    return prod(view.shape) == prod(result.shape) and 0 not in view.strides and not view.offset


class PartVersion(Version):
    """A version of whose results with samples each rank gives its own part.

    Args:
        captured: as :class:`Version` has it.
        executor: as :class:`Version` has it.
        own: gives this rank's part of a result.
    """

    def __init__(
        self,
        captured: Captured,
        executor: Executor,
        own: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(captured, executor)
        self._own = own

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments that meet the guards."""
        return pytree.tree_map_only(torch.Tensor, self._own, super().__call__(args, kwargs))


class Layout:
    """How the tensors lie that a plan is given and gives back as its ranks hold them.

    Args:
        plan: the plan.
        cached: the inputs that belong to cache objects, in which a part can take a whole's place.

    Attributes:
        split: inputs of which each rank holds a part, and how.
        held: all inputs that ranks hold between calls.
        written: those that a call writes to.
        split_outputs: results of which each rank holds a part, and how.
    """

    def __init__(self, plan: Plan, cached: Collection[int]) -> None:
        self._cached = cached
        buffers = [plan.buffers[index] for index in plan.inputs]
        targets = {action.target for action in plan.actions if isinstance(action, Copy)}
        targets |= {i for a in plan.actions if isinstance(a, Library) for i in a.outputs}
        calls = [call for a in plan.actions if isinstance(a, Kernels) for call in a.calls]
        kernel_outputs = (i for c in calls for i in c.args[plan.kernels[c.kernel].num_inputs :])
        targets |= {plan.root(index) for index in kernel_outputs}
        self.names = [buffer.name for buffer in buffers]
        self.held = {i for i, buffer in enumerate(buffers) if buffer.role == "cache"}
        self.split = {i: placement_of(buffers[i]) for i in self.held if buffers[i].placement}
        self.written = [i for i, index in enumerate(plan.inputs) if index in targets]
        outputs = [plan.buffers[index] for index in plan.outputs]
        self.split_outputs = [(i, placement_of(b)) for i, b in enumerate(outputs) if b.placement]

    def mismatch(self, tensors: Sequence[torch.Tensor], mesh: Mesh) -> str | None:
        """Say which input ranks hold otherwise than the plan takes it, if one does."""
        for index in self.held:
            if held.is_held(tensors[index]):
                lies = held.placement_of(tensors[index], mesh)
                wanted = self.split.get(index, Placement.replicated(mesh.names))
                if lies != wanted:
                    return f"'{self.names[index]}' lies as {lies}, compiled for {wanted}"
        return None

    def placed(
        self, tensors: Sequence[Any], caches: Sequence[Any], mesh: Mesh, rank: int
    ) -> list[torch.Tensor]:
        """Return the inputs as ranks are to hold them; caches are given what was split of them."""
        placed = list(tensors)
        for index, tensor in enumerate(tensors):
            if index in self.split:
                if held.is_held(tensor):
                    continue
                if index not in self._cached:
                    raise _is_whole(self.names[index], self.split[index])
                placed[index] = held.split(tensor, self.split[index], mesh, rank)
            elif held.is_held(tensor):
                placed[index] = tensor.full_tensor()
        changed = {id(a): b for a, b in zip(tensors, placed, strict=True) if a is not b}
        if changed:
            for cache in caches:
                leaves, spec = pytree.tree_flatten(cache)
                adopt(cache, pytree.tree_unflatten([changed.get(id(x), x) for x in leaves], spec))
        return placed

    def count_writes(self, parts: Sequence[torch.Tensor]) -> None:
        """Tell torch that tensors were written to, as its own ops do."""
        counted = [parts[i] for i in self.written if not parts[i].is_inference()]
        if counted:
            torch.autograd.graph.increment_version(counted)


def _is_whole(name: str, placement: Placement) -> IrcError:
    return IrcError(
        "input-mismatch",
        f"'{name}' is whole, and the ranks hold it as {placement}",
        because="what a call writes to it would be seen on this rank's part alone",
        help=f"split it once, before the first call: entries.hold('{name.partition('.')[0]}', ..)",
    )


def placements_for(
    captured: Captured, tensors: Sequence[Any], mesh: Mesh, known: Mapping[str, Placement]
) -> dict[str, Placement]:
    """Return what is decided of a program's arguments before it is planned for a mesh.

    Weights lie as an earlier plan of the model has them (``known``), and a cache as the ranks hold
    it. What the module writes into plain arguments and into its own buffers is everybody's: whole.
    """
    program = captured.program
    whole = Placement.replicated(mesh.names)
    inputs = captured.input_names
    placements = {name: known[name] for name in program.tensors if name in known}
    for index in captured.cached_inputs:
        if held.is_held(tensors[index]):
            placements[inputs[index]] = held.placement_of(tensors[index], mesh)
    outside = set(captured.mutated_inputs.values()) - set(captured.cached_inputs)
    placements |= {inputs[index]: whole for index in outside}
    buffers = set(captured.states) - set(captured.mutated_inputs)
    return placements | {name: whole for name in buffers if name in program.tensors}


def gathered(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
    """Return a call with everything whole on every rank; caches are gathered themselves."""
    arguments = (tuple(args), dict(kwargs))
    for cache in caches_in(arguments):
        adopt(cache, whole(cache))

    def brought(leaf: Any) -> Any:
        # The caches themselves: a call writes to the object.
        return leaf if is_cache(leaf) else whole(leaf)

    return pytree.tree_map(brought, arguments, is_leaf=is_cache)
