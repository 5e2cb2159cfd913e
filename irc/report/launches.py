"""How many collectives a layer of a step has in each direction: forward, backward, update."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from irc.plan.schema import Call, Copy, Library, Plan, Start, Step, Wait
from irc.simulate.plan import steps
from irc.trace.form import phase_of_id

LAYER = re.compile(r"^(.*?\.)?\d+(?=\.)")
"""Of a parameter's name, what says in which layer it is."""
UNPACKS = re.compile(r"(^|/)bucket\d+\.unpack/")
ORDER = ("forward", "backward", "update", "returned")


@dataclass(frozen=True)
class Launches:
    """The collectives of one kind that one direction reads.

    Attributes:
        op: the collective, such as ``all_gather``.
        axis: of the mesh.
        direction: which part of the step reads what they give first: forward, backward or update;
            ``returned`` where nothing does.
        num_tensors: collectives, those of a bucket each by itself.
        num_launches: calls of the library: a bucket is one.
    """

    op: str
    axis: str
    direction: str
    num_tensors: int
    num_launches: int


def launches(plan: Plan) -> list[Launches]:
    """Return how many collectives a call has, in the order of a step."""
    order = steps(plan)
    alike: dict[tuple[str, str, str], list[Start]] = {}
    readers = _first_readers(plan, [step for _, step in order])
    for _, step in order:
        if isinstance(step, Start):
            reader = readers.get(step.id)
            # Of a boxing over several axes: what reads what the last collective gives.
            while reader in readers:
                reader = readers[reader]
            direction = "returned" if reader is None else phase_of_id(reader)
            key = direction, step.op.removeprefix("comm."), str(step.attrs["axis"])
            alike.setdefault(key, []).append(step)
    rows = [
        Launches(op, axis, direction, len(own), len({s.attrs.get("bucket", s.id) for s in own}))
        for (direction, op, axis), own in alike.items()
    ]
    return sorted(rows, key=lambda row: (ORDER.index(row.direction), row.op, row.axis))


def num_layers(plan: Plan) -> int:
    """Return how many layers a model has by the names of its parameters; 0 where none is numbered.

    The most that are numbered alike count: ``layers.0`` and ``layers.1`` are two.
    """
    numbered: dict[str, set[str]] = {}
    for index in plan.weights:
        if plan.buffers[index].role == "parameter" and (
            match := LAYER.match(plan.buffers[index].name)
        ):
            numbered.setdefault(match[1] or "", set()).add(match[0])
    return max(map(len, numbered.values()), default=0)


def _first_readers(plan: Plan, order: Sequence[Step]) -> dict[str, str]:
    """Return, by the id of a collective, the id of what reads first what it gives.

    What unpacks a bucket is no reader, but what reads its parts.
    """
    held: dict[int, str] = {}
    readers: dict[str, str] = {}
    for step in order:
        roots = map(plan.root, _read(plan, step))
        names = [held.pop(root) for root in list(roots) if root in held]
        if isinstance(step, Call) and UNPACKS.search(step.id):
            for out in step.args[plan.kernels[step.kernel].num_inputs :]:
                held |= {plan.root(out): name for name in names}
        else:
            for name in names:
                readers.setdefault(name, step.id)
        if isinstance(step, Start):
            held[plan.root(step.outputs[0])] = step.id
    return readers


def _read(plan: Plan, step: Step) -> Iterator[int]:
    match step:
        case Call():
            yield from step.args[: plan.kernels[step.kernel].num_inputs]
        case Library() | Start():
            yield from step.inputs
        case Copy():
            yield step.source
        case Wait():
            pass
