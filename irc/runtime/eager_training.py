"""Eager training: the captured forward pass under autograd, and torch's own optimiser.

Nothing of it is irc's derivatives or optimiser formulas: it is what a plan of training is held
against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.interpret.flow import run_function
from irc.logs import tell_share
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.training import FORWARD, forward_text, recipe_of_plan, smaller_file
from irc.runtime.code import load_program
from irc.runtime.loss_scale import LossScale, loss_scale_of
from irc.runtime.torch_optimizer import STEP, set_rates, state_name, torch_optimizer
from irc.training.batch_sums import SHARE, SHARES, SUMS, take_batch_sums
from irc.training.entry import loss_index
from irc.training.optimizers import OPTIMIZERS, REMAINDER
from irc.training.recipe import Recipe

TrainingPlan: TypeAlias = LoadedPlan | PartsPlan
Tensors: TypeAlias = Mapping[str, torch.Tensor]

LR = "lr"
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Trained:
    """Some steps of training.

    Attributes:
        losses: of each step.
        tensors: all after the last step, by irc's names.
        skips: whether each step moved nothing; empty where nobody notes it.
        overflows: whether gradients of each step overflowed; empty where nobody notes it.
    """

    losses: torch.Tensor
    tensors: Mapping[str, torch.Tensor]
    skips: Sequence[bool] = ()
    overflows: Sequence[bool] = ()


def trained_names(plan: TrainingPlan) -> Sequence[str]:
    """Return the parameters that a plan moves."""
    if isinstance(plan, PartsPlan):
        return plan.trained
    buffers = [plan.plan.buffers[index] for index in plan.plan.states()]
    return [buffer.name for buffer in buffers if buffer.role == "parameter"]


def train_eagerly(
    loaded: TrainingPlan,
    weights: Tensors,
    batches: Sequence[Tensors],
    dtype: torch.dtype | None = None,
    skips: Sequence[bool] = (),
    boost: float = 1.0,
) -> Trained:
    """Train with PyTorch.

    Args:
        loaded: a plan of training.
        weights: whole, by name, as they were before the first step; they stay as they are.
        batches: per step the inputs by name, among them ``lr``.
        dtype: compute floats in this dtype instead of the model's.
        skips: steps of another run that moved nothing: they move nothing here, and the scale of
            the loss goes on as there. By default only steps whose gradients overflow here do so.
        boost: times the scale of the loss, which is multiplied by it.
    """
    recipe = recipe_of_plan(loaded)
    assert recipe is not None
    trained = trained_names(loaded)
    held = {n: _wide(t, dtype).clone().requires_grad_(n in trained) for n, t in weights.items()}
    updated = {name: _updated(held[name]) for name in trained}
    masters = bool(recipe.precision.masters)
    stored = {name: _stored(weights[name].dtype, masters=masters) for name in trained}
    optimizer = torch_optimizer(recipe, updated, stored)
    scale = loss_scale_of(recipe.precision)
    count = recipe.micro_batches
    is_parts = isinstance(loaded, PartsPlan)
    sizes = loaded.weights_of_losses if is_parts else (1 / count,) * count
    files = {size: FORWARD if size == sizes[0] else smaller_file(FORWARD) for size in sizes}
    models = {
        size: _Model(load_program(loaded, forward_text(loaded, name), name), recipe, dtype, size)
        for size, name in files.items()
    }
    run = [models[size] for size in sizes]
    steps: list[tuple[torch.Tensor, bool, bool]] = []
    kind = "float64" if dtype is torch.float64 else "the model's dtypes"
    for batch, skip in zip(batches, skips or [None] * len(batches), strict=True):
        tell_share(f"eager, in {kind}, step", len(steps) + 1, len(batches))
        steps.append(_step(run, held, updated, optimizer, scale, batch, skip, boost))
    moves = not all(skip for _, skip, _ in steps)
    tensors = {name: value.detach() for name, value in held.items()}
    for name in trained:
        # Where all steps were skipped, torch has made no states.
        kept = OPTIMIZERS[recipe.kind].states(updated[name].shape)
        unmoved = {key: updated[name].new_zeros(shape) for key, shape in kept.items()}
        state = optimizer.state[updated[name]] if moves else {"step": 0.0, **unmoved}
        for key, value in state.items():
            tensors[STEP if key == "step" else state_name(key, name)] = torch.as_tensor(value)
        if recipe.precision.masters and updated[name] is not held[name]:
            lacking = updated[name].detach() - held[name].detach()
            tensors[state_name(REMAINDER, name)] = lacking
    losses, skipped, overflows = zip(*steps, strict=True)
    return Trained(torch.stack(losses), tensors, skipped, overflows)


class _Model:
    """The captured forward pass of a micro-batch.

    Where its loss is divided by a sum over a micro-batch, it is given its share of that of the
    whole batch instead (:mod:`irc.training.normalisers`): the sum over micro-batches, each by its
    part of the samples, is then the loss of the batch.
    """

    def __init__(
        self, module: ModuleOp, recipe: Recipe, dtype: torch.dtype | None, part: float
    ) -> None:
        self.module, self.recipe, self._dtype, self.part = module, recipe, dtype, part
        self._sums = take_batch_sums(module, recipe.split, part)
        func = entry(module)
        self.results = results(func)
        self.loss = loss_index(func, recipe.loss)

    @property
    def divides(self) -> bool:
        """Whether the loss is divided by sums over the batch."""
        return bool(self._sums)

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return all results."""
        return self._call(self.module, tensors)

    def sums(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return what the loss is divided by, of this micro-batch."""
        return self._call(self._sums[SUMS], tensors)

    def shares(self, tensors: Tensors, totals: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the micro-batch's shares of the sums over the batch."""
        named = {f"sum.{i}": total for i, total in enumerate(totals)}
        shares = self._call(self._sums[SHARES], {**tensors, **named})
        return {f"{SHARE}{i}": share for i, share in enumerate(shares)}

    def _call(self, module: ModuleOp, tensors: Tensors) -> list[torch.Tensor]:
        ordered = [tensors[name] for _, name, _ in arguments(entry(module))]
        return run_function(module, ordered, dtype=self._dtype)


def _micro_batches(models: Sequence[_Model], held: Tensors, batch: Tensors) -> list[Tensors]:
    """Return the inputs of each micro-batch, with its shares of sums over the batch."""
    split, count = models[0].recipe.split, len(models)
    each = [
        {n: t.tensor_split(count)[i] if n in split else t for n, t in batch.items()}
        for i in range(count)
    ]
    if not models[0].divides:
        return list(each)
    own = [model.sums({**held, **inputs}) for model, inputs in zip(models, each, strict=True)]
    totals = [torch.stack(parts).sum(0) for parts in zip(*own, strict=True)]
    return [
        {**inputs, **model.shares({**held, **batch}, totals)}
        for model, inputs in zip(models, each, strict=True)
    ]


def scale_of_plan(loaded: TrainingPlan) -> LossScale | None:
    """Return the scale that the loss of a plan begins with; None where it is not scaled."""
    recipe = recipe_of_plan(loaded)
    return None if recipe is None else loss_scale_of(recipe.precision)


def _updated(parameter: torch.Tensor) -> torch.Tensor:
    """Return what an optimiser moves of a parameter: float32 of one in half precision."""
    if parameter.dtype not in HALVES:
        return parameter
    return parameter.detach().float().requires_grad_()


def _stored(dtype: torch.dtype, *, masters: bool) -> torch.dtype:
    """Return the dtype of what is kept of a parameter: of its master where it has one."""
    return torch.float32 if masters and dtype in HALVES else dtype


def _step(
    models: Sequence[_Model],
    held: dict[str, torch.Tensor],
    updated: Tensors,
    optimizer: torch.optim.Optimizer,
    scale: LossScale | None,
    batch: Tensors,
    skip: bool | None,
    boost: float,
) -> tuple[torch.Tensor, bool, bool]:
    """Make a step; return its loss, whether it moved nothing, and whether gradients overflowed."""
    recipe = models[0].recipe
    optimizer.zero_grad()
    for name in updated:
        held[name].grad = None
    factor, inverse = (1.0, 1.0) if scale is None else scale.read()
    factor, inverse = factor * boost, inverse / boost
    losses: list[torch.Tensor] = []
    every = _micro_batches(models, held, batch)
    for number, (model, inputs) in enumerate(zip(models, every, strict=True)):
        tensors = {**held, **inputs}
        if "seed" in held and recipe.micro_batches > 1:
            tensors["seed"] = held["seed"] * recipe.micro_batches + number
        with torch.enable_grad():
            values = model.run(tensors)
            loss = values[model.loss]
            loss = loss * model.part
            (loss * factor).backward()  # type: ignore[no-untyped-call]  # torch's
        losses.append(loss.detach())
        for (role, name), value in zip(model.results, values, strict=True):
            if role == "state" and name in held:
                held[name] = value.detach()
    moved = [p for group in optimizer.param_groups for p in group["params"]]
    set_rates(optimizer, recipe, updated, batch[LR])
    overflows = _take_gradients(held, updated, inverse)
    overflowed = scale is not None and bool(overflows)
    skipped = overflowed or bool(skip)
    if limit := recipe.numbers.get("clip_norm"):
        torch.nn.utils.clip_grad_norm_(moved, limit)
    if not skipped:
        optimizer.step()
    if scale is not None:
        scale.update(overflows if skip is None else torch.tensor(float(skip)))
    with torch.no_grad():
        for name, value in updated.items():
            if value is not held[name]:
                held[name].copy_(value)
                if not recipe.precision.masters:
                    value.copy_(held[name])
    if "seed" in held:
        held["seed"] = held["seed"] + 1
    return torch.stack(losses).sum(), skipped, overflowed


def _take_gradients(held: Tensors, updated: Tensors, inverse: torch.Tensor | float) -> torch.Tensor:
    """Give what is updated its gradient, without its scale; count what is infinite or NaN."""
    overflows = torch.zeros(())
    for name, value in updated.items():
        gradient = held[name].grad
        if gradient is not None:
            overflows += (~gradient.isfinite()).sum()
            value.grad = gradient.to(value.dtype) * inverse
    return overflows


def _wide(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
