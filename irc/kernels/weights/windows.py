"""Packed weights of a convolution: panels of output channels, tap after tap, channel after channel.

``[groups][o / 64][taps][c][64]``: that of :mod:`irc.kernels.weights.panels` with more summed
dims. Of bfloat16 two channels lie together, so each tap has an even number of them.
"""

from __future__ import annotations

from dataclasses import replace

from irc.dialects.attributes import to_attribute
from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.task import (
    KernelContractOp,
    KernelOp,
    LoadOp,
    bound_rows,
)
from irc.kernels.weights.panels import PAIRED, Packed, Places, columns_of, repacked

TEMPLATE = "convolution"
FEW = 16
"""Columns of the panel of very few output channels."""


def packed_windows(kernel: KernelOp) -> Packed | None:
    """Return a convolution as it reads its weight in panels; None for any other kernel.

    A weight that is also the image, or read by what follows, stays an argument beside its panels.
    """
    if kernel.template.data != TEMPLATE:
        return None
    source = kernel.position(_weight(kernel).buffer)
    if sum(kernel.args[source] in op.operands for op in kernel.body.ops) > 1:
        kernel = _apart(kernel)
    load = _weight(kernel)
    placed, blocks, total = _places(kernel, load)
    strides, parallel = load.strides, kernel.num_parallel
    dims = tuple(d for d in range(len(placed)) if strides[d] or d >= parallel - 1)
    mapping = _by_panels(tuple(kernel.space_extents[d] for d in dims), dims.index(parallel - 1))
    packed = repacked(kernel, load, Places(dims, tuple(placed), blocks, total), mapping)
    return replace(packed, source=source)


def _apart(kernel: KernelOp) -> KernelOp:
    """Return a kernel whose weight is an argument of its own, after the other inputs."""
    copy = kernel.clone()
    load, inputs = _weight(copy), kernel.num_inputs.value.data
    load.operands[0] = copy.body.block.insert_arg(load.buffer.type, inputs)
    copy.properties["num_inputs"] = to_attribute(inputs + 1)
    return copy


def _weight(kernel: KernelOp) -> LoadOp:
    contract = next(op for op in kernel.body.ops if isinstance(op, KernelContractOp))
    load = contract.b.owner
    assert isinstance(load, LoadOp)
    return load


def _places(kernel: KernelOp, load: LoadOp) -> tuple[list[int], tuple[int, ...], int]:
    """Where an element of a weight lies when it is packed: strides, blocks, elements in all."""
    space, parallel = kernel.space_extents, kernel.num_parallel
    n_dim, k_dim, strides = parallel - 1, len(space) - 1, load.strides
    pair = PAIRED.get(load.value.dtype, 1) if _has_runs(kernel) else 1
    columns = _columns(space[n_dim])
    placed, step = [0] * len(space), columns * pair
    for d in range(k_dim, parallel - 1, -1):
        placed[d] = step
        step *= -(-space[d] // pair) if d == k_dim else space[d]
    placed[n_dim] = step
    step *= -(-space[n_dim] // columns)
    for d in range(n_dim - 1, -1, -1):
        if strides[d]:
            placed[d] = step
            step *= space[d]
    blocks = (n_dim, columns, pair, k_dim, pair, 1) if pair > 1 else (n_dim, columns, 1)
    return placed, blocks, step


def _has_runs(kernel: KernelOp) -> bool:
    """True where the image's channels lie side by side: pairs of them are loaded at once."""
    contract = next(op for op in kernel.body.ops if isinstance(op, KernelContractOp))
    image, last = contract.a.owner, len(kernel.space_extents) - 1
    assert isinstance(image, LoadOp)
    rows = image.bounds or ()
    moves = any(strides[last] for _, _, strides in bound_rows(rows, last + 1))
    return image.strides[last] == 1 and not moves


def _columns(n: int) -> int:
    return FEW if n <= FEW else columns_of(n)


def _by_panels(space: tuple[int, ...], n: int) -> TaskMapping:
    """Hand out panels of each group."""
    columns, rest = _columns(space[n]), space[n + 1 :]
    panels = -(-space[n] // columns)
    outer = spatial(*space[:n], panels, *[1] * len(rest))
    tile = repeat(*[1] * n, min(columns, space[n]), *rest)
    return TaskMapping((*outer.atoms, *tile.atoms))
