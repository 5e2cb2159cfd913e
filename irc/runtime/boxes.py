"""A box of a whole tensor, as torch.distributed.checkpoint writes and reads it.

torch knows parts of tensors as DTensors. It also asks any other object where its box lies, which
serves all placements and ranks of some stages alone, and needs no process groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    # Their import takes a second.
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import WriteItem


class Box(torch.Tensor):
    """What one process has of a tensor: to torch a tensor of the whole shape, without ops.

    Args:
        parts: memory of its elements.
        where: the slices of the whole that each part is.
        shape: of the whole.
    """

    parts: dict[tuple[int, ...], torch.Tensor]

    def __new__(
        cls,
        parts: Sequence[torch.Tensor],
        where: Iterable[Sequence[slice]],
        shape: Sequence[int],
    ) -> Self:
        box = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=parts[0].dtype)
        starts = [tuple(each.start for each in slices) for slices in where]
        box.parts = dict(zip(starts, parts, strict=True))
        return box

    @staticmethod
    def of(whole: torch.Tensor) -> Box:
        """Return a whole tensor as a box of itself."""
        return Box([whole], [[slice(0, n) for n in whole.shape]], whole.shape)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{func} of a box")

    def __repr__(self, **_: Any) -> str:
        return f"Box({list(self.parts)} of {tuple(self.shape)})"

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        write_items: list[WriteItem] = []
        for chunk, part in zip(self.__create_chunk_list__(), self.parts.values(), strict=True):
            if part.numel() or not prod(self.shape):  # of an empty one others have all
                kind = TensorProperties.create_from_tensor(part)
                data = TensorWriteData(chunk, kind, torch.Size(self.shape))
                index = MetadataIndex(fqn, chunk.offsets)
                write_items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        return write_items

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(torch.Size(start), part.shape)
            for start, part in self.parts.items()
        ]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return self.parts[tuple(index.offset)]
