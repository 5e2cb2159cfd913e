"""The reduction of gradients: partial sums of many parameters in a few collectives.

A collective of a few kilobytes takes as long as its launch. Gradients whose sums go the same way
are laid side by side in a bucket (Li et al., PyTorch Distributed, arXiv:2006.15704, section 3.2.2),
which is one launch: an all-reduce where every rank wants the sum, a reduce-scatter where each wants
its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh, Placement, Split
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.direct import all_reduce, reduce_scatter
from irc.runtime.watch import naming_lost_ranks

BUCKET_BYTES = 25 << 20
"""What one collective sums at most, unless one gradient alone is larger."""

Way: TypeAlias = "tuple[tuple[str, int | None], ...]"
"""Mesh axes in the order in which a sum goes over them; of each the dim that it is then split
along, None where all ranks get it."""


def way_of(source: Placement, target: Placement) -> Way:
    """Return how a sum gets from where it is partial to where it is to lie.

    >>> from irc.dialects.placement import B, Partial
    >>> way_of(Placement.of(data=Partial(), tensor=B), Placement.of(data=Split(0), tensor=B))
    (('data', 0),)
    """
    axes = [(target[axis], axis) for axis in source.partial_axes()]
    # Splits first, so that what is left to add up is smaller; of one dim in their order.
    axes.sort(key=lambda each: each[0].order if isinstance(each[0], Split) else len(axes) + 9)
    return tuple((axis, p.dim if isinstance(p, Split) else None) for p, axis in axes)


@dataclass
class _Bucket:
    """Gradients that go the same way.

    Attributes:
        places: of each in the list of all.
        num_bytes: of all.
    """

    way: Way
    places: list[int] = field(default_factory=list[int])
    num_bytes: int = 0


class Reduction:
    """Adds partial gradients up over the ranks of a mesh.

    Args:
        mesh: the mesh.
        communicator: has its groups.
        kinds: of each gradient, how it is computed and how it is to lie.
    """

    def __init__(
        self,
        mesh: Mesh,
        communicator: TorchCommunicator,
        kinds: Sequence[tuple[Placement, Placement]],
    ) -> None:
        self._mesh, self._groups = mesh, communicator.groups
        self._ways = [way_of(source, target) for source, target in kinds]

    def __call__(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's parts of the sums; every rank calls it, for the same gradients."""
        sums = list(parts)
        with naming_lost_ranks():
            finishes = [self._start(bucket, sums) for bucket in self._buckets(parts)]
            for finish in finishes:
                finish()
        return sums

    def _buckets(self, parts: Sequence[torch.Tensor]) -> list[_Bucket]:
        last: dict[object, _Bucket] = {}
        every: list[_Bucket] = []
        for place, part in enumerate(parts):
            way = self._ways[place]
            if not way or part.numel() == 0:
                continue
            key, size = (way, part.dtype), part.numel() * part.element_size()
            if key not in last or last[key].num_bytes + size > BUCKET_BYTES:
                last[key] = _Bucket(way)
                every.append(last[key])
            last[key].places.append(place)
            last[key].num_bytes += size
        return every

    def _start(self, bucket: _Bucket, sums: list[torch.Tensor]) -> Callable[[], None]:
        """Begin the first step of a bucket; what is returned does the rest."""
        axes = [axis for axis, _ in bucket.way]
        if all(dim is None for _, dim in bucket.way):
            return self._all_reduce(bucket, axes, sums)
        (axis, dim), *rest = bucket.way
        assert dim is not None
        group, size = self._groups[axis]
        if size == 1:
            return self._then(bucket, rest, sums)
        chunks = [_chunks(sums[place], dim, size) for place in bucket.places]
        source = torch.cat(chunks, dim=1)
        target = source.new_empty(source.shape[1])
        work = reduce_scatter(target, source.view(-1), "sum", group=group(), async_op=True)

        def finish() -> None:
            work.wait()
            start = 0
            for place, chunk in zip(bucket.places, chunks, strict=True):
                shape = list(sums[place].shape)
                shape[dim] //= size
                sums[place] = target[start : start + chunk.shape[1]].view(shape)
                start += chunk.shape[1]
            self._then(bucket, rest, sums)()

        return finish

    def _then(
        self, bucket: _Bucket, rest: Sequence[tuple[str, int | None]], sums: list[torch.Tensor]
    ) -> Callable[[], None]:
        if not rest:
            return _nothing
        return self._start(_Bucket(tuple(rest), bucket.places), sums)

    def _all_reduce(
        self, bucket: _Bucket, axes: Sequence[str], sums: list[torch.Tensor]
    ) -> Callable[[], None]:
        flat = torch.cat([sums[place].reshape(-1) for place in bucket.places])
        groups = self._groups_of(axes)
        first = all_reduce(flat, "sum", group=groups[0], async_op=True) if groups else None

        def finish() -> None:
            if first is not None:
                first.wait()
            for group in groups[1:]:
                all_reduce(flat, "sum", group=group)
            start = 0
            for place in bucket.places:
                part = sums[place]
                sums[place] = flat[start : start + part.numel()].view(part.shape)
                start += part.numel()

        return finish

    def _groups_of(self, axes: Sequence[str]) -> list[Any]:
        """Return the groups to sum over, one after the other: one where axes are all there are."""
        own = [axis for axis in axes if self._mesh.size(axis) > 1]
        if {axis for axis, size in self._mesh.axes if size > 1} == set(own) and own:
            return [dist.group.WORLD]
        return [self._groups[axis][0]() for axis in own]


def _chunks(part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Return what each rank is to get of a tensor, a row for each."""
    shape = part.shape
    split = part.reshape(*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])
    return split.movedim(dim, 0).reshape(size, -1)


def _nothing() -> None: ...
