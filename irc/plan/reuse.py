"""Values that are updated element by element stay where they lie.

A sum that grows by a term for each block (the gradient of a weight that blocks of rows add to) is a
new value at each step, of which the step before is read for the last time. Where the kernel may
write it in place, both are one memory: half of the bytes, which a search for gaps could not save.
An all-reduce of what nothing else reads happens where that lies, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from irc.plan.schema import Buffer, Call, Kernel, Start, Step, Wait, touched

MIN_BYTES = 1 << 22
"""Smaller values find gaps between others."""


def reuse_dying(
    buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]
) -> tuple[list[Buffer], list[Step]]:
    """Let kernels write large results, and all-reduces any, over what nothing reads later.

    Linear in the number of operands.

    Args:
        buffers: not placed yet.
        steps: in order.
        kernels: what calls name; their ``in_place`` says which operands may be which results.

    Returns:
        Buffers, of which some have become aliases, and the steps on them.
    """
    memory, changed = _Memory(buffers, steps), list(steps)
    for time, step in enumerate(changed):
        if isinstance(step, Start) and step.op == "comm.all_reduce":
            changed[time] = memory.reduced(step, time)
        elif isinstance(step, Call):
            for source, place in kernels[step.kernel].in_place:
                step = memory.reused(step, source, place, time) or step
            changed[time] = step
    return memory.buffers, changed


class _Memory:
    """Who owns each buffer's memory, and until when it is read; results become aliases."""

    def __init__(self, buffers: Sequence[Buffer], steps: Sequence[Step]) -> None:
        self.buffers = list(buffers)
        self._last: dict[int, int] = {}
        self._last_but_waits: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        self._views: dict[int, list[int]] = {}
        for index, buffer in enumerate(buffers):
            if buffer.root is not None:
                self._views.setdefault(buffer.root, []).append(index)
        for time, step in enumerate(steps):
            roots = {self._root(index) for index in touched(step, steps)}
            self._last |= dict.fromkeys(roots, time)
            if isinstance(step, Wait):
                self._waits[step.start] = time
            else:
                self._last_but_waits |= dict.fromkeys(roots, time)

    def reused(self, call: Call, source: int, place: int, time: int) -> Call | None:
        """Make a kernel's result the memory of an operand; None where it cannot be."""
        result, root = call.args[place], self._root(call.args[source])
        old, new = self.buffers[root], self.buffers[result]
        roots = [self._root(index) for index in call.args]
        fits = (
            old.storage == new.storage == "arena"
            and (old.shape, old.dtype) == (new.shape, new.dtype)
            and self.buffers[call.args[source]].is_contiguous
            and new.size_bytes >= MIN_BYTES
        )
        if not fits or self._last[root] != time:
            return None
        if roots.count(root) != 1 or roots.count(result) != 1:
            return None
        self._merge(root, result)
        args = list(call.args)
        args[source] = args[place] = root
        return replace(call, args=tuple(args))

    def reduced(self, start: Start, time: int) -> Start:
        """Let an all-reduce write over its operand, where that is all that reads it."""
        (source,), (result,) = start.inputs, start.outputs
        root = self._root(source)
        old, new = self.buffers[root], self.buffers[result]
        fits = (
            old.storage == new.storage == "arena"
            and (old.num_elements, old.dtype) == (new.num_elements, new.dtype)
            and self.buffers[source].is_contiguous
        )
        # Its own wait touches the operand, too.
        is_last = self._last[root] == self._waits[time] and self._last_but_waits[root] == time
        if not fits or not is_last:
            return start
        self._merge(root, result)
        return replace(start, inputs=(result,), outputs=(result,))

    def _merge(self, root: int, result: int) -> None:
        """Make a result, and what is a view of it, views of the memory that it is written over."""
        self.buffers[result] = replace(self.buffers[result], storage="alias", root=root, offset=0)
        shown = self._views.pop(result, [])
        for index in shown:
            self.buffers[index] = replace(self.buffers[index], root=root)
        self._views.setdefault(root, []).extend((result, *shown))
        self._last[root] = self._last[result]
        self._last_but_waits[root] = self._last_but_waits[result]

    def _root(self, index: int) -> int:
        root = self.buffers[index].root
        return index if root is None else root
