"""Which values of a step in micro-batches leave the device's memory between their functions.

What forward saves of a micro-batch waits in its slot until backward reads it, while others are
computed. A register whose values can lie elsewhere meanwhile needs slots for what is written, used
and read alone, not for all that is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan, make_parts
from irc.plan.parts_facts import PartsFacts
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Wiring

LEAST_BYTES = 4096
"""Of a slot: a page. Less is not worth a move."""


def moving_all(wiring: Wiring) -> Wiring:
    """Return the wiring with all registers moved that have the time for it."""
    every = (
        frozenset(name for f in functions.values() for name in (*f.reads, *f.makes))
        for functions in wiring.functions
    )
    return replace(wiring, moved=tuple(every))


def with_offload(
    facts: PartsFacts,
    schedule_text: str,
    parts: tuple[Mapping[str, LoadedPlan], ...],
    where: str,
    least_bytes: int = LEAST_BYTES,
) -> PartsPlan:
    """Return a plan in which each register is moved whose slots then are fewer.

    Args:
        facts: of the plan without offload.
        schedule_text: of the plan.
        parts: of the plan.
        where: ``disk`` or ``host``.
        least_bytes: of a slot that is moved.

    Raises:
        IrcError: ``offload-unsupported`` where no register has fewer slots.
    """
    plan = make_parts(facts, schedule_text, parts)
    tapes = tapes_of(plan.schedule, moving_all(plan.wiring), ahead=facts.ahead)
    moved: list[set[str]] = [set() for _ in parts]
    for place, (before, after) in enumerate(zip(plan.tapes, tapes, strict=True)):
        for stage, part in plan.parts_at(place).items():
            moved[part] |= {
                name
                for name, buffer in plan.registers(part).items()
                if buffer.size_bytes >= least_bytes
                and after.slots.get((stage, name), 0) < before.slots.get((stage, name), 0)
            }
    if not any(moved):
        most = max((count for tape in plan.tapes for count in tape.slots.values()), default=0)
        raise IrcError(
            "offload-unsupported",
            f"nothing would be moved to '{where}': no register needs fewer slots for it",
            because=f"schedule '{plan.schedule.name or 'of a file'}' keeps at most {most} "
            f"micro-batches of a value, and values of less than {least_bytes} bytes stay",
            help="leave out offload, or choose a schedule that keeps more (gpipe), more "
            "micro-batches, or larger ones",
        )
    names = tuple(tuple(sorted(own)) for own in moved)
    return make_parts(replace(facts, offload=where, moved=names), schedule_text, parts)
