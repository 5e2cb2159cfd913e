"""V-Half and V-Min: half and a third of the activations (Qi et al., arXiv:2405.15362).

A micro-batch's F, F, I, I on a rank are a *building block*: their start times, repeated every six
slots. How long activations live, and so how many there are, is read off the block. W goes into the
slots that are left; then what is idle is squeezed out. Filling and draining are ordered anew, as
far as that holds no more activations: F and I stay in the block's order, and W goes where a rank
would wait. A list schedule of the same stages takes its place where it is shorter.
"""

from __future__ import annotations

from collections import deque

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
    others = [_refilled(block, round(2 * most))]
    others += [
        list_schedule(placement, block.num_micro_batches, Times(), limits, rules) for rules in RULES
    ]
    kept = [s for s in others if s is not None and max(peaks(s)) <= most]
    return min((block, *kept), key=lambda schedule: play(schedule).span)


def _refilled(block: Schedule, limit: int) -> Schedule | None:
    """Return F and I in the block's order, W where a rank can do nothing else.

    While the pipe drains, no F wants the memory of W, which so waits for the gaps between I.

    Args:
        block: the schedule.
        limit: the activations of a stage that a rank can hold.

    Returns:
        The schedule, or None where a rank waits for memory for ever.
    """
    rest = [deque(a for a in order if a.kind != "W") for order in block.ranks]
    weights: list[deque[Action]] = [deque() for _ in rest]
    orders: list[list[Action]] = [[] for _ in rest]
    live = [0] * len(rest)
    done: set[Action] = set()
    last = sum(map(len, rest)) // (2 * block.num_micro_batches) - 1
    while any(rest) or any(weights):
        now: list[Action] = []
        for rank, (own, waiting) in enumerate(zip(rest, weights, strict=True)):
            is_ready = bool(own) and _reads(own[0], last) <= done
            if is_ready and not (own[0].kind == "F" and live[rank] == limit):
                now.append(own.popleft())
            elif waiting:
                now.append(waiting.popleft())
            else:
                continue
            orders[rank].append(now[-1])
            live[rank] += {"F": 1, "I": 0, "W": -1}[now[-1].kind]
        if not now:
            return None
        done.update(now)
        for action in now:
            if action.kind == "I":
                weights[block.rank_of[action.stage]].append(action._replace(kind="W"))
    return Schedule(tuple(map(tuple, orders)), block.paths)


def _reads(action: Action, last: int) -> set[Action]:
    """Return what makes the operands of an F or I of a chain of stages."""
    stage, kind, number = action.stage, action.kind, action.micro_batch
    if kind == "F":
        return {Action(stage - 1, "F", number)} if stage else set()
    return {Action(stage, "F", number) if stage == last else Action(stage + 1, "I", number)}
