"""Training in the user's own loop on a mesh: forward and backward of one plan behind autograd.

The first call that records gradients plans both and lets each rank keep its part of the parameters,
which become DTensors. From then on all calls read these parts; what an optimiser writes to them is
what the next call reads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.accumulation import Accumulation, Pending
from irc.calls.feeding import Feeding, axes_called_so, feeding_of
from irc.calls.noted import Watch, note_graph
from irc.constraints.layouts import parse_layout
from irc.constraints.pins import constraint_text, pin
from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import tensor
from irc.dialects.placement import Placement
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.own_backward import as_differentiated
from irc.frontends.torch.structure import argument_names
from irc.frontends.torch.tensor_checks import warn_of_checks
from irc.pipeline import Options
from irc.plan.parts import PIPE
from irc.plan.schema import Plan
from irc.program import Program
from irc.programs.halves import Halves, pack_halves, plan_halves, unpack_halves
from irc.runtime import held
from irc.runtime.agreement import agree_on_weights
from irc.runtime.call_agreement import collects_first
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.join import has_peers, shared_bytes
from irc.runtime.once import once
from irc.runtime.ranks import Ranks, argument_placement
from irc.runtime.replicas import check_copies
from irc.runtime.same_program import marks_of
from irc.runtime.sharded_parameters import ShardedParameters
from irc.runtime.weights import slice_weights
from irc.training.stages import GRADIENT


def is_trained_on_ranks(module: nn.Module, options: Options) -> bool:
    """Return whether a module that is compiled for a mesh is to be trained on it.

    It is where several processes run it, it is in training mode and has parameters that require a
    gradient, and the caller has not switched gradients off.
    """
    return (
        options.mesh.num_ranks > 1
        and PIPE not in options.mesh.names
        and options.backend == "cpu"
        and torch.is_grad_enabled()
        and module.training
        and all(p.is_cpu for p in module.parameters())
        and any(p.requires_grad for p in module.parameters())
        and has_peers()
    )


def loop_feeding(options: Options, rank: int) -> Feeding:
    """Return what a rank is given of a batch in a loop."""
    axes = parse_layout(options.layout, options.mesh).samples
    return feeding_of(options.batch, options.mesh, axes).of_rank(rank)


def stays_plain(options: Options) -> bool:
    """Return whether every rank has all parameters, so that they can be plain tensors as they are.

    That is so under ``ddp``, unless there are pins, which may split some.
    """
    return options.layout == "ddp" and not options.pins


class Loop:
    """What the calls of a module on a mesh share that record gradients.

    Args:
        module: what is trained.
        options: of the pipeline.
        ranks: the processes.

    Attributes:
        feeding: what each rank is given of a batch.
        parameters: as the ranks hold them.
        versions: the kinds of calls that there were.
        is_synced: whether backward adds gradients up over the ranks.
        pending: which gradients of plain parameters are sums that are still to be made.
    """

    def __init__(self, module: nn.Module, options: Options, ranks: Ranks) -> None:
        self.module, self.options, self.ranks = module, options, ranks
        self.feeding = loop_feeding(options, ranks.rank)
        self._names: dict[Any, list[str]] = {}
        self._calls, self._is_written = 0, False
        stay = stays_plain(options)
        self.parameters = ShardedParameters(module, options.mesh, ranks.rank, stay=stay)
        self.versions: list[LoopVersion] = []
        self.is_synced = True
        self.pending = Pending(ranks, options.mesh)

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LoopVersion | None:
        """Return the version for a call."""
        wanted = self._wanted()
        for version in self.versions:
            if version.wanted == wanted and version.guards.check(args, kwargs) is None:
                return version
        return None

    def add(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LoopVersion:
        """Plan forward and backward of a kind of call; every rank calls it."""
        ranks, mesh = self.ranks, self.options.mesh
        options = replace(self.options, samples=axes_called_so(mesh))
        captured = self.captured(args, kwargs)
        if captured.mutated_inputs:
            name = next(iter(captured.mutated_inputs))
            raise IrcError(
                "op-unsupported",
                f"the module writes into its argument '{name}' where gradients are recorded",
                because="on a mesh the backward pass reads what the call was given",
                help="copy it in the module before writing",
            )
        program, tensors = captured.program, dict(captured.program.tensors)
        own = self.parameters.by_name
        trained = [n for n, p in own.items() if p.requires_grad and n in program.tensors]
        leaves = pytree.tree_leaves((tuple(args), captured.guards.ordered(kwargs)))
        call_tensors = [leaves[i] for i in captured.tensor_leaves]
        inputs = [
            name for name, tensor in zip(captured.input_names, call_tensors, strict=True)
            if tensor.requires_grad
        ]  # fmt: skip
        fed = self.fed(captured, args, kwargs)
        for name in inputs:
            if name in fed:
                raise IrcError(
                    "op-unsupported",
                    f"the argument '{name}', of which each rank has its own part, requires a "
                    "gradient",
                    help="detach it, or give every rank the whole batch",
                )
        whole = Placement.replicated(mesh.names)
        placed = self.parameters.placements
        fixed = {n: p for n, p in placed.items() if n in program.tensors}
        fixed |= {name: whole for name in captured.states if name in program.tensors}
        pin(program.module, fixed)
        samples = samples_of(program, fed)
        divided = [*fed, *(f"{GRADIENT}{name}" for name in _with_samples(program, samples))]
        if divided:
            text, _ = constraint_text(options.pins)
            options = replace(options, pins="\n".join([text, *self.feeding.pins(divided)]))
        marks, watch = marks_of(program.module, options, trained, inputs), Watch()
        halves = unpack_halves(
            shared_bytes(
                lambda: pack_halves(plan_halves(program, options, trained, inputs)),
                ranks.rank,
                marks,
            )
        )
        self._place(halves)
        for source, half in (("aot forward", halves.forward), ("aot backward", halves.backward)):
            note_graph(watch, source, half.plan, (), options)
        guards = Guards.of(self.module, args, dict(kwargs))
        version = LoopVersion(
            self, captured, halves, guards, tensors, self._wanted(), divided, samples
        )
        self.versions.append(version)
        return version

    def captured(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
        """Trace a call; parameters in parts have their whole shapes there."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        own = self.own(args, kwargs)
        blank = pytree.tree_unflatten(
            [self._blank(leaf, is_part=number in own) for number, leaf in enumerate(leaves)], spec
        )
        with self.parameters.blank(), torch.no_grad(), as_differentiated(from_all=True):
            captured = capture(self.module, *blank, hooks=False)
        warn_of_checks(captured.effect, "a plan for a mesh")
        return captured

    def _blank(self, leaf: Any, *, is_part: bool) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        blank = held.blank(leaf.detach())
        return self.feeding.widened(blank) if is_part else blank

    def own(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """Return which leaves of the arguments are this rank's own part."""
        if not self.feeding.is_local:
            return frozenset()
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if spec not in self._names:
            self._names[spec] = argument_names(self.module.forward, tuple(args), dict(kwargs))
        return self.feeding.own(leaves, self._names[spec])

    def fed(self, captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Return the names of the inputs of which each rank is given its own part."""
        own = self.own(args, kwargs)
        names = captured.program.input_names
        return [n for n, i in zip(names, captured.tensor_leaves, strict=True) if i in own]

    def own_rows(self, tensor: torch.Tensor, samples: int) -> torch.Tensor:
        """Return this rank's part of a result, where that has the samples along its first dim.

        Args:
            tensor: whole.
            samples: of the whole batch; 0 where every rank is given all of it.
        """
        if not samples or not tensor.ndim or len(tensor) != samples:
            return tensor
        size = samples // self.feeding.count
        return tensor.narrow(0, self.feeding.part * size, size)

    def check(self) -> None:
        """Count a call, and compare the copies of parameters where that is due; all ranks call it.

        Raises:
            IrcError: ``replicas-differ``.
        """
        self._calls += 1
        every = self.options.check_every
        if every and self._calls % every == 0:
            check_copies(self.parameters.copies(), f"before call {self._calls}")

    def local(self, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what this rank holds of the weights of a plan.

        Args:
            plan: the plan.
            tensors: whole ones, of what is not a parameter in parts.
        """
        parts = self.parameters.parts()
        rest = {name: tensor for name, tensor in tensors.items() if name not in parts}
        return slice_weights(plan, rest, self.ranks.rank, parts)

    def expect_writes(self) -> None:
        """Note that there are gradients, by which parameters are likely to be written to.

        Optimisers that share their work among ranks write through ``.data``, which torch does not
        count (``ZeroRedundancyOptimizer`` sends each rank's parameters to the others so).
        """
        self._is_written = True
        self._forget()

    def see_writes(self) -> None:
        """Take parameters as they are now, where there were gradients since the last forward."""
        if self._is_written:
            self._is_written = False
            self._forget()

    def _forget(self) -> None:
        self.ranks.store.may_be_written()
        for copy in self.ranks.copies.values():
            copy.version = None

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Leave gradients as the sums that each rank has of its part of the batch."""
        before, self.is_synced = self.is_synced, False
        try:
            yield
        finally:
            self.is_synced = before

    def _wanted(self) -> tuple[bool, ...]:
        return tuple(p.requires_grad for p in self.module.parameters())

    def _place(self, halves: Halves) -> None:
        """Take this rank's parts of parameters where the plan wants them."""
        wholes = self.parameters.whole()
        if not wholes:
            return
        agree_on_weights(wholes)
        placements: dict[str, Placement] = {}
        rooms: dict[str, tuple[int, ...]] = {}
        for plan in (halves.forward.plan, halves.backward.plan):
            for index in plan.weights:
                buffer = plan.buffers[index]
                placements[buffer.name] = argument_placement(plan, index)
                if buffer.rows:
                    rooms[buffer.name] = buffer.shape
        self.parameters.place(placements, rooms)


class LoopVersion:
    """Forward and backward of one kind of call.

    Args:
        loop: what calls share.
        captured: the call as it was traced.
        halves: the plans.
        guards: what they are for.
        tensors: what the module holds beside its parameters.
        wanted: which parameters require a gradient.
        divided: names of what each rank gives its own part of.
        samples: of the whole batch; 0 where every rank is given all of it.
    """

    def __init__(
        self,
        loop: Loop,
        captured: Captured,
        halves: Halves,
        guards: Guards,
        tensors: Mapping[str, torch.Tensor],
        wanted: tuple[bool, ...],
        divided: Sequence[str] = (),
        samples: int = 0,
    ) -> None:
        self.guards, self.wanted = guards, wanted
        self._samples, self._divided = samples, set(divided)
        self._loop, self._captured, self._halves = loop, captured, halves
        fed = [loop.feeding.of_plan(each, divided) for each in (halves.forward, halves.backward)]
        self._forward = self._executor(fed[0], tensors)
        self._backward = self._executor(fed[1], tensors)
        parameters = loop.parameters.by_name
        self._names = [name for name in halves.gradients if name in parameters]
        self._trained: list[Any] = [parameters[name] for name in self._names]
        asked = [name for name in halves.gradients if name not in parameters]
        self._asked = [captured.input_names.index(name) for name in asked]
        plan = halves.backward.plan
        computed = [argument_placement(plan, index) for index in plan.outputs]
        whole = Placement.replicated(loop.options.mesh.names)
        placements = loop.parameters.placements
        placed = [placements.get(name, whole) for name in halves.gradients]
        self._deliver = Accumulation(
            loop.ranks, loop.options.mesh, loop.pending, self._trained, computed, placed
        )
        self._draws = any(
            plan.buffers[i].name == SEED
            for plan in (halves.forward.plan, halves.backward.plan)
            for i in plan.inputs
        ) and SEED not in captured.input_names  # fmt: skip
        # A seed that is drawn is sent first.
        self.collects_first = not self._draws and collects_first(halves.forward.plan)
        seeds = set[str]().union(*halves.reads.values())
        self._flat = [i for i, name in enumerate(halves.outputs) if name not in seeds]

    def _executor(self, loaded: Any, tensors: Mapping[str, torch.Tensor]) -> Executor:
        loop = self._loop
        return executor_of(
            loaded,
            loop.local(loaded.plan, tensors),
            rank=loop.ranks.rank,
            communicator=loop.ranks.communicator,
            copies=loop.ranks.copies,
            store=loop.ranks.store,
        )

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run forward; autograd runs backward."""
        self._loop.parameters.count_writes()
        self._loop.see_writes()
        inputs = self._captured.flatten(args, dict(kwargs))
        asked = [inputs[index] for index in self._asked]
        results = _both_ways.apply(self, inputs, *self._trained, *asked)
        return self._captured.returned(list(results), inputs)

    def refresh(self) -> None:
        """See writes to weights that torch does not count."""
        self._forward.forget_prepared()
        self._backward.forget_prepared()

    def forward(self, ctx: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run the forward plan, and note for autograd what the other one reads."""
        named = dict(zip(self._captured.input_names, map(held.part_of, inputs), strict=True))
        if self._draws:
            named[SEED] = self._seed()
        results = self._forward(*_in_order(self._forward.plan, named))
        count = len(self._halves.outputs)
        saved = dict(zip(self._halves.saved, results[count:], strict=True))
        kept = {n: named[n] for n in _names_of(self._backward.plan) if n in named}
        # A parameter among them lets torch see that it was written to in between.
        ctx.save_for_backward(*saved.values(), *kept.values(), *self._trained)
        ctx.kept = tuple(kept)
        outputs = tuple(self._loop.own_rows(each, self._samples) for each in results[:count])
        ctx.mark_non_differentiable(*(outputs[i] for i in self._flat))
        ctx.set_materialize_grads(False)
        ctx.like = [(o.shape, o.dtype) for o in outputs]
        return outputs

    def backward(self, ctx: Any, grad_outputs: Sequence[torch.Tensor | None]) -> list[Any]:
        """Run the backward plan; return gradients of parameters, then of inputs."""
        halves = self._halves
        values = ctx.saved_tensors
        saved = dict(zip(halves.saved, values, strict=False))
        saved |= dict(zip(ctx.kept, values[len(saved) :], strict=False))
        for name, g, (shape, dtype) in zip(halves.outputs, grad_outputs, ctx.like, strict=True):
            own = GRADIENT + name
            saved[own] = torch.zeros(shape, dtype=dtype) if g is None else g
            if g is not None and own in self._divided:
                # Each part counts as one of so many means of equally many samples.
                saved[own] = g / self._loop.feeding.count
        parts = list(self._backward(*_in_order(self._backward.plan, saved)))
        asked = {n for n, g in zip(halves.outputs, grad_outputs, strict=True) if g is not None}
        is_wanted = [bool(asked & set(halves.reads[n])) for n in halves.gradients]
        takers: list[Any] = [node for node, _ in ctx.next_functions[-len(is_wanted) :]]
        nodes = [node if want else None for node, want in zip(takers, is_wanted, strict=True)]
        gradients = self._deliver(parts, nodes, is_synced=self._loop.is_synced)
        self._loop.expect_writes()
        return gradients

    def _seed(self) -> torch.Tensor:
        """Draw the seed of a call's random numbers, as ``torch.manual_seed`` repeats it."""
        seed = torch.empty((), dtype=torch.int64).random_()
        dist.broadcast(seed, 0)
        return seed


SEED = "seed"


class _BothWays(torch.autograd.Function):
    """Forward and backward of a version, for autograd."""

    @staticmethod
    def forward(
        ctx: Any, version: LoopVersion, inputs: Sequence[torch.Tensor], *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.version = version
        return version.forward(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor | None) -> Any:
        with torch.no_grad():
            gradients = ctx.version.backward(ctx, grad_outputs)
        if torch.is_grad_enabled():  # create_graph=True
            gradients = once(
                gradients,
                "gradients of a module that is compiled for a mesh are differentiated",
                "its backward pass is a plan, which gives numbers and no graph",
                "leave out the penalty on gradients (create_graph=True), or train the module as it "
                "is: irc.whole(model)",
            )
        return (None, None, *gradients)


_both_ways: Any = _BothWays
"""Its ``apply`` is one of torch's functions whose types are unknown in part."""


def samples_of(program: Program, fed: Sequence[str]) -> int:
    """Return how many samples the whole batch has; 0 where every rank is given all of it."""
    for _, name, value in arguments(entry(program.module)):
        if fed and name == fed[0]:
            return tensor(value).static_shape()[0]
    return 0


def _with_samples(program: Program, samples: int) -> list[str]:
    """Return the names of the real results that have the samples along their first dim."""
    func = entry(program.module)
    end = func.body.block.last_op
    assert end is not None
    names: list[str] = []
    for (role, name), value in zip(results(func), end.operands, strict=True):
        kind = value.type
        if samples and role == "output" and isinstance(kind, TensorType) and is_float(kind.dtype):
            shape = kind.static_shape()
            names += [name] if shape and shape[0] == samples else []
    return names


def _names_of(plan: Plan) -> list[str]:
    return [plan.buffers[index].name for index in plan.inputs]


def _in_order(plan: Plan, named: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [named[name] for name in _names_of(plan)]
