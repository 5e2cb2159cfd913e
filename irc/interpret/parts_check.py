"""Which stage, micro-batch, function and value of a plan of several programs is wrong first.

A step is run eagerly (:mod:`irc.interpret.parts_reference`), and against it is held what the plan's
own functions make, send, receive and add up, in registers, in the order of the schedule, all ranks
in one process. What a function reads has to be what was put there for its micro-batch, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.text import load
from irc.errors import IrcError
from irc.interpret.parts import Run, run_here, whole_of
from irc.interpret.parts_passes import AFTER, has_passes, wrong_pass
from irc.interpret.parts_peers import Sight, ThreadPeers
from irc.interpret.parts_reference import CutModel, Reference, reference_of
from irc.logs import PROGRESS, tell_share
from irc.plan.json_text import corrupt
from irc.plan.parts import MICRO_BATCH_KINDS, PartsPlan
from irc.plan.training import HEAD, STAGED, smaller_file
from irc.plan.weights import local_slices
from irc.schedule.tapes import Function, Route
from irc.sharding.between import Side
from irc.training.accumulators import ACCUMULATED
from irc.training.slices import cut
from irc.training.stages import stages_of
from irc.training.vocabulary import slices_of

CLOSE = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Error relative to a value's magnitude that the order of sums explains."""
HALF = 5e-2
"""The same where values are rounded to half precision on their way."""
ROUNDINGS = 4
"""Of the largest gradient: what one is off by where its terms cancel."""


@dataclass(frozen=True)
class Pair:
    """What a run has of a value, and what it should be.

    Attributes:
        what: the value, and who made it, as a message names them.
        own: what the run has.
        expected: what it should be.
        is_exact: whether it is the same value on its way, not one computed again.
        by: the micro-batch and part whose functions computed it, None where none of them did.
    """

    what: str
    own: torch.Tensor
    expected: torch.Tensor
    is_exact: bool = False
    by: tuple[int, int] | None = None

    def fault(self, largest: float, *, in_halves: bool = False) -> str:
        """Say how the two differ, or nothing.

        Args:
            largest: magnitude of a gradient; what is some roundings of it is nothing.
            in_halves: values of other dtypes may come from rounded ones, too.
        """
        if self.is_exact:
            same = torch.allclose(self.own, self.expected, rtol=0, atol=0, equal_nan=True)
            return "" if same else f"{self.what} is not what was put there"
        dtype = self.expected.dtype
        limit = HALF if in_halves else CLOSE.get(dtype, HALF)
        rounding = ROUNDINGS * torch.finfo(dtype).eps * largest if _is_real(dtype) else 0.0
        error = _error(self.own, self.expected, rounding / limit)
        return f"{self.what} differs from eager by {error:.1e}" if error > limit else ""


@dataclass(frozen=True)
class CheckedStep:
    """A step of a plan of several programs that agrees with eager.

    Attributes:
        values: how many values and gradients between stages, losses and sums were compared.
    """

    values: int

    def __str__(self) -> str:
        what = "values and gradients between stages, losses and sums"
        return f"{self.values} {what} are as eager has them"


def check_parts(
    plan: PartsPlan,
    wholes: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
    *,
    peers: type[ThreadPeers] = ThreadPeers,
) -> CheckedStep:
    """Hold a step of a plan against the model run eagerly, and return what was compared.

    Args:
        plan: for at most 64 ranks, with the text of its model.
        wholes: weights by name.
        batch: the inputs of a step, in the order of the plan.
        peers: how ranks talk to each other.

    Raises:
        IrcError: ``check-failed`` naming the first value that differs: the micro-batch, the stage,
            and which function computed, received, read or added it; where the plan holds its
            functions after each pass, also the first pass and op that are wrong.
    """
    wholes = cut(plan.sliced, wholes)
    PROGRESS.info("the model, eagerly")
    files = (STAGED,) if plan.smaller_from is None else (STAGED, smaller_file(STAGED))
    reference = reference_of(plan, [_cut_as(plan, file) for file in files], wholes, batch)
    PROGRESS.info("a step of the plan")
    run = run_here(plan, wholes, [batch], lr=0.0, peers=peers)
    PROGRESS.info("comparing")
    count, in_halves = 0, _has_halves(plan)
    for pair in _Pairs(plan, run, reference).all():
        count += 1
        if fault := pair.fault(reference.largest, in_halves=in_halves):
            where, because = _passes(plan, reference, wholes, pair)
            raise IrcError(
                "check-failed",
                fault + where,
                because=["everything before it, in the order of the model, is as eager has it",
                         *because],
                help="irc explain PLAN shows the stages; irc schedule show the order",
            )  # fmt: skip
    for part in range(len(plan.parts)) if has_passes(plan) else ():
        tell_share("the update of stage", part + 1, len(plan.parts))
        arguments = {**wholes, **reference.arguments(part, 0)}
        if (update := wrong_pass(plan, part, arguments, AFTER)) is not None:
            raise IrcError(
                "check-failed",
                f"stage {part}: {update.render()}",
                because="what goes between stages, losses and sums are as eager has them",
            )
    return CheckedStep(count)


