"""Faults of a plan of several programs, each planted at a random point of its step.

A fault is a changed plan, or other peers, and the words by which a check is to name it.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

import torch

from irc.interpret.parts_peers import Sight, ThreadPeers, Values
from irc.plan.parts import PartsPlan
from irc.schedule.tapes import Event, Place, play_tapes


@dataclass(frozen=True)
class Fault:
    """A plan that computes something wrong.

    Attributes:
        plan: of several programs.
        words: what a message about it has to say, a regular expression.
        peers: how its ranks talk to each other.
    """

    plan: PartsPlan
    words: str
    peers: type[ThreadPeers] = ThreadPeers


Planter: TypeAlias = Callable[[PartsPlan, Values, Random], Fault | None]
"""Plants a fault, given what a run without it had; None where the step has no place for one."""


def with_tape(plan: PartsPlan, place: int, change: Callable[[Event], Event]) -> PartsPlan:
    """Return the plan with other events on one place."""
    wrong = replace(plan)
    tapes = list(plan.tapes)
    tapes[place] = replace(tapes[place], events=tuple(map(change, tapes[place].events)))
    wrong.__dict__["tapes"] = tuple(tapes)
    return wrong


def another_boundary(plan: PartsPlan, seen: Values, rng: Random) -> Fault | None:
    """A stage sends another of its values, of the same shape."""
    choices: list[tuple[int, str]] = []
    for i, channel in enumerate(plan.facts.channels):
        stage = plan.schedule.paths[0][channel.producer]
        rank = plan.ranks[plan.schedule.rank_of[stage]][0]
        functions = plan.wiring.functions[channel.producer].values()
        makes = next(f.makes for f in functions if channel.register in f.makes)
        own = seen[Sight("made", rank, stage, channel.register, 0)]
        for name in makes:
            other = seen[Sight("made", rank, stage, name, 0)]
            if own.shape == other.shape and own.dtype == other.dtype and not own.equal(other):
                choices.append((i, name))
    if not choices:
        return None
    i, name = rng.choice(choices)
    channels = list(plan.facts.channels)
    sent = channels[i]
    channels[i] = replace(sent, register=name)
    wrong = replace(plan, facts=replace(plan.facts, channels=tuple(channels)))
    stage = plan.schedule.paths[0][sent.producer]
    kind = "[FS]" if not sent.name.startswith("gradient.") else "[FTBIW]"
    words = rf"micro-batch 0: '{sent.name}', computed by {kind} of stage {stage} on rank"
    return Fault(wrong, words)


def reused_slot(plan: PartsPlan, seen: Values, rng: Random) -> Fault | None:
    """A function puts a value where another lies that is read later."""
    choices: list[tuple[int, Place, Place]] = []
    for place, tape in enumerate(plan.tapes):
        defined: dict[Place, int] = {}
        for event in tape.events:
            if event.what != "run":
                continue
            # What is read now was made before all that was made since.
            for where in event.reads.values():
                own = defined.get(where, len(tape.events))
                choices += [
                    (place, where, other)
                    for other, at in defined.items()
                    if other[:2] == where[:2] and other.slot != where.slot and at > own
                ]
            defined |= dict.fromkeys(
                event.makes.values(), len(defined) and 1 + max(defined.values())
            )
    if not choices:
        return None
    at, where, other = rng.choice(choices)

    def moved(places: Mapping[str, Place]) -> dict[str, Place]:
        return {name: where if place == other else place for name, place in places.items()}

    def change(event: Event) -> Event:
        own = where if event.place == other else event.place
        return event._replace(place=own, reads=moved(event.reads), makes=moved(event.makes))

    # A stage on the same rank reads it where it lies, by another name.
    names = [r.name for r in plan.wiring.routes if r.register == where.register]
    named = "|".join([where.register, *names])
    # What is on its way when its slot is written again arrives wrong.
    here = rf"(read by|sent after) \w of stage \d+ on rank {at}, is not what was put there"
    words = rf"'({named})', ({here}|received for)"
    return Fault(with_tape(plan, at, change), words)


def swapped_micro_batches(plan: PartsPlan, seen: Values, rng: Random) -> Fault | None:
    """A stage computes a micro-batch forward where another is due."""
    stage = rng.choice(sorted(plan.schedule.rank_of))
    own = [m for m, path in enumerate(plan.schedule.paths) if stage in path]
    if len(own) < 2:
        return None
    first, second = sorted(rng.sample(own, 2))
    swap = {first: second, second: first}

    def change(event: Event) -> Event:
        action = event.action
        if event.what != "run" or action.kind not in "FS" or action.stage != stage:
            return event
        number = swap.get(action.micro_batch, action.micro_batch)
        return event._replace(action=action._replace(micro_batch=number))

    wrong = with_tape(plan, plan.schedule.rank_of[stage], change)
    # A stage on the same rank may be the first to read what lies in the wrong place.
    path = plan.schedule.paths[first]
    after = path[min(path.index(stage) + 1, len(path) - 1)]
    return Fault(wrong, rf"micro-batch {first}: .* [FST] of stage ({stage}|{after}) on rank")


def another_weight(plan: PartsPlan, seen: Values, rng: Random) -> Fault | None:
    """The forward function of a stage reads a weight of another one on the same rank."""
    path = plan.schedule.paths[0]
    choices: list[tuple[int, str, str]] = []
    for part in range(len(plan.parts)):
        here = plan.schedule.rank_of[path[part]]
        held = {
            b.name: b
            for other in plan.parts_at(here).values()
            if other != part
            for b in _parameters(plan, other)
        }
        choices += [
            (part, own.name, name)
            for own in _parameters(plan, part)
            for name, b in held.items()
            if (b.shape, b.dtype, b.placement) == (own.shape, own.dtype, own.placement)
            and name not in {mine.name for mine in _parameters(plan, part)}
        ]
    if not choices:
        return None
    part, own, other = rng.choice(choices)
    kind = _first(plan, part)
    forward = plan.parts[part][kind]
    buffers = tuple(replace(b, name=other) if b.name == own else b for b in forward.plan.buffers)
    wrong = replace(forward, plan=replace(forward.plan, buffers=buffers))
    parts = tuple({**p, kind: wrong} if i == part else p for i, p in enumerate(plan.parts))
    words = rf"micro-batch 0: .*, computed by {kind} of stage {path[part]} on rank"
    return Fault(replace(plan, parts=parts), words)


def _first(plan: PartsPlan, part: int) -> str:
    """Return the function that a part begins with: S of a slice of the vocabulary."""
    return "S" if part in plan.slice_parts else "F"


def _parameters(plan: PartsPlan, part: int) -> list[Any]:
    forward = plan.parts[part][_first(plan, part)].plan
    buffers = [forward.buffers[index] for index in forward.weights]
    return [b for b in buffers if b.role == "parameter"]


def swapped_messages(plan: PartsPlan, seen: Values, rng: Random) -> Fault | None:
    """A stage takes what it is sent for a micro-batch for that of another."""
    arrivals = [
        (event.route.name, event.action.stage, event.action.micro_batch)
        for tape in plan.tapes
        for event in tape.events
        if event.what == "arrive" and event.route is not None
    ]
    pairs = [
        (name, stage, first, second)
        for name, stage, first in arrivals
        for other, place, second in arrivals
        if (name, stage) == (other, place)
        and first < second
        # Two copies of a model have other senders.
        and plan.schedule.paths[first] == plan.schedule.paths[second]
    ]
    rng.shuffle(pairs)
    for name, stage, first, second in pairs:
        swap = {first: second, second: first}

        def change(
            event: Event, *, name: str = name, stage: int = stage, swap: Any = swap
        ) -> Event:
            number = event.action.micro_batch
            is_end = event.what in ("post", "arrive") and event.action.stage == stage
            if not is_end or event.route is None or event.route.name != name or number not in swap:
                return event
            return event._replace(action=event.action._replace(micro_batch=swap[number]))

        if play_tapes(with_tape(plan, plan.schedule.rank_of[stage], change).tapes):
            continue  # ranks would wait for each other for ever

        class Swapping(ThreadPeers):
            def transfer(
                self,
                event: Event,
                register: torch.Tensor,
                *,
                change: Any = change,
                name: Any = name,
            ) -> Any:
                wrong = change(event)
                run = super().transfer(wrong, register)
                if wrong is event or event.what != "arrive":
                    return run

                def noted() -> None:
                    # What the slot got is noted as what it is for, not as what it is.
                    kept, self._seen = self._seen, {}
                    run()
                    self._seen = kept
                    here, number = event.action.stage, event.action.micro_batch
                    kept[Sight("got", self._rank, here, name, number)] = register.clone()

                return noted

        words = rf"micro-batch {first}: '{name}', received for \w of stage {stage} on rank"
        return Fault(plan, words, Swapping)
    return None


PLANTERS: Mapping[str, Planter] = {
    "another boundary": another_boundary,
    "a slot reused too early": reused_slot,
    "swapped micro-batches": swapped_micro_batches,
    "a weight of another stage": another_weight,
    "a swapped pair of messages": swapped_messages,
}
