"""What each rank of a mesh is to be given of a batch: all of it, or its own part of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from irc.constraints.layouts import TENSOR
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.errors import IrcError, did_you_mean
from irc.plan.load import LoadedPlan
from irc.plan.parts import PIPE, PartsPlan
from irc.plan.schema import AxisCut, Buffer

BatchOption: TypeAlias = "str | Mapping[str, str]"
"""``global`` or ``local``, for all arguments or by argument."""

SAMPLES = ("data", "dp", "ddp", "fsdp", "replicate", "shard")
"""What axes may be called over which samples are divided."""

WORDS = ("global", "local")


@dataclass(frozen=True)
class Feeding:
    """What each rank is to be given of a batch.

    >>> feeding = feeding_of("local", Mesh.parse("data=2,tensor=2"))
    >>> feeding.shares
    ((0, 1), (2, 3))
    >>> print(feeding.of_rank(2))
    of 2 parts of the samples, this rank is given number 1, as rank 3 is

    Attributes:
        mesh: all ranks.
        axes: over which samples are divided; none where every rank is given the whole batch.
        arguments: which have samples along their first dim, each rank being given its own part;
            None for all that have as many as the first tensor.
        rank: of this process.
    """

    mesh: Mesh
    axes: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    rank: int = 0

    @property
    def is_local(self) -> bool:
        """True where a rank is given its own part of something."""
        return bool(self.axes)

    @cached_property
    def count(self) -> int:
        """Into how many parts the samples are divided."""
        count = 1
        for axis in self.axes:
            count *= self.mesh.size(axis)
        return count

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The number of the part that each rank is given; the batch is the parts in this order."""
        return tuple(map(self._part, range(self.mesh.num_ranks)))

    @cached_property
    def part(self) -> int:
        """The number of the part that this rank is given."""
        return self._part(self.rank)

    @cached_property
    def shares(self) -> tuple[tuple[int, ...], ...]:
        """By part, the ranks that are given it: the very same samples, in one order."""
        ranks: list[list[int]] = [[] for _ in range(self.count)]
        for rank, part in enumerate(self.parts):
            ranks[part].append(rank)
        return tuple(map(tuple, ranks))

    def of_rank(self, rank: int) -> Feeding:
        """Return the same as another rank has it."""
        return replace(self, rank=rank)

    def __str__(self) -> str:
        if not self.axes:
            return "every rank is given the whole batch"
        others = [f"{rank}" for rank in self.shares[self.part] if rank != self.rank]
        are = f"rank {others[0]} is" if len(others) == 1 else f"ranks {', '.join(others)} are"
        which = "" if self.arguments is None else f" of {', '.join(self.arguments)}"
        return (
            f"of {self.count} parts of the samples{which}, this rank is given number {self.part}"
            + (f", as {are}" if others else "")
        )

    def own(self, leaves: Sequence[Any], names: Sequence[str]) -> frozenset[int]:
        """Return which leaves of the arguments are this rank's own part.

        Args:
            leaves: of the arguments.
            names: of the leaves, dotted; read where arguments were named.

        Raises:
            IrcError: ``option-value`` for a name that no argument has.
        """
        if not self.axes:
            return frozenset()
        dims = {i: x.shape[0] for i, x in enumerate(leaves)
                if isinstance(x, torch.Tensor) and x.ndim}  # fmt: skip
        if self.arguments is None:
            first = next(iter(dims.values()), 0)
            return frozenset(i for i, size in dims.items() if size == first)
        first_names = [name.partition(".")[0] for name in names]
        for name in self.arguments:
            if name not in first_names:
                raise IrcError(
                    "option-value",
                    f"batch names an argument '{name}', and a call has none",
                    help=did_you_mean(name, first_names) or f"they are {', '.join(first_names)}",
                )
        return frozenset(i for i in dims if first_names[i] in self.arguments)

    def widened(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape that all parts have together, whose memory nobody reads."""
        return leaf.new_empty((leaf.shape[0] * self.count, *leaf.shape[1:]))

    def pins(self, names: Sequence[str]) -> list[str]:
        """Return constraints by which the samples of inputs are divided as ranks are given them.

        Over other axes they are whole, as each rank is given them; taking a part costs nothing.
        """
        own = [axis for axis in self.mesh.names if axis != PIPE]
        axes = tuple((axis, Split(0) if axis in self.axes else B) for axis in own)
        placement = Placement.in_mesh_order(axes)
        return [f'"{name}" = {placement}' for name in names]

    def of_plan(self, loaded: LoadedPlan, names: Sequence[str]) -> LoadedPlan:
        """Return a plan that takes of inputs what a rank is given, and cuts it no more."""
        plan = loaded.plan
        if not names or not self.axes:
            return loaded
        inputs = {i for i in plan.inputs if plan.buffers[i].name in names}
        buffers = tuple(
            replace(buffer, placement=self._kept(buffer)) if i in inputs else buffer
            for i, buffer in enumerate(plan.buffers)
        )
        return replace(loaded, plan=replace(plan, buffers=buffers))

    def of_parts(self, plan: PartsPlan, names: Sequence[str]) -> PartsPlan:
        """Return the same of a plan of several programs."""
        if not names or not self.axes:
            return plan
        parts = tuple(
            {kind: self.of_plan(loaded, names) for kind, loaded in part.items()}
            for part in plan.parts
        )
        return replace(plan, parts=parts)

    def _kept(self, buffer: Buffer) -> tuple[AxisCut, ...]:
        return tuple(AxisCut(c.axis, "B") if c.axis in self.axes else c for c in buffer.placement)

    def _part(self, rank: int) -> int:
        place, part = self.mesh.coordinates(rank), 0
        for axis in self.axes:
            part = part * self.mesh.size(axis) + place[axis]
        return part


def feeding_of(batch: BatchOption, mesh: Mesh, axes: Sequence[str] = ()) -> Feeding:
    """Read the option ``batch``.

    Args:
        batch: ``global`` or ``local``, for all arguments or by argument.
        mesh: of the run.
        axes: over which samples are divided; by default those that are called so, or the only one
            that no other use is known of.

    Raises:
        IrcError: ``option-value``.
    """
    words = [batch] if isinstance(batch, str) else list(batch.values())
    for word in words:
        if word not in WORDS:
            raise IrcError(
                "option-value",
                f"batch={word!r} says neither that each rank is given all samples nor its own",
                help=did_you_mean(f"{word}", WORDS) or "write global or local",
            )
    if "local" not in words or mesh.num_ranks == 1:
        return Feeding(mesh)
    own = tuple(axis for axis in axes or _axes_of_samples(mesh) if mesh.size(axis) > 1)
    if not own:  # one part, which is the whole batch
        return Feeding(mesh)
    named = None if isinstance(batch, str) else tuple(n for n, w in batch.items() if w == "local")
    return Feeding(mesh, own, named)


def axes_called_so(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh whose names say that samples are divided over them."""
    return tuple(axis for axis in mesh.names if axis in SAMPLES)


def _axes_of_samples(mesh: Mesh) -> tuple[str, ...]:
    called = axes_called_so(mesh)
    rest = [axis for axis in mesh.names if axis != PIPE and axis not in TENSOR]
    if not called and len(rest) == 1:
        called = (rest[0],)
    if not called:
        raise IrcError(
            "option-value",
            f"batch='local' divides samples over ranks, and no axis of '{mesh}' is for that",
            help=f"call one {' or '.join(map(repr, SAMPLES[:2]))}, or give every rank the whole "
            "batch: batch='global'",
        )
    return called