def _has_halves(plan: PartsPlan) -> bool:
    """Whether functions of a plan round values to half precision, as under autocast."""
    plans = (loaded.plan for part in plan.parts for loaded in part.values())
    return any(buffer.dtype in ("f16", "bf16") for each in plans for buffer in each.buffers)


def _cut_as(plan: PartsPlan, file: str) -> CutModel:
    """Return the forward pass of a micro-batch in the parts of a plan.

    Args:
        plan: the plan.
        file: with that forward pass, its ops with their stages.
    """
    stages = stages_of(_module(plan, file, "says which stage an op is of"))
    if not plan.written.vocabulary:
        return CutModel(stages)
    name = HEAD if file == STAGED else smaller_file(HEAD)
    head = _module(plan, name, "its slices are cut from")
    return CutModel(*slices_of(head, stages, len(plan.slice_parts), plan.written.vocabulary))


def _module(plan: PartsPlan, file: str, purpose: str) -> ModuleOp:
    if file not in plan.texts:
        raise corrupt(f"the plan has no {file}, which {purpose}", str(plan.folder or ""))
    return load(plan.texts[file].decode("utf-8", "replace"))


def _passes(
    plan: PartsPlan, reference: Reference, wholes: Mapping[str, torch.Tensor], pair: Pair
) -> tuple[str, list[str]]:
    """Return which pass computes a wrong value first, and what is known where none does."""
    if pair.by is None or not has_passes(plan):
        return "", []
    number, part = pair.by
    arguments, suffix = (
        {**wholes, **reference.arguments(part, number)},
        plan.wiring.kind("", number),
    )
    kinds = [*(f"{kind}{suffix}" for kind in MICRO_BATCH_KINDS), *AFTER]
    fault = wrong_pass(plan, part, arguments, kinds)
    if fault is not None:
        return f"; {fault.render()}", []
    return "", [
        "after each pass its functions compute what the stage did before them: the fault is in "
        "what runs them, or in the passes that made the stage's step (differentiate, recompute)"
    ]


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _error(own: torch.Tensor, expected: torch.Tensor, floor: float) -> float:
    """Return the largest error, relative to the value's magnitude, or to that of most values.

    Some gradients are zero but for rounding (of a key's bias, of one before a batch norm): nothing
    is told by their digits.
    """
    wide = expected.to(torch.float64)
    if own.shape != expected.shape or not bool(torch.isfinite(own.double()).all()):
        return float("inf")
    if not wide.numel():
        return 0.0
    scale = max(float(wide.abs().max()), floor) or 1.0
    return float((own.to(torch.float64) - wide).abs().max()) / scale


