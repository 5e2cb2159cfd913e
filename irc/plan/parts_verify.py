"""What a plan of several programs must keep, beyond what each of its functions must.

All of it stands in files that somebody may have edited: names of what is not there, sizes that
differ between the two ends of a channel, a schedule of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.parts import (
    MICRO_BATCH_KINDS,
    PARTS,
    PIPE,
    SCHEDULE,
    SMALLER_KINDS,
    PartsPlan,
    is_register,
    make_parts,
    smaller_suffix,
)
from irc.plan.parts_facts import ChannelFacts, PartsFacts, schedule_digest
from irc.plan.schema import Buffer, Plan, placement_of
from irc.plan.weights import local_slices
from irc.schedule.check import check
from irc.schedule.copies import copies_of, has_whole_copies, swapped_forwards
from irc.schedule.tapes import SMALLER
from irc.training.batch_sums import SHARE, SHARES, SUMS
from irc.training.loss_scale import INVERSE, OVERFLOWS, SCALE

OF_MICRO_BATCHES = (*MICRO_BATCH_KINDS, SUMS, SHARES)
WHOLE_KINDS = (SUMS, SHARES, f"{SUMS}{SMALLER}", f"{SHARES}{SMALLER}")
"""Functions that every rank of a part computes whole."""
KINDS = (*MICRO_BATCH_KINDS, *SMALLER_KINDS, "norm", "step", *WHOLE_KINDS)
"""All functions that a part may have."""
OFFLOAD = ("", "disk", "host")
"""Where values of registers may lie while no function uses them."""
MOST_AHEAD = 1024
"""For so many actions a message may have a slot before it is read: more only takes memory."""
GIVEN = ("lr", "seed", "norm", SCALE, INVERSE, OVERFLOWS)
"""Inputs that the executor of a schedule gives by itself."""


def verify_parts(plan: PartsPlan) -> None:
    """Check everything but the order of the schedule's transfers, which its tapes tell.

    Raises:
        IrcError: ``plan-corrupt``; what :func:`irc.schedule.check.check` raises.
    """
    for fault in _faults(plan):
        raise corrupt(fault, PARTS)


def _faults(plan: PartsPlan) -> Iterator[str]:
    yield from _mesh_faults(plan)
    yield from _schedule_faults(plan)
    yield from _function_faults(plan)
    for crossing in plan.facts.channels:
        yield from _channel_faults(plan, crossing)
    yield from _weight_faults(plan)
    yield from _move_faults(plan)
    if not 0 <= plan.facts.ahead <= MOST_AHEAD:
        yield f"messages have a slot {plan.facts.ahead} actions ahead, and may 0 to {MOST_AHEAD}"


def _move_faults(plan: PartsPlan) -> Iterator[str]:
    """Say where registers are moved that are not there, or to nowhere."""
    where, moved = plan.facts.offload, plan.facts.moved
    if where not in OFFLOAD:
        yield f"offload is {where[:40]!r}, and is one of {', '.join(filter(None, OFFLOAD))}"
    if len(moved) != (len(plan.parts) if where else 0):
        yield f"registers of {len(moved)} parts are moved to '{where[:40]}'"
        return
    for number, names in enumerate(moved):
        if unknown := sorted(set(names) - set(plan.registers(number))):
            yield f"part {number} moves a register {unknown[0][:80]!r} that it has not"


def _mesh_faults(plan: PartsPlan) -> Iterator[str]:
    try:
        mesh = Mesh.parse(plan.facts.mesh)
    except ValueError as error:
        yield f"mesh {plan.facts.mesh[:80]!r}: {error}"
        return
    if str(mesh) != plan.facts.mesh:
        yield f"mesh {plan.facts.mesh[:80]!r} is written '{mesh}'"
    if not plan.parts:
        yield "there is no part"
    if len(plan.facts.fixed) != len(plan.parts):
        yield f"it says of {len(plan.facts.fixed)} of {len(plan.parts)} parts how they were chosen"


def _schedule_faults(plan: PartsPlan) -> Iterator[str]:
    check(plan.written)
    schedule, places = plan.schedule, len(plan.ranks)
    if len(schedule.ranks) != places:
        yield f"{SCHEDULE} is of {len(schedule.ranks)} ranks, the axis '{PIPE}' has {places}"
    if not schedule.num_micro_batches:
        yield f"{SCHEDULE} is of no step that a plan has"
    if bool(schedule.vocabulary) != any(map(plan.is_of_vocabulary, plan.facts.slices.values())):
        yield f"{SCHEDULE} has a vocabulary on all ranks, or {PARTS} slices, and the other has not"
    for number, path in enumerate(schedule.paths):
        if len(path) != len(plan.parts):
            yield f"micro-batch {number} goes through {len(path)} of {len(plan.parts)} parts"
            return
    if not has_whole_copies(schedule):
        yield f"{SCHEDULE} has paths that share stages"
        return
    for number, part in enumerate(plan.parts):
        forward = part["F"].plan if "F" in part else None
        if forward is None or not forward.states():
            continue
        if len(copies_of(schedule)) > 1 or swapped_forwards(schedule, number) is not None:
            yield f"part {number}, whose buffers move, sees micro-batches out of order"


def _function_faults(plan: PartsPlan) -> Iterator[str]:
    facts = plan.facts
    slices = plan.slice_parts
    if not set(facts.cut) < set(facts.inputs):
        yield "an input that is cut into micro-batches is none"
    for number, part in enumerate(plan.parts):
        for kind, loaded in part.items():
            expected = "" if kind in WHOLE_KINDS else str(plan.part_mesh)
            if kind not in KINDS:
                yield f"{kind[:40]!r} is no function of a part"
            if loaded.plan.mesh != expected:
                yield f"{kind} of part {number} is for mesh '{loaded.plan.mesh}', not '{expected}'"
            yield from _input_faults(plan, loaded.plan, f"{kind} of part {number}")
        if (first := "S" if number in slices else "F") not in part:
            yield f"part {number} has no function {first}"
        yield from _register_faults(plan, number)
        yield from _smaller_faults(plan, number)
    gives = plan.loss_kind
    for kind in (gives,) if not facts.samples else (gives, f"{gives}{SMALLER}"):
        loaded = plan.parts[-1].get(kind)
        outputs = {b.name: b for b in _of(loaded.plan, "outputs")} if loaded else {}
        if facts.loss not in outputs or prod(outputs[facts.loss].shape) != 1:
            yield f"the last part gives no loss {facts.loss[:80]!r} of one number"


def _smaller_faults(plan: PartsPlan, number: int) -> Iterator[str]:
    """Say where functions of smaller micro-batches are not those of the larger ones."""
    part, samples = plan.parts[number], plan.facts.samples
    own = {kind.removesuffix(SMALLER) for kind in part if kind.endswith(SMALLER)}
    if samples and (samples < plan.num_micro_batches or not plan.smaller_from):
        yield f"{samples} samples are shared equally, or are too few"
    if own != ({kind for kind in part if kind in OF_MICRO_BATCHES} if samples else set[str]()):
        yield f"part {number} has other functions for smaller micro-batches"
        return
    for kind in own:
        pair = part[kind].plan, part[f"{kind}{SMALLER}"].plan
        states, smaller = ({p.buffers[i].name for i in p.states()} for p in pair)
        if states != smaller:
            yield f"{kind} of part {number} moves other states for smaller micro-batches"
        if kind in (SUMS, SHARES):
            results, of_smaller = (
                [(b.name, b.dtype, b.shape) for b in _of(p, "outputs")] for p in pair
            )
            if results != of_smaller:
                yield f"{kind} of part {number} gives others for smaller micro-batches"


def _input_faults(plan: PartsPlan, function: Plan, where: str) -> Iterator[str]:
    for buffer in _of(function, "inputs"):
        own = is_register(buffer) or buffer.name in (*GIVEN, *plan.facts.inputs)
        if not own and not buffer.name.startswith((SHARE, "sum.")):
            yield f"{where} takes an input {buffer.name[:80]!r} that a step has not"


def _register_faults(plan: PartsPlan, number: int) -> Iterator[str]:
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for kind, loaded in plan.parts[number].items():
        for buffer in (*_of(loaded.plan, "inputs"), *_of(loaded.plan, "outputs")):
            if not is_register(buffer):
                continue
            own = buffer.dtype, buffer.shape
            name = f"{buffer.name}{smaller_suffix(kind)}"
            if known.setdefault(name, own) != own:
                yield f"{kind} of part {number} has another register '{buffer.name}' than others"


def _channel_faults(plan: PartsPlan, crossing: ChannelFacts) -> Iterator[str]:
    name = f"channel {crossing.name[:80]!r}"
    if not all(0 <= part < len(plan.parts) for part in (crossing.producer, crossing.consumer)):
        yield f"{name} joins parts that are not there"
        return
    ends = (
        (crossing.producer, crossing.register, crossing.before, "outputs"),
        (crossing.consumer, crossing.name, crossing.after, "inputs"),
    )
    for number, register, placement, side in ends:
        ways = [
            buffer
            for kind, loaded in plan.parts[number].items()
            for buffer in _of(loaded.plan, side)
            if f"{buffer.name}{smaller_suffix(kind)}" == register and is_register(buffer)
        ]
        if not ways:
            yield f"{name} ends in no register {register[:80]!r} of part {number}"
        for buffer in ways:
            if buffer.placement != placement or buffer.dtype != crossing.dtype:
                yield f"{name} is not what part {number} has in '{register}'"
            elif _local(plan, buffer, crossing.shape) != buffer.shape:
                yield f"{name} has other sizes than '{register}' of part {number}"


def _local(plan: PartsPlan, buffer: Buffer, whole: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the first rank's part; that of another rank is cut from as much."""
    parts = local_slices(placement_of(buffer), plan.part_mesh, 0, whole)
    return tuple(part.stop - part.start for part in parts)


