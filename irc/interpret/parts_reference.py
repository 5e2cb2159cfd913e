"""A step of a plan of several programs computed eagerly: what each of its values should be.

The model's forward pass, cut into the plan's stages, is run micro-batch by micro-batch in order,
with torch's autograd for the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.interpret.flow import run_function
from irc.plan.parts import PartsPlan, smaller_suffix
from irc.runtime.inputs import LR, known_inputs
from irc.training.accumulators import ACCUMULATED
from irc.training.batch_sums import SHARES, SUMS, take_batch_sums
from irc.training.functions import NORM
from irc.training.loss_scale import INVERSE, OVERFLOWS, SCALE
from irc.training.stages import GRADIENT, Stages
from irc.training.vocabulary import Slices

RATE = 0.1
"""A learning rate with which an update is as large as what it is of."""


@dataclass
class Reference:
    """A step computed eagerly.

    Attributes:
        crossing: values and gradients that go between stages, by name and micro-batch.
        added: what a stage adds to the gradient of a parameter, by stage, name and micro-batch.
        losses: of the micro-batches, as they add up to that of the batch.
        gradients: of the batch, by parameter.
        states: buffers that the model moves, after the batch.
        batches: by micro-batch, its inputs.
        shares: by micro-batch and stage, its shares of sums over the batch.
        rates: the shape of the learning rate: of several, how many there are.
    """

    crossing: dict[tuple[str, int], torch.Tensor] = field(
        default_factory=dict[tuple[str, int], torch.Tensor]
    )
    added: dict[tuple[int, str, int], torch.Tensor] = field(
        default_factory=dict[tuple[int, str, int], torch.Tensor]
    )
    losses: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    gradients: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    states: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    batches: list[dict[str, torch.Tensor]] = field(default_factory=list[dict[str, torch.Tensor]])
    shares: list[list[dict[str, torch.Tensor]]] = field(
        default_factory=list[list[dict[str, torch.Tensor]]]
    )
    rates: tuple[int, ...] = ()

    @property
    def largest(self) -> float:
        """The largest magnitude of a gradient."""
        return max((float(g.abs().max()) for g in self.gradients.values()), default=0.0)

    def arguments(self, stage: int, number: int) -> dict[str, torch.Tensor]:
        """Return what a stage's part of a step is given for a micro-batch, but for its weights.

        Sums of gradients are those before it, of a step's first micro-batch.
        """
        squares = [g.double().square().sum() for g in self.gradients.values()]
        crossing = {
            name.removesuffix(smaller_suffix(name)): value
            for (name, at), value in self.crossing.items()
            if at == number
        }
        sums = {f"{ACCUMULATED}{n}": torch.zeros_like(g) for n, g in self.gradients.items()}
        norm = {NORM: torch.stack(squares).sum().to(squares[0].dtype)} if squares else {}
        rate = {LR: torch.full(self.rates, RATE, dtype=torch.float64)}
        scales = {SCALE: torch.ones(()), INVERSE: torch.ones(()), OVERFLOWS: torch.zeros(())}
        shares = self.shares[number][stage]
        return {**self.batches[number], **shares, **crossing, **sums, **norm, **rate, **scales}


@dataclass(frozen=True)
class CutModel:
    """The forward pass of a micro-batch of one size, in the parts of a plan.

    Attributes:
        stages: of it.
        slices: of its output layer, where the vocabulary is on all ranks.
    """

    stages: Stages
    slices: Slices | None = None

    @property
    def modules(self) -> list[ModuleOp]:
        """What runs, one after the other."""
        return [*self.stages.modules, *(self.slices.alone if self.slices else ())]


def reference_of(
    plan: PartsPlan,
    models: Sequence[CutModel],
    wholes: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
) -> Reference:
    """Run a step eagerly.

    Args:
        plan: whose step it is.
        models: of the micro-batches; where some have a sample less, theirs is the second.
        wholes: weights by name, also those that are held in slices; they stay as they are.
        batch: the inputs of a step, in the order of the plan.
    """
    return _Step(plan, models, wholes, batch).run()


class _Step:
    """One step while it is computed."""

    def __init__(
        self,
        plan: PartsPlan,
        models: Sequence[CutModel],
        wholes: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
    ) -> None:
        self.plan = plan
        self.held = {
            name: tensor.detach().clone().requires_grad_(name in plan.moved)
            for name, tensor in wholes.items()
        }
        self.inputs = dict(zip(plan.facts.inputs, batch, strict=False))
        count, cut = plan.num_micro_batches, plan.facts.cut
        larger = count if plan.smaller_from is None else plan.smaller_from
        self.models = [models[0 if number < larger else 1] for number in range(count)]
        self.suffixes = [smaller_suffix(plan.wiring.kind("F", number)) for number in range(count)]
        self.each = [
            {n: t.tensor_split(count)[i] if n in cut else t for n, t in self.inputs.items()}
            for i in range(count)
        ]
        by_stage = [
            self._shares([model.stages.modules[stage] for model in self.models])
            for stage in range(len(models[0].stages.modules))
        ]
        if (slices := models[0].slices) is not None:
            # The loss is behind each slice, with what it divides by.
            tails = self._shares([model.slices.tail for model in self.models if model.slices])
            by_stage += [tails] * (len(slices.alone) + (slices.join is not None))
        self.shares = [list(own) for own in zip(*by_stage, strict=True)]
        # A plan without its recipe has one rate.
        rates = known_inputs(plan).get(LR, torch.zeros(()))
        self.reference = Reference(batches=self.each, shares=self.shares, rates=tuple(rates.shape))

    def run(self) -> Reference:
        modules = self.models[0].modules
        draws = any(name == "seed" for m in modules for _, name, _ in arguments(entry(m)))
        for number, own in enumerate(self.each):
            if "seed" in self.held or draws:
                own["seed"] = torch.tensor(number)
            self._micro_batch(number, own)
        for name in self.plan.moved:
            gradient = self.held[name].grad
            self.reference.gradients[name] = (
                torch.zeros_like(self.held[name]) if gradient is None else gradient
            )
        return self.reference

    def _shares(self, modules: Sequence[ModuleOp]) -> list[dict[str, torch.Tensor]]:
        """Return, by micro-batch, a stage's shares of sums over the batch.

        Args:
            modules: the stage, for each micro-batch; changed.
        """
        parts = dict(zip(modules, self.plan.weights_of_losses, strict=True))
        taken = {m: take_batch_sums(m, self.plan.facts.cut, part) for m, part in parts.items()}
        functions = [taken[module] for module in modules]
        if not functions[0]:
            return [{} for _ in modules]
        own = [
            _call(each[SUMS], {**self.held, **inputs})
            for each, inputs in zip(functions, self.each, strict=True)
        ]
        totals = {
            f"sum.{i}": torch.stack(values).sum(0)
            for i, values in enumerate(zip(*(sums.values() for sums in own), strict=True))
        }
        bindings = {**self.held, **self.inputs, **totals}
        shares = {id(each): _call(each[SHARES], bindings) for each in functions}
        return [shares[id(each)] for each in functions]

    def _micro_batch(self, number: int, own: Mapping[str, torch.Tensor]) -> None:
        """Run one micro-batch through all stages and back."""
        crossing: dict[str, torch.Tensor] = {}
        leaves: dict[tuple[int, str], torch.Tensor] = {}
        loss, slices = None, self.models[number].slices
        shares, suffix = self.shares[number], self.suffixes[number]
        with torch.enable_grad():
            for stage, module in enumerate(self.models[number].modules):
                if self.plan.schedule.leaves_out(stage, number):
                    self._around(stage, number, crossing)
                    continue
                func = entry(module)
                # A stage's own view of a parameter tells its gradient from another stage's.
                for _, name, _ in arguments(func):
                    if name in self.held and self.held[name].requires_grad:
                        leaves[stage, name] = self.held[name].view_as(self.held[name])
                        leaves[stage, name].retain_grad()
                views = {name: leaf for (at, name), leaf in leaves.items() if at == stage}
                bindings = {**self.held, **views, **own, **shares[stage], **crossing}
                values = _call(module, bindings)
                for (role, name), value in zip(results(func), values.values(), strict=True):
                    if role == "boundary":
                        # Each reader's own, so that its gradient is what that reader sends back.
                        sent = value.view_as(value)
                        if sent.requires_grad:
                            sent.retain_grad()
                        crossing[name] = sent
                        self.reference.crossing[f"{name}{suffix}", number] = sent.detach()
                    elif role == "state" and name in self.held:
                        self.held[name] = self.reference.states[name] = value.detach()
                    elif name == self.plan.facts.loss:
                        loss = value
            if slices is not None:
                sums = {f"sums.{i}": crossing[n[0]] for i, n in enumerate(slices.sums)}
                bindings = {**self.held, **own, **shares[-1], **sums}
                loss = _call(slices.tail, bindings)[self.plan.facts.loss]
            assert loss is not None
            self.reference.losses.append(loss.detach())
            weighted = loss * self.plan.weights_of_losses[number]
            weighted.backward()  # pyright: ignore[reportUnknownMemberType]
        for name, value in crossing.items():
            if value.requires_grad and value.grad is not None:
                self.reference.crossing[f"{GRADIENT}{name}{suffix}", number] = value.grad
        if slices is not None and (join := slices.join) is not None:
            # Its readers' gradients in one.
            every = [c.name for c in slices.crossings if _value(c.name) == _value(join.hidden)]
            grads = [crossing[name].grad for name in every if name != join.hidden]
            total = torch.stack([grad for grad in grads if grad is not None]).sum(0)
            self.reference.crossing[f"{GRADIENT}{join.hidden}{suffix}", number] = total
        for (stage, name), leaf in leaves.items():
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            self.reference.added[stage, name, number] = grad.detach()

    def _around(self, stage: int, number: int, crossing: dict[str, torch.Tensor]) -> None:
        """Let what a stage would be given be what it would give."""
        func = entry(self.models[number].modules[stage])
        (taken,) = (crossing[name] for role, name, _ in arguments(func) if role == "boundary")
        (name,) = (name for role, name in results(func) if role == "boundary")
        crossing[name] = taken.view_as(taken)
        if crossing[name].requires_grad:
            crossing[name].retain_grad()
        key = f"{name}{self.suffixes[number]}", number
        self.reference.crossing[key] = crossing[name].detach()


def _value(name: str) -> str:
    """Return which value a crossing is of: ``cut3`` of ``cut3.5``."""
    return name.partition(".")[0]


def _call(module: ModuleOp, bindings: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    func = entry(module)
    ordered = [bindings[name] for _, name, _ in arguments(func)]
    values = run_function(module, ordered)
    return {name: v for (_, name), v in zip(results(func), values, strict=True)}
