"""Training by a plan, held against eager training: each tensor by what rounding does to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite

import torch

from irc.plan.training import recipe_of_plan
from irc.runtime.compare import HALF_SLACK, TOLERANCE, Comparison
from irc.runtime.eager_training import (
    Tensors,
    Trained,
    TrainingPlan,
    train_eagerly,
    trained_names,
)
from irc.runtime.torch_optimizer import state_name
from irc.training.optimizers import REMAINDER

LOSSES = "the losses"
SMALL = 1e-2
"""Of the largest mean magnitude among tensors of one kind: what is smaller is judged by that."""
NUDGES = 2
"""How often eager trains again from weights beside those of a plan that is beyond a limit."""
NEAR = 16.0
"""Ranks add up in half precision what eager adds up in float32: overflow begins so much earlier."""


def compare_training(
    loaded: TrainingPlan,
    weights: Tensors,
    batches: Sequence[Tensors],
    outcome: Trained,
) -> Comparison:
    """Hold losses, parameters and states after some steps against eager training.

    Each tensor has its own limit, as :class:`irc.runtime.compare.Comparison` has it; the one that
    is nearest to its limit, or furthest beyond it, is reported. Errors are of the whole tensor,
    root mean square over root mean square: where a gradient is zero but for rounding, Adam makes a
    full step of its sign, so single elements differ between any two runs. A tensor far below the
    others of its kind (moments of a key's bias) is judged by theirs. A parameter and its remainder
    are judged as their sum, under the name of the remainder, as closely as parameters are.

    In float64 gradients do not overflow: there the steps are skipped that were skipped in what is
    compared. A plan may skip fewer than eager, as its fused kernels have wider values; one that
    skips a step whose gradients are far from overflow in eager is wrong.

    Eager's own rounding is one sample of what rounding does: one element of an embedding that
    steps the wrong way moves all tensors after it. Where a plan is beyond a limit, eager trains
    again from parameters that are moved by a unit in the last place, and the largest of its errors
    is what rounding does.
    """
    trained = train_eagerly(loaded, weights, batches)
    like = whole = train_eagerly(loaded, weights, batches, torch.float64, trained.skips)
    if outcome.skips and tuple(outcome.skips) != tuple(trained.skips):
        if (step := _needless(loaded, weights, batches, outcome.skips)) is not None:
            return Comparison(float("inf"), float("inf"), 0.0, f"step {step}, which is skipped")
        whole = train_eagerly(loaded, weights, batches, torch.float64, outcome.skips)
    kept = [n for n in trained_names(loaded) if state_name(REMAINDER, n) in outcome.tensors]
    eager, there, exact, own = (_all(each, kept) for each in (trained, like, whole, outcome))
    names, trained_here = sorted(own.keys() & exact.keys()), frozenset(trained_names(loaded))
    kind = {n: _kind(n, trained_here) for n in exact}
    floors = _floors(exact, weights, kind)
    roundings = {n: _apart(eager[n], there[n], floors[kind[n]]) for n in names}
    recipe = recipe_of_plan(loaded)
    if recipe is not None and recipe.precision.computes:
        # A small tensor may be rounded well by chance.
        alike = {each: [n for n in names if kind[n] == each] for each in {*kind.values()}}
        roundings = {n: max(roundings[o] for o in alike[kind[n]]) for n in names}
    other = eager if whole is like else exact
    largest = max((_max_abs(own[n], other[n]) for n in names), default=0.0)
    errors = {n: _apart(own[n], exact[n], floors[kind[n]]) for n in names}
    worst = _nearest(largest, errors, roundings)
    for seed in range(NUDGES):
        if worst.ok or not isfinite(worst.relative):
            break
        nudged = train_eagerly(loaded, _nudged(weights, trained_here, seed), batches)
        if nudged.skips == trained.skips:
            moved = _all(nudged, kept)
            more = {n: _apart(moved[n], there[n], floors[kind[n]]) for n in names}
            # What is no number is no rounding.
            roundings = {
                n: max(r, more[n]) if isfinite(more[n]) else r for n, r in roundings.items()
            }
            worst = _nearest(largest, errors, roundings)
    return worst


def _nearest(
    largest: float, errors: Mapping[str, float], roundings: Mapping[str, float]
) -> Comparison:
    """Return the comparison of the tensor that is nearest to its limit, or furthest beyond it."""
    worst, most = Comparison(largest, 0.0, 0.0), 0.0
    for name, error in errors.items():
        share = error / max(TOLERANCE, HALF_SLACK * roundings[name])
        if share >= most:
            worst, most = Comparison(largest, error, roundings[name], name), share
    return worst


def _nudged(weights: Tensors, names: Collection[str], seed: int) -> dict[str, torch.Tensor]:
    """Return weights of which each number is the next one in its dtype, above or below by chance.

    Those in half precision stay: what lies between two of theirs is no rounding of a step's. So do
    zeros, which are those in any order of sums; and what is not trained, as a mask, or a number at
    the end of where a function is defined.

    Args:
        weights: by name.
        names: of those that are moved.
        seed: of the choices.
    """
    generator = torch.Generator().manual_seed(seed)
    nudged = dict(weights)
    for name in names:
        value = weights[name]
        if value.dtype in (torch.float32, torch.float64):
            up = torch.randint(0, 2, value.shape, generator=generator).bool()
            ends = torch.where(up, torch.inf, -torch.inf).to(value.dtype)
            nearest = torch.nextafter(value.detach(), ends)
            nudged[name] = torch.where(value == 0, value, nearest)
    return nudged


def _needless(
    loaded: TrainingPlan, weights: Tensors, batches: Sequence[Tensors], skips: Sequence[bool]
) -> int | None:
    """Return the first step, from 1, that was skipped though eager is far from overflow there."""
    near = train_eagerly(loaded, weights, batches, skips=skips, boost=NEAR).overflows
    pairs = enumerate(zip(skips, near, strict=True), 1)
    return next((number for number, (skip, overflows) in pairs if skip and not overflows), None)


def _all(trained: Trained, kept: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return what is compared: parameters that remainders are kept of are the sum of both, too."""
    tensors = {**trained.tensors, LOSSES: trained.losses}
    for name in kept:
        remainder, value = state_name(REMAINDER, name), tensors[name].to(torch.float64)
        tensors[remainder] = value + tensors[remainder] if remainder in tensors else value
    return tensors


def _kind(name: str, trained: Collection[str]) -> str:
    """Return what tensors a tensor is compared with: moments of one sort, parameters, losses."""
    head, _, rest = name.partition(".")
    moment, _, rest = rest.partition(".")
    if name == LOSSES or head != "optimizer":
        return name if name == LOSSES else "parameters" if name in trained else "buffers"
    return "parameters" if moment == REMAINDER else moment


def _floors(exact: Tensors, weights: Tensors, kind: Mapping[str, str]) -> dict[str, float]:
    """Return what is small, for each kind: by those of its tensors that have changed."""
    floors = dict.fromkeys(kind.values(), 0.0)
    for name, value in exact.items():
        before = weights.get(name)
        if before is not None and torch.equal(before.to(value.dtype), value):
            continue  # a mask, or a table of positions
        if value.numel() and value.is_floating_point():
            most = SMALL * _rms(value.nan_to_num(0.0))
            floors[kind[name]] = max(floors[kind[name]], most)
    return floors


def _apart(a: torch.Tensor, b: torch.Tensor, floor: float) -> float:
    if a.shape != b.shape or not bool(torch.isfinite(a.to(torch.float64)).all()):
        return float("inf")
    if a.numel() == 0:
        return 0.0
    scale = max(_rms(b), floor) or 1.0
    return _rms(a.to(torch.float64) - b.to(torch.float64)) / scale


def _rms(value: torch.Tensor) -> float:
    return float(value.to(torch.float64).square().mean().sqrt())


def _max_abs(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    return float((a.to(torch.float64) - b.to(torch.float64)).abs().max())
