"""Which steps of a plan depend on weights alone: they are run once, not at every call.

Packing a weight for a kernel, folding a batch norm into a convolution, joining three projections,
a causal mask: none of them changes from call to call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irc.kernels.weights.fixed import CONSTANT_ROLES, IMPURE
from irc.plan.schema import Buffer, Call, Copy, Kernel, Library, Start, Step, Wait, touched


@dataclass(frozen=True)
class Hoisted:
    """A plan's steps, those on weights alone apart.

    Attributes:
        buffers: what later steps read of the prepared ones has storage ``prepared``.
        prepared: to be run once.
        steps: to be run at every call.
    """

    buffers: list[Buffer]
    prepared: list[Step]
    steps: list[Step]


def hoist(buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]) -> Hoisted:
    """Part the steps that read nothing but weights which no step writes.

    The order within each part is kept; waits count within their part. Linear in the number of
    operands.

    Args:
        buffers: not placed yet.
        steps: in order.
        kernels: what calls name.
    """
    written = _written(buffers, steps, kernels)
    fixed = {
        index
        for index, buffer in enumerate(buffers)
        if buffer.storage == "weight" and buffer.role in CONSTANT_ROLES and index not in written
    }
    made: set[int] = set()
    moved: set[int] = set()
    for position, step in enumerate(steps):
        inputs, outputs = _reads_and_writes(step, kernels)
        if not outputs or any(buffers[i].storage != "arena" for i in outputs):
            continue
        if all(_root(buffers, i) in fixed for i in inputs):
            fixed.update(outputs)
            made.update(outputs)
            moved.add(position)
    staying = [i for i in range(len(steps)) if i not in moved]
    position = {old: new for new, old in enumerate(staying)}
    rest = [_renumbered(steps[i], position) for i in staying]
    kept = made & {_root(buffers, i) for step in rest for i in touched(step, rest)}
    placed = [
        replace(buffer, storage="prepared") if i in kept else buffer
        for i, buffer in enumerate(buffers)
    ]
    return Hoisted(placed, [steps[i] for i in sorted(moved)], rest)


def _written(
    buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]
) -> set[int]:
    """The buffers that a step changes after they have been made: states, and caches."""
    found: set[int] = set()
    for step in steps:
        if isinstance(step, Copy):
            found.add(_root(buffers, step.target))
        elif isinstance(step, Library | Start):
            found.update(_root(buffers, i) for i in step.outputs)
        elif isinstance(step, Call):
            found.update(step.args[kernels[step.kernel].num_inputs :])
    return found


def _reads_and_writes(step: Step, kernels: Sequence[Kernel]) -> tuple[Sequence[int], Sequence[int]]:
    """Return what a step reads and makes; it makes nothing where it is no function of that."""
    match step:
        case Call():
            count = kernels[step.kernel].num_inputs
            return step.args[:count], step.args[count:]
        case Library() if step.op not in IMPURE and not set(step.outputs) & set(step.inputs):
            return step.inputs, step.outputs
        case _:
            return (), ()


def _renumbered(step: Step, position: dict[int, int]) -> Step:
    return replace(step, start=position[step.start]) if isinstance(step, Wait) else step


def _root(buffers: Sequence[Buffer], index: int) -> int:
    root = buffers[index].root
    return index if root is None else root