def _weight_faults(plan: PartsPlan) -> Iterator[str]:
    known: dict[str, tuple[object, ...]] = {}
    for number, part in enumerate(plan.parts):
        for kind, loaded in part.items():
            if kind in WHOLE_KINDS:
                continue
            for buffer in _of(loaded.plan, "weights"):
                own = buffer.role, buffer.dtype, buffer.shape, buffer.placement
                if known.setdefault(buffer.name, own) != own:
                    yield f"{kind} of part {number} has another '{buffer.name}' than others"
    yield from _slice_faults(plan, known)
    for name, parts in plan.facts.shared.items():
        if not all(0 <= part < len(plan.parts) for part in parts):
            yield f"{name[:80]!r} is shared by parts that are not there"


def _slice_faults(plan: PartsPlan, known: Mapping[str, tuple[object, ...]]) -> Iterator[str]:
    """Say where slices of a weight are not those of a whole one.

    Those of a vocabulary are one in each of their parts, those of a projection all in one.
    """
    for name, own in plan.facts.slices.items():
        sizes = {len(each) for each in (own.names, own.starts, own.stops)}
        bounds = [(0, *own.stops[:-1]), own.starts]
        parts = plan.slice_parts
        if not plan.is_of_vocabulary(own):
            parts = plan.holders.get(own.names[0] if own.names else "", ())[:1] * len(own.names)
        if sizes != {len(parts)} or bounds[0] != bounds[1] or own.dim < 0 or not parts:
            yield f"slices of {name[:80]!r} are not those of a whole weight"
            return
        for part, each, start, stop in zip(parts, own.names, own.starts, own.stops, strict=True):
            if each not in known or plan.holders[each] != (part,) or name in known:
                yield f"{each[:80]!r} is no weight of part {part} alone"
                continue
            shape = _whole(plan, part, each)
            if len(shape) <= own.dim or shape[own.dim] < stop - start or stop <= start:
                yield f"{each[:80]!r} has other sizes than {start} to {stop}"


