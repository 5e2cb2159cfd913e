"""Which stage, micro-batch and value of a plan of several programs is the first to be wrong.

The model's forward pass, cut into the same stages, is run eagerly, micro-batch by micro-batch, with
torch's autograd for the gradients: what goes from stage to stage, the loss, the sums of gradients
and the parameters after a step. Against these is held what the plan's own functions make, send and
receive, in registers, in the order of the schedule, all ranks in one process.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from irc.dialects.builder import arguments, entry, results
from irc.dialects.text import load
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.parts import Run, run_here
from irc.interpret.parts_peers import ThreadPeers
from irc.plan.parts import PartsPlan
from irc.plan.weights import local_slices
from irc.training.accumulators import ACCUMULATED
from irc.training.batch_sums import SHARES, SUMS, take_batch_sums
from irc.training.stages import Stages, stages_of

CLOSE = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Error relative to a value's magnitude that the order of sums explains."""
HALF = 5e-2
"""The same where values are rounded to half precision on their way."""
SMALL = 1e-6


@dataclass
class Reference:
    """A step computed eagerly.

    Attributes:
        crossing: values and gradients that go between stages, by name and micro-batch.
        losses: of the micro-batches, as they add up to that of the batch.
        gradients: of the batch, by parameter.
    """

    crossing: dict[tuple[str, int], torch.Tensor]
    losses: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]

    @property
    def floor(self) -> float:
        """A magnitude below which a gradient is rounding alone."""
        return SMALL * max((float(g.abs().max()) for g in self.gradients.values()), default=0.0)


def check_parts(
    plan: PartsPlan,
    staged: str,
    wholes: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
    *,
    peers: type[ThreadPeers] = ThreadPeers,
) -> str:
    """Hold a step of a plan against the model run eagerly, and return what was compared.

    Args:
        plan: for at most 64 ranks.
        staged: the forward pass of a micro-batch, its ops with their stages.
        wholes: weights by name.
        batch: the inputs of a step, in the order of the plan.
        peers: how ranks talk to each other.

    Raises:
        IrcError: ``check-failed`` naming the first value that differs: the micro-batch, the stage,
            and whether it was computed, sent or received.
    """
    reference = _reference(plan, stages_of(load(staged)), wholes, batch)
    run = run_here(plan, wholes, [batch], lr=0.0, peers=peers)
    count = 0
    for what, own, expected in _pairs(plan, run, reference):
        count += 1
        error = _error(own, expected, reference.floor)
        if error > _limit(expected.dtype):
            raise IrcError(
                "check-failed",
                f"{what} differs from eager by {error:.1e}",
                because="everything before it, in the order of the model, is as eager has it",
                help="irc explain PLAN shows the stages; irc schedule show the order",
            )
    return f"{count} values and gradients between stages, losses and sums are as eager has them"


def _limit(dtype: torch.dtype) -> float:
    return CLOSE.get(dtype, HALF)


def _error(own: torch.Tensor, expected: torch.Tensor, floor: float) -> float:
    """Return the largest error, relative to the value's magnitude, or to that of most values.

    Some gradients are zero but for rounding (of a key's bias): nothing is told by their digits.
    """
    wide = expected.to(torch.float64)
    if own.shape != expected.shape or not bool(torch.isfinite(own.double()).all()):
        return float("inf")
    if not wide.numel():
        return 0.0
    scale = max(float(wide.abs().max()), floor) or 1.0
    return float((own.to(torch.float64) - wide).abs().max()) / scale


def _reference(
    plan: PartsPlan,
    stages: Stages,
    wholes: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
) -> Reference:
    count, cut = plan.num_micro_batches, plan.facts.cut
    held = {
        name: tensor.detach().clone().requires_grad_(name in plan.trained)
        for name, tensor in wholes.items()
    }
    inputs = dict(zip(plan.facts.inputs, batch, strict=False))
    each = [{n: t.chunk(count)[i] if n in cut else t for n, t in inputs.items()}
            for i in range(count)]  # fmt: skip
    shares = [_shares(module, cut, count, each, inputs, held) for module in stages.modules]
    found = Reference({}, [], {})
    for number, own in enumerate(each):
        if "seed" in held or any(_draws(module) for module in stages.modules):
            own["seed"] = torch.tensor(number)
        _micro_batch(plan, stages, {**held, **own}, shares, number, found, held)
    for name in plan.trained:
        gradient = held[name].grad
        found.gradients[name] = torch.zeros_like(held[name]) if gradient is None else gradient
    return found


