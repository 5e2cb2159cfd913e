"""Large values that are updated element by element stay where they lie.

A sum that grows by a term for each block (the gradient of a weight that blocks of rows add to) is a
new value at each step, of which the step before is read for the last time. Where the kernel may
write it in place, both are one memory: half of the bytes, which a search for gaps could not save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from irc.plan.schema import Buffer, Call, Kernel, Step, touched

MIN_BYTES = 1 << 22
"""Smaller values find gaps between others."""


def reuse_dying(
    buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]
) -> tuple[list[Buffer], list[Step]]:
    """Let kernels write large results over operands that nothing reads later.

    Linear in the number of operands.

    Args:
        buffers: not placed yet.
        steps: in order.
        kernels: what calls name; their ``in_place`` says which operands may be which results.

    Returns:
        Buffers, of which some have become aliases, and the steps on them.
    """
    made, changed = list(buffers), list(steps)
    last: dict[int, int] = {}
    for time, step in enumerate(steps):
        for index in touched(step, steps):
            last[_root(made, index)] = time
    views: dict[int, list[int]] = {}
    for index, buffer in enumerate(made):
        if buffer.root is not None:
            views.setdefault(buffer.root, []).append(index)
    for time, step in enumerate(changed):
        if not isinstance(step, Call):
            continue
        call = step
        for source, place in kernels[call.kernel].in_place:
            call = _reused(call, source, place, time, made, last, views) or call
        changed[time] = call
    return made, changed


def _reused(
    call: Call,
    source: int,
    place: int,
    time: int,
    made: list[Buffer],
    last: dict[int, int],
    views: dict[int, list[int]],
) -> Call | None:
    """Make a result the memory of an operand; None where it cannot be."""
    result, root = call.args[place], _root(made, call.args[source])
    old, new = made[root], made[result]
    roots = [_root(made, index) for index in call.args]
    fits = (
        old.storage == new.storage == "arena"
        and (old.shape, old.dtype) == (new.shape, new.dtype)
        and made[call.args[source]].is_contiguous
        and new.size_bytes >= MIN_BYTES
    )
    if not fits or last[root] != time or roots.count(root) != 1 or roots.count(result) != 1:
        return None
    made[result] = replace(new, storage="alias", root=root, offset=0)
    shown = views.pop(result, [])
    for index in shown:
        made[index] = replace(made[index], root=root)
    views.setdefault(root, []).extend((result, *shown))
    last[root] = last[result]
    args = list(call.args)
    args[source] = args[place] = root
    return replace(call, args=tuple(args))


def _root(buffers: Sequence[Buffer], index: int) -> int:
    root = buffers[index].root
    return index if root is None else root