def _whole(plan: PartsPlan, number: int, name: str) -> tuple[int, ...]:
    """Return the sizes of a part's weight on all of its ranks together, at most."""
    buffers = (b for loaded in plan.parts[number].values() for b in _of(loaded.plan, "weights"))
    buffer = next(b for b in buffers if b.name == name)
    placement = placement_of(buffer)
    axes = [placement.split_axes(dim) for dim in range(len(buffer.shape))]
    sizes = [prod(map(plan.part_mesh.size, own)) for own in axes]
    return tuple(size * parts for size, parts in zip(buffer.shape, sizes, strict=True))


def _of(plan: Plan, what: str) -> list[Buffer]:
    places = {"inputs": plan.inputs, "outputs": plan.outputs, "weights": plan.weights}[what]
    return [plan.buffers[index] for index in places]


def checked_parts(
    facts: PartsFacts, schedule_text: str, parts: tuple[Mapping[str, LoadedPlan], ...]
) -> PartsPlan:
    """Hold everything against the digests in parts.json.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if schedule_digest(schedule_text) != facts.schedule:
        raise corrupt(f"the content of {SCHEDULE} is not what {PARTS} says")
    if len(parts) != len(facts.parts):
        raise corrupt(f"there are {len(parts)} parts; {PARTS} says {len(facts.parts)}")
    for number, (part, hashes) in enumerate(zip(parts, facts.parts, strict=True)):
        if {kind: loaded.hash for kind, loaded in part.items()} != dict(hashes):
            raise corrupt(f"the functions of part {number} are not what {PARTS} says")
    from irc.plan.parts_verify import verify_parts  # which knows what a plan is

    try:
        verify_parts(PartsPlan(facts, schedule_text, parts))
        return make_parts(facts, schedule_text, parts)
    except IrcError as error:
        if error.code == "plan-corrupt":
            raise
        raise corrupt(f"{error}", SCHEDULE) from error
