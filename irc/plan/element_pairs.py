"""Which operands of a kernel may be which of its results: one memory, read and then written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.along import KernelAlongOp
from irc.dialects.launches import LaunchOp
from irc.dialects.task import KernelOp, LoadOp, StoreOp


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
            loads.setdefault(kernel.position(op.buffer), []).append(op)
        elif isinstance(op, StoreOp):
            stores.setdefault(kernel.position(op.buffer), []).append(op)
    if any(load.indices for reading in loads.values() for load in reading):
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


class KernelPairs:
    """The pairs of a module's kernels, each computed once.

    Args:
        module: level task.
    """

    def __init__(self, module: ModuleOp) -> None:
        self._kernels = {
            op.sym_name.data: op for op in module.body.block.ops if isinstance(op, KernelOp)
        }
        self._known: dict[str, Mapping[tuple[int, int], None]] = {}

    def of(self, launch: LaunchOp) -> Mapping[tuple[int, int], None]:
        """Return, in order, which arguments of a launch may be one: those read, those written."""
        name = launch.kernel_name
        if name not in self._known:
            self._known[name] = dict.fromkeys(element_pairs(self._kernels[name]))
        return self._known[name]
