"""What a step of one program takes, from a step of a few of its layers planned as one program.

In one program a gradient is summed, and its parameter moved, while backward goes on, and nothing is
added up over micro-batches: functions of a stage (:mod:`irc.programs.blocks`) take longer. Here F
is what comes before backward of a layer begins, and B all after that, the update too.
"""

from __future__ import annotations

from collections.abc import Mapping

from irc.plan.schema import Plan, Start, Wait
from irc.programs.layer_times import COMPUTE, LayerTimes, Places, inner
from irc.programs.short_steps import LayerOps
from irc.search.blocks import Blocks, Piece
from irc.simulate.plan import Contention, lifetimes, predict

FORWARD, BACKWARD = "F", "B"
SAVED = "F-B"


def blocks_of_program(plan: Plan, ops: LayerOps, contention: Contention) -> Blocks:
    """Return what a step of one program takes: a layer of it, and all else, as ``each``.

    So many layers as were planned take and hold what the plan does.

    Args:
        plan: of a step of :data:`irc.programs.short_steps.LEAST` layers or more.
        ops: the layer of each op of the program that was planned, and of each weight.
        contention: what the streams of a rank share.
    """
    places = Places(plan, ops)
    middle = _middle(places, ops)
    awaited = _awaited(places)
    layer, each, bare, idle = (dict[str, float]() for _ in range(4))
    halves, whole = {kind: LayerTimes(places) for kind in (FORWARD, BACKWARD)}, LayerTimes(places)
    prediction, before = predict(plan, contention=contention), 0.0
    total, waits = dict.fromkeys(halves, 0.0), dict.fromkeys(halves, 0.0)
    for place, action, start, end in places.of_actions(prediction):
        is_link = action.stream != COMPUTE
        half = FORWARD if (awaited[place] if is_link else place) < middle else BACKWARD
        if is_link:
            halves[half].add(place, action.stream, end - start)
            whole.add(place, action.stream, end - start)
            continue
        is_wait = action.name.startswith("wait ")
        own = max(0.0, start - before) + (end - start if is_wait else 0.0)
        halves[half].add(place, COMPUTE, end - before, own)
        whole.add(place, COMPUTE, end - before, own)
        total[half] += end - before
        waits[half] += own
        before = end
    # What nothing waits for ends the step.
    total[BACKWARD] += prediction.seconds - before
    waits[BACKWARD] += prediction.seconds - before
    # A link that has nothing to do for forward gathers for backward: both together take as long as
    # compute, or as the link.
    forward = halves[FORWARD]
    layer[FORWARD], bare[FORWARD] = forward.layer_s, forward.layer_idle_s
    layer[BACKWARD] = whole.layer_s - forward.layer_s
    bare[BACKWARD] = whole.layer_idle_s - forward.layer_idle_s
    for half in (FORWARD, BACKWARD):
        each[half] = total[half] - places.count * layer[half]
        idle[half] = waits[half] - places.count * bare[half]
    held, stored = _held(plan, ops)
    saved = _saved(plan, places, middle, awaited)
    arena = {BACKWARD: max(0.0, plan.arena_bytes - places.count * saved)}
    return Blocks(
        each=Piece(each, idle, held - places.count * stored, 0.0, {SAVED: 0.0}, arena),
        first=Piece(),
        layer=Piece(layer, bare, stored, 0.0, {SAVED: saved}),
        last=Piece(),
    )


def _middle(places: Places, ops: LayerOps) -> int:
    """Return the first step of backward of a layer."""
    steps = zip(places.steps, places.layers, strict=True)
    backward = (n for n, (step, own) in enumerate(steps) if own and ops.is_backward(step.id))
    return next(backward, len(places.steps))


def _awaited(places: Places) -> dict[int, int]:
    """Return by step that begins a collective the one that waits for it."""
    begun, awaited = dict[int, int](), dict[int, int]()
    for place, (position, step) in enumerate(places.positions):
        if isinstance(step, Start):
            begun[position] = awaited[place] = place
        elif isinstance(step, Wait):
            awaited[begun[step.start]] = place
    return awaited


def _held(plan: Plan, ops: LayerOps) -> tuple[float, float]:
    """Return the bytes that are held all the time, and those of one layer."""
    layer, total = [0.0] * ops.num_layers, 0.0
    kept = (n for n, own in enumerate(plan.buffers) if own.storage in ("prepared", "output"))
    for index in {*plan.weights, *plan.inputs, *kept}:
        buffer = plan.buffers[index]
        total += buffer.size_bytes
        number = ops.holding_layer(buffer.name) if buffer.name else None
        if number is not None:
            layer[number] += buffer.size_bytes
    return total, inner(layer)


def _saved(plan: Plan, places: Places, middle: int, awaited: Mapping[int, int]) -> float:
    """Return by how many bytes of the arena a layer more makes the peak higher.

    What an inner layer has alive at the peak, or where backward begins if that is more: of more
    layers the peak is there. What is gathered ahead of its readers is of a few layers, of however
    many there are.
    """
    spans = lifetimes(plan, places.steps)
    ahead = {
        root: awaited[first]
        for root, (first, _) in spans.items()
        if first in awaited and awaited[first] >= middle
    }
    changes = [0.0] * (len(places.steps) + 1)
    for root, (first, last) in spans.items():
        changes[first] += plan.buffers[root].size_bytes
        changes[last + 1] -= plan.buffers[root].size_bytes
    alive, peak, most = 0.0, 0, 0.0
    for place, change in enumerate(changes):
        alive += change
        peak, most = (place, alive) if alive > most else (peak, most)

    def of_layer(at: int) -> float:
        layer = [0.0] * places.count
        for root, (first, last) in spans.items():
            if ahead.get(root, first) <= at <= last:
                places.share(layer, first, plan.buffers[root].size_bytes)
        return inner(layer)

    return max(of_layer(peak), of_layer(middle))
