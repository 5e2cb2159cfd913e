"""V-Half and V-Min: half and a third of the activations (Qi et al., arXiv:2405.15362).

A micro-batch's F, F, I, I on a rank are a *building block*: their start times, repeated every six
slots. How long activations live, and so how many there are, is read off the block. W goes into the
slots that are left; then what is idle is squeezed out. Filling and draining are ordered anew, as
far as that holds no more activations: a list schedule of the same stages takes the block's place
where it is shorter.
"""

from __future__ import annotations

from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.greedy import RULES, list_schedule
from irc.schedule.named.stages import two_stages_each, v_stages
from irc.schedule.timeline import Times, peaks, play

PERIOD = 6
"""Slots of a micro-batch on a rank: F, I and W of two stages."""


def v_half(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Hold ``p / 2 + 1`` activations (half a one more where p is odd), half of 1F1B's bubble."""
    require_sizes("v-half", ranks, micro_batches)
    two_stages_each("v-half", chunks)
    return _reordered(half_block(ranks, micro_batches))


def half_block(ranks: int, micro_batches: int) -> Schedule:
    """Return V-Half's block, repeated and squeezed."""
    odd = 0 if ranks % 2 else 3
    starts = [
        (2 * i, 3 * ranks - i - 2, 3 * ranks + odd + 2 * i - 1, 6 * ranks + odd - i - 2)
        for i in range(ranks)
    ]
    return _repeated(starts, micro_batches)


def v_min(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Hold ``p / 3 + 1`` activations or less, with two thirds of 1F1B's bubble."""
    require_sizes("v-min", ranks, micro_batches)
    two_stages_each("v-min", chunks)
    return _reordered(min_block(ranks, micro_batches))


def min_block(ranks: int, micro_batches: int) -> Schedule:
    """Return V-Min's block, repeated and squeezed."""
    odd = 0 if ranks % 3 else 2
    starts = [
        (i, 2 * ranks - i - 1, 2 * ranks + odd + i, 4 * ranks + odd - i - 1) for i in range(ranks)
    ]
    return _repeated(starts, micro_batches)


def _repeated(starts: list[tuple[int, int, int, int]], micro_batches: int) -> Schedule:
    ranks = len(starts)
    orders: list[tuple[Action, ...]] = []
    for rank, (first, second, back, last) in enumerate(starts):
        there, here = v_stages(rank, ranks)
        block = ((first, there, "F"), (second, here, "F"), (back, here, "I"), (last, there, "I"))
        timed = sorted(
            (start + PERIOD * m, Action(stage, kind, m))
            for start, stage, kind in block
            for m in range(micro_batches)
        )
        orders.append(_filled(timed))
    return Schedule(tuple(orders), straight(2 * ranks, micro_batches))


def _filled(timed: list[tuple[int, Action]]) -> tuple[Action, ...]:
    """Return actions in the order of their slots, W in the free ones."""
    order: list[Action] = []
    waiting: list[Action] = []
    slot = 0
    for start, action in timed:
        room = start - slot
        order += [*waiting[:room], action]
        del waiting[:room]
        slot = start + 1
        if action.kind == "I":
            waiting.append(action._replace(kind="W"))
    return (*order, *waiting)


def _reordered(block: Schedule) -> Schedule:
    """Return the shortest schedule of the same stages that holds no more activations."""
    ranks = len(block.ranks)
    most = max(peaks(block))
    limits = [most * 2] * ranks
    placement = [v_stages(rank, ranks) for rank in range(ranks)]
    best, least = block, play(block).span
    for rules in RULES:
        other = list_schedule(placement, block.num_micro_batches, Times(), limits, rules)
        if other is not None and max(peaks(other)) <= most and (span := play(other).span) < least:
            best, least = other, span
    return best