def _draws(module: object) -> bool:
    return any(name == "seed" for _, name, _ in arguments(entry(module)))  # type: ignore[arg-type]


def _shares(module, cut, count, each, inputs, held) -> dict[str, torch.Tensor]:  # type: ignore[no-untyped-def]
    """Return a stage's shares of sums over the batch."""
    functions = take_batch_sums(module, cut, count)
    if not functions:
        return {}
    own = [_call(functions[SUMS], {**held, **given}) for given in each]
    totals = {
        f"sum.{i}": torch.stack(values).sum(0)
        for i, values in enumerate(zip(*(found.values() for found in own), strict=True))
    }
    return _call(functions[SHARES], {**held, **inputs, **totals})


def _call(module, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[no-untyped-def]
    func = entry(module)
    ordered = [given[name] for _, name, _ in arguments(func)]
    values = run_function(module, ordered)
    return {name: v for (_, name), v in zip(results(func), values, strict=True)}


def _micro_batch(  # type: ignore[no-untyped-def]
    plan, stages: Stages, given, shares, number: int, found: Reference, held
) -> None:
    """Run one micro-batch through all stages and back."""
    crossing: dict[str, torch.Tensor] = {}
    loss = None
    with torch.enable_grad():
        for module, own in zip(stages.modules, shares, strict=True):
            func = entry(module)
            values = _call(module, {**given, **own, **crossing})
            for (role, name), value in zip(results(func), values.values(), strict=True):
                if role == "boundary":
                    # Each reader's own, so that its gradient is what that reader sends back.
                    sent = value.view_as(value)
                    if sent.requires_grad:
                        sent.retain_grad()
                    crossing[name] = sent
                    found.crossing[name, number] = sent.detach()
                elif role == "state" and name in held:
                    held[name] = value.detach()
                elif name == plan.facts.loss:
                    loss = value
        assert loss is not None
        found.losses.append(loss.detach())
        (loss / plan.num_micro_batches).backward()
    for name, value in crossing.items():
        if value.requires_grad and value.grad is not None:
            found.crossing[f"gradient.{name}", number] = value.grad


def _pairs(
    plan: PartsPlan, run: Run, reference: Reference
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield what is compared, in the order in which a value depends on those before."""
    forward = [c for c in plan.facts.channels if not c.name.startswith("gradient.")]
    back = [c for c in plan.facts.channels if c.name.startswith("gradient.")]
    forward.sort(key=lambda c: (c.producer, c.consumer))
    back.sort(key=lambda c: (-c.producer, -c.consumer))
    for number in range(plan.num_micro_batches):
        path = plan.schedule.paths[number]
        for crossing in (*forward, *back):
            expected = reference.crossing.get((crossing.name, number))
            if expected is None:
                continue
            ends = path[crossing.producer], path[crossing.consumer]
            what = f"micro-batch {number}: '{crossing.name}'"
            channel = plan.channel(crossing.name, *ends)
            sides = (
                ("sent", ends[0], crossing.register, channel.before, "computed by"),
                ("got", ends[1], crossing.name, channel.after, "received by"),
            )
            for way, stage, register, side, how in sides:
                for rank in side.ranks:
                    own = run.seen.get((way, rank, f"{stage}:{register}", number))
                    if own is None:
                        continue  # it stays where it is
                    where = local_slices(
                        side.placement, side.mesh, side.positions[rank], channel.shape
                    )
                    yield f"{what}, {how} stage {stage} on rank {rank},", own, expected[where]
    loss = torch.stack(reference.losses).mean()
    yield "the loss", run.losses[0], loss
    for name, gradient in reference.gradients.items():
        stages = ", ".join(map(str, plan.holders[name]))
        total = run.whole(f"{ACCUMULATED}{name}")
        yield f"the gradient of '{name}' (stage {stages}), added up,", total, gradient
