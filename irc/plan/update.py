"""Which kernels may write a state where it lies, instead of into memory that is copied back.

An optimizer reads each parameter and moment once and gives new ones, element by element. Where
nothing reads the old value later, the kernel's result can be the state's own memory: a third of the
traffic, and no copy at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from irc.dialects.along import KernelAlongOp
from irc.dialects.task import KernelOp, LoadOp, StoreOp
from irc.plan.schema import Buffer, Call, Copy, Kernel, Step, Wait, touched


def element_pairs(kernel: KernelOp) -> tuple[tuple[int, int], ...]:
    """Return pairs of an input and an output (positions) that may be one memory.

    Each element of such an input is read by the task that writes it, and before: its loads step as
    the store does, and not along reduced dims, which may be walked again after a store. Stores
    stand behind all loads. A kernel that looks up indices may have to refuse one, and a state must
    then be as it was: of those only a scatter, which looks at all indices first, and copies nothing
    where what it writes into is what it reads.
    """
    if isinstance(along := kernel.body.block.first_op, KernelAlongOp):
        return _scattered_pairs(along)
    reduces = kernel.num_parallel != len(kernel.space_extents)
    loads: dict[int, list[LoadOp]] = {}
    stores: dict[int, list[StoreOp]] = {}
    for op in kernel.body.ops:
        if isinstance(op, LoadOp):
            loads.setdefault(kernel.position(op.inputs[0]), []).append(op)
        elif isinstance(op, StoreOp):
            stores.setdefault(kernel.position(op.inputs[1]), []).append(op)
    if any(len(load.inputs) > 1 for reading in loads.values() for load in reading):
        return ()
    pairs = tuple(
        (source, target)
        for source, reading in loads.items()
        for target, (store, *more) in stores.items()
        if not more
        and kernel.args[source].type == kernel.args[target].type
        and all(_same_element(load, store) for load in reading)
        and not (reduces and any(load.value.is_full for load in reading))
    )
    return _in_parts(kernel, pairs) if kernel.part_lengths else pairs


def _in_parts(kernel: KernelOp, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of all parts, from those of the first."""
    place = {arg: i for i, arg in enumerate(kernel.args)}
    first = [place[arg] for arg in kernel.part_args(0)]
    return tuple(
        (own[source], own[target])
        for part in range(len(kernel.part_lengths))
        for own in [dict(zip(first, (place[a] for a in kernel.part_args(part)), strict=True))]
        for source, target in pairs
    )


def _scattered_pairs(op: KernelAlongOp) -> tuple[tuple[int, int], ...]:
    """The pair of what a scatter reads and writes, where both lie alike and no index is in it."""
    form, places = op.form, op.form.places
    if form.fn != "scatter" or "x" not in places:
        return ()
    x, y = places["x"], places["y"]
    others = {places[role].buffer for role in ("index", "source")}
    alike = (x.offset, x.strides, x.size) == (y.offset, y.strides, y.size)
    return ((x.buffer, y.buffer),) if alike and x.buffer not in others else ()


def _same_element(load: LoadOp, store: StoreOp) -> bool:
    plain = load.blocks is None and store.blocks is None and load.bounds is None
    return plain and (load.offset, load.strides) == (store.offset, store.strides)


