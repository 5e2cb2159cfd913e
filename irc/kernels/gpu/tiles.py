"""Other schedules of a GPU kernel: what a tuner may time in the place of the chosen one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod

from xdsl.dialects.builtin import DictionaryAttr

from irc.dialects.attention import KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.attributes import to_attribute
from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.mapping_attr import MappingAttr
from irc.dialects.task import KernelContractOp, KernelOp, LoadOp
from irc.dialects.task_types import ValueType
from irc.kernels.gpu.attention import backward_candidates
from irc.kernels.gpu.attention import candidates as attention_candidates
from irc.kernels.gpu.limits import gpu
from irc.kernels.gpu.matmul import Problem, candidates
from irc.kernels.names import identity

MOST = 16
"""Candidates that are timed; the model ranks those of a matmul."""
ROW_WARPS = (1, 2, 4, 8, 16)
PANELS = ("packed", "grouped")
"""Templates that read panels."""
PANELS_TILES = tuple(
    {"block_n": n, "block_k": k, "num_warps": warps}
    for n, k, warps in ((16, 128, 2), (16, 512, 8), (32, 128, 4), (64, 64, 4), (64, 32, 8))
)


def alternatives(kernel: KernelOp, target: str) -> list[dict[str, int]]:
    """Return the tiles that are worth timing, the model's choice first."""
    ops = list(kernel.body.block.ops)
    if isinstance(first := ops[0], KernelAttentionOp):
        form = first.form
        features = max(form.depth, form.width)
        dtype = form.places["q"].dtype
        return [t.options() for t in attention_candidates(form.rows, form.chunk, features, dtype)]
    if isinstance(first, KernelAttentionBackwardOp):
        form = first.form
        features = max(form.depth, form.width)
        dtype = form.places["q"].dtype
        return [t.options() for t in backward_candidates(form.rows, form.keys, features, dtype)]
    if kernel.template.data in PANELS:
        return [kernel.tile_sizes, *({**kernel.tile_sizes, **tile} for tile in PANELS_TILES)]
    contract = next((op for op in ops if isinstance(op, KernelContractOp)), None)
    if contract is None or kernel.template.data != "matmul":
        kept = {k: v for k, v in kernel.tile_sizes.items() if k != "num_warps"}
        return [{**kept, "num_warps": warps} for warps in ROW_WARPS]
    kind = contract.a.type
    assert isinstance(kind, ValueType)
    *batch, m, n = kernel.space_extents[: kernel.num_parallel]
    k = prod(kernel.space_extents[kernel.num_parallel :])
    problem = Problem(prod(batch), m, n, k, kind.dtype, epilogue=_beside(kernel, contract))
    tiles = candidates(problem, gpu(target))
    return [{**tile.options(), "arch": gpu(target).arch} for tile in tiles[:MOST]]


def _beside(kernel: KernelOp, contract: KernelContractOp) -> int:
    """Return how many tensors of the size of its result a matmul's epilogue reads."""
    own = {value.owner for value in contract.inputs}
    loads = [op for op in kernel.body.block.ops if isinstance(op, LoadOp) and op not in own]
    tasks = [d for d in range(kernel.num_parallel) if kernel.space_extents[d] > 1]
    return sum(all(op.strides[d] for d in tasks) for op in loads)


def with_tile(kernel: KernelOp, tile: Mapping[str, int]) -> KernelOp:
    """Return a copy of a kernel with another tile, and the mapping that goes with it."""
    copy = kernel.clone()
    copy.properties["tile"] = DictionaryAttr({k: to_attribute(v) for k, v in tile.items()})
    if kernel.template.data == "matmul":
        *batch, m, n = [max(size, 1) for size in kernel.space_extents[: kernel.num_parallel]]
        block_m, block_n = tile["block_m"], tile["block_n"]
        grid = spatial(*batch, -(-m // block_m), -(-n // block_n))
        inner = repeat(*[1] * len(batch), block_m, block_n)
        copy.properties["mapping"] = MappingAttr(TaskMapping((*grid.atoms, *inner.atoms)))
    return copy


def tile_key(kernel: KernelOp, device: str) -> str:
    """Return what a kernel is known by on a device, whatever its tile is."""
    plain = with_tile(kernel, kernel.tile_sizes)
    del plain.properties["tile"]
    lines = identity(plain).splitlines()
    # The second line holds the mapping, which goes with the tile.
    text = "\n".join([device, lines[0], *lines[2:]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