@dataclass
class _Pairs:
    """What is compared, in the order in which a value depends on those before."""

    plan: PartsPlan
    run: Run
    reference: Reference

    def all(self) -> Iterator[Pair]:
        parts, last = range(len(self.plan.parts)), len(self.plan.parts) - 1
        forth = [(part, kind) for kind in "FST" for part in parts]
        back = [(part, kind) for part in reversed(parts) for kind in "BIW"]
        if self.plan.written.vocabulary == 2:
            # What joins the slices reads all that S sends, and is not waited for by T.
            forth.append(forth.pop(last))
        for number in range(self.plan.num_micro_batches):
            for part, kind in (*forth, *back):
                function = self.plan.wiring.function(part, kind, number)
                if function is not None:
                    yield from self._function(number, part, kind, function)
        losses = torch.stack(self.reference.losses)
        weights = torch.tensor(self.plan.weights_of_losses, dtype=losses.dtype)
        yield Pair("the loss", self.run.losses[0], (losses * weights).sum())
        for name, gradient in self.reference.gradients.items():
            stages = ", ".join(map(str, self.plan.holders[name]))
            what = f"the gradient of '{name}' (stage {stages}), added up,"
            yield Pair(what, self.run.whole(f"{ACCUMULATED}{name}"), gradient)
        for name, state in self.reference.states.items():
            stages = ", ".join(map(str, self.plan.holders[name]))
            yield Pair(
                f"buffer '{name}' (stage {stages}) after the step", self.run.whole(name), state
            )

    def _function(self, number: int, part: int, kind: str, function: Function) -> Iterator[Pair]:
        """Yield what a function is sent, reads, makes and adds up."""
        stage = self.plan.schedule.paths[number][part]
        ranks = self.plan.ranks[self.plan.schedule.rank_of[stage]]
        where = f"{kind} of stage {stage} on rank"
        if self.plan.schedule.leaves_out(stage, number):
            return
        routes = self._routes(number)
        for route in routes:
            if route.consumer == part and route.name in function.reads:
                yield from self._crossing(number, route, "got", f"received for {where}")
        for name in function.reads:
            for rank in ranks:
                observed = self.run.seen.get(Sight("read", rank, stage, name, number, kind))
                put = self._put(rank, number, part, name)
                if observed is not None and put is not None:
                    what = f"micro-batch {number}: '{name}', read by {where} {rank},"
                    yield Pair(what, observed, put, is_exact=True)
        for route in routes:
            if route.producer == part and route.register in function.makes:
                yield from self._crossing(number, route, "made", f"computed by {where}")
                for rank in ranks:
                    observed = self.run.seen.get(Sight("sent", rank, stage, route.name, number))
                    put = self.run.seen.get(Sight("made", rank, stage, route.register, number))
                    if observed is not None and put is not None:
                        what = f"micro-batch {number}: '{route.name}', sent after {where} {rank},"
                        yield Pair(what, observed, put, is_exact=True)
        loss, what = self.plan.facts.loss, f"micro-batch {number}: the loss, computed by {where}"
        gives_loss = len(self.plan.parts) - 1, self.plan.loss_kind
        for rank in ranks if (part, kind) == gives_loss else ():
            own = self.run.seen[Sight("made", rank, stage, loss, number)]
            by = number, part
            yield Pair(f"{what} {rank},", own, self.reference.losses[number], by=by)
        yield from self._added(number, part, kind)

    def _routes(self, number: int) -> list[Route]:
        """Return the routes that a micro-batch's values go."""
        skips = self.plan.schedule.skips
        return list(self.plan.wiring.routes_of(skips[number] if skips else ()))

    def _put(self, rank: int, number: int, part: int, name: str) -> torch.Tensor | None:
        """Return what a rank's register should hold when a function reads it."""
        path, seen = self.plan.schedule.paths[number], self.run.seen
        routes = self._routes(number)
        route = next((r for r in routes if (r.name, r.consumer) == (name, part)), None)
        if route is None:
            return seen.get(Sight("made", rank, path[part], name, number))
        got = seen.get(Sight("got", rank, path[part], name, number))
        if got is None:  # it is read where it was made
            got = seen.get(Sight("made", rank, path[route.producer], route.register, number))
        return got

    def _crossing(self, number: int, route: Route, how: str, where: str) -> Iterator[Pair]:
        expected = self.reference.crossing.get((route.name, number))
        if expected is None:
            return
        path = self.plan.schedule.paths[number]
        channel = self.plan.channel(route.name, path[route.producer], path[route.consumer])
        side: Side = channel.before if how == "made" else channel.after
        stage = path[route.producer if how == "made" else route.consumer]
        name = route.register if how == "made" else route.name
        for rank in side.ranks:
            own = self.run.seen.get(Sight(how, rank, stage, name, number))  # type: ignore[arg-type]
            if own is None:
                continue  # it stays where it is
            slices = local_slices(side.placement, side.mesh, side.positions[rank], channel.shape)
            what = f"micro-batch {number}: '{route.name}', {where} {rank},"
            by = (number, route.producer) if how == "made" else None
            yield Pair(what, own, expected[slices], by=by)

    def _added(self, number: int, part: int, kind: str) -> Iterator[Pair]:
        """Yield what a function adds to the gradients of its stage's parameters."""
        stage = self.plan.schedule.paths[number][part]
        ranks = self.plan.ranks[self.plan.schedule.rank_of[stage]]
        held = self.run.parts[ranks[0]]
        for name in held.local:
            each = [Sight("added", rank, stage, name, number, kind) for rank in ranks]
            if each[0] not in self.run.seen:
                continue
            own = [self.run.seen[sight] for sight in each]
            placement, shape = held.placement_and_shape(name)
            parameter = name.removeprefix(ACCUMULATED)
            expected = self.reference.added[part, parameter, number]
            what = f"micro-batch {number}: the gradient of '{parameter}', added by {kind} of "
            what += f"stage {stage},"
            whole = whole_of(own, placement, held.mesh, shape)
            yield Pair(what, whole, expected, by=(number, part))