def update_in_place(
    buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]
) -> tuple[list[Buffer], list[Step]]:
    """Let kernels write states where they lie; the copies that did it are gone.

    What stood for the new value becomes an alias of the state. Linear in the number of operands.
    """
    made = list(buffers)
    kept: list[Step | None] = list(steps)
    last = _last_touch(buffers, steps)
    makers = {
        index: (position, place)
        for position, step in enumerate(steps)
        if isinstance(step, Call)
        for place, index in enumerate(step.args)
        if place >= kernels[step.kernel].num_inputs
    }
    targets = Counter(step.target for step in steps if isinstance(step, Copy))
    touching = _Touching(buffers, steps, kernels)
    for position, step in enumerate(steps):
        if not isinstance(step, Copy) or (value := _whole(buffers, step.source)) not in makers:
            continue
        state = step.target
        at, place = makers[value]
        call = kept[at]
        assert isinstance(call, Call)
        fits = (
            (buffers[state].storage == "weight" or buffers[state].role == "cache")
            and buffers[value].storage == "arena"
            and _lies_as(buffers[value], buffers[state])
            and targets[state] == 1
        )
        free = all(at >= p or p == position for p in last.get(state, ()))
        if fits and free and touching.may_be_one(at, place, state):
            kept[at] = replace(call, args=(*call.args[:place], state, *call.args[place + 1 :]))
            made[value] = replace(made[value], storage="alias", root=state, offset=0)
            kept[position] = None
    aliases = {i: b.root for i, b in enumerate(made) if b.storage == "alias"}
    for index, root in aliases.items():
        if root is not None and root in aliases:
            made[index] = replace(made[index], root=aliases[root])
    return made, _closed_up(kept)


def _whole(buffers: Sequence[Buffer], index: int) -> int:
    """Return the buffer of which another one is all elements in their order; else that one."""
    root = buffers[index].root
    if root is None or buffers[index].offset or not _lies_as(buffers[index], buffers[root]):
        return index
    return root


def _lies_as(one: Buffer, other: Buffer) -> bool:
    """True where two buffers hold as many elements in the same order, whatever their shapes."""
    if (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides):
        return True
    dense = one.is_contiguous and other.is_contiguous
    return dense and (one.num_elements, one.dtype) == (other.num_elements, other.dtype)


def _last_touch(buffers: Sequence[Buffer], steps: Sequence[Step]) -> dict[int, list[int]]:
    """The last two steps that touch a buffer or a view of it: the second may be the copy."""
    found: dict[int, list[int]] = {}
    for position, step in enumerate(steps):
        for index in set(touched(step, steps)):
            root = buffers[index].root
            places = found.setdefault(index if root is None else root, [])
            if not places or places[-1] != position:
                places.append(position)
                del places[:-2]
    return found


class _Touching:
    """Where calls touch a buffer or a view of it; a call may have thousands of buffers."""

    def __init__(
        self, buffers: Sequence[Buffer], steps: Sequence[Step], kernels: Sequence[Kernel]
    ) -> None:
        self._buffers, self._steps, self._kernels = buffers, steps, kernels
        self._positions: dict[int, dict[int, list[int]]] = {}
        self._pairs: dict[int, frozenset[tuple[int, int]]] = {}

    def may_be_one(self, at: int, place: int, state: int) -> bool:
        """True where a call reads a state as it writes it, or not at all.

        Args:
            at: the step.
            place: of the argument that is to be the state.
            state: a buffer that is no view.
        """
        call = self._steps[at]
        assert isinstance(call, Call)
        if at not in self._positions:
            found = self._positions[at] = dict[int, list[int]]()
            for position, index in enumerate(call.args):
                root = self._buffers[index].root
                found.setdefault(index if root is None else root, []).append(position)
        kernel = self._kernels[call.kernel]
        if call.kernel not in self._pairs:
            self._pairs[call.kernel] = frozenset(kernel.in_place)
        return all(
            position < kernel.num_inputs
            and _whole(self._buffers, call.args[position]) == state
            and (position, place) in self._pairs[call.kernel]
            for position in self._positions[at].get(state, ())
        )


def _closed_up(steps: Sequence[Step | None]) -> list[Step]:
    """Drop the steps that are gone, and count anew what waits refer to."""
    position: dict[int, int] = {}
    kept: list[Step] = []
    for old, step in enumerate(steps):
        if step is not None:
            position[old] = len(kept)
            if isinstance(step, Wait):
                step = replace(step, start=position[step.start])
            kept.append(step)
    return kept
