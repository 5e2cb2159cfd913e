"""The inputs of a step in micro-batches, and what losses divide by, of the whole batch.

Each function of a part reads its rank's part of a micro-batch. Functions that read the same part of
an input share what is cut of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import torch

from irc.errors import IrcError
from irc.plan.schema import AxisCut
from irc.runtime.dtypes import dtypes
from irc.runtime.executor import Executor
from irc.training.batch_sums import SHARE
from irc.training.loss_scale import SCALE

Key: TypeAlias = tuple[str, tuple[AxisCut, ...]]
"""An input, and how a rank's part of it is cut."""

SEED = "seed"
OWN = ("sum.", SHARE)
"""First letters of inputs that are not the user's."""


def keys_of(executor: Executor) -> list[Key]:
    """Return what a function reads of the user's inputs."""
    buffers = (executor.plan.buffers[i] for i in executor.plan.inputs)
    return [(b.name, b.placement) for b in buffers if b.role == "input" and not _is_own(b.name)]


def _is_own(name: str) -> bool:
    return name in (SEED, SCALE) or name.startswith(OWN)


class MicroBatches:
    """Cuts the inputs of a step.

    Args:
        readers: the functions that read them, of the micro-batches of each size.
        cut: names of the inputs that are cut along their first dim; each gets the others whole.
        sizes: how many micro-batches have each size, the larger first.
        divided: names of the inputs of which each rank is given its own part of the samples.
        gather: returns all parts of such an input, for functions that are on no mesh.
    """

    def __init__(
        self,
        readers: Sequence[Sequence[Executor]],
        cut: Collection[str],
        sizes: Sequence[int],
        divided: Collection[str] = (),
        gather: Callable[[torch.Tensor], list[torch.Tensor]] | None = None,
    ) -> None:
        self._cut, self._count = cut, sum(sizes)
        self._divided, self._gather = divided, gather
        self._rest = sizes[0] % self._count
        self._readers: list[tuple[slice, dict[Key, Executor]]] = []
        first = 0
        for executors, count in zip(readers, sizes, strict=True):
            own: dict[Key, Executor] = {}
            for executor in executors:
                for key in keys_of(executor):
                    own.setdefault(key, executor)
            self._readers.append((slice(first, first + count), own))
            first += count
        keys = dict.fromkeys(key for _, own in self._readers for key in own)
        nothing = torch.empty(0)
        self._parts: dict[Key, list[torch.Tensor]] = {key: [nothing] * self._count for key in keys}

    def take(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Cut the inputs of a step.

        Raises:
            IrcError: ``input-mismatch``.
        """
        parts_of: dict[str, list[torch.Tensor]] = {}
        for numbers, readers in self._readers:
            for key, executor in readers.items():
                name, whole = key[0], inputs[key[0]]
                each = self._each(name, whole, numbers)
                if self._gather and name in self._divided and not executor.plan.device_mesh.axes:
                    if name not in parts_of:
                        parts_of[name] = self._gather(whole)
                    every = [self._each(name, part, numbers) for part in parts_of[name]]
                    each = [torch.cat(parts) for parts in zip(*every, strict=True)]
                parts = [executor.part_of(name, each[0])]
                if name not in self._cut:
                    parts *= numbers.stop - numbers.start
                elif parts[0] is each[0]:
                    parts = list(each)  # what is true of the first is of all of its size
                else:
                    parts += [executor.part_of(name, other) for other in each[1:]]
                self._parts[key][numbers] = parts

    def _each(self, name: str, whole: torch.Tensor, numbers: slice) -> Sequence[torch.Tensor]:
        """Return some micro-batches of an input, those of one size."""
        if name not in self._cut:
            return [whole]
        size, rest = divmod(whole.shape[0] if whole.ndim else 0, self._count)
        if rest != self._rest or not size:
            by = f", {self._rest} of them with a sample more," if self._rest else " equally"
            raise IrcError(
                "input-mismatch",
                f"input '{name}' is {list(whole.shape)}, which {self._count} micro-batches do not "
                f"share{by} along the first dim",
                help=f"give a multiple of {self._count} samples"
                + (f" and {self._rest} more" if self._rest else ""),
            )
        if rest:
            return whole.tensor_split(self._count)[numbers]
        return cast(
            "tuple[torch.Tensor, ...]",
            whole.split(size),  # pyright: ignore[reportUnknownMemberType]
        )

    def part(self, key: Key, number: int) -> torch.Tensor:
        """Return this rank's part of a micro-batch of an input."""
        return self._parts[key][number]


class BatchSums:
    """Gives the micro-batches of a part their shares of sums over the whole batch.

    Args:
        sums: gives those of a micro-batch; one for each size of micro-batches.
        shares: turns their totals into what the micro-batches of a size read.
        inputs: of the step.
        sizes: how many micro-batches have each size, the larger first.
        held: inputs that are no part of the batch, by name.

    Attributes:
        shares: by name, for each size.
    """

    def __init__(
        self,
        sums: Sequence[Executor],
        shares: Sequence[Executor],
        inputs: MicroBatches,
        sizes: Sequence[int],
        held: Mapping[str, torch.Tensor],
    ) -> None:
        self._inputs, self._held = inputs, held
        each = [torch.zeros(sum(sizes), *shape, dtype=t) for shape, t in _outputs(sums[0])]
        names = [sums[0].plan.buffers[i].name for i in sums[0].plan.outputs]
        self._totals = [(values, torch.zeros_like(values[0])) for values in each]
        self._runs: list[tuple[Callable[..., object], list[Key]]] = []
        for executor, count in zip(sums, sizes, strict=True):
            first, open_inputs = len(self._runs), [None for _ in executor.plan.inputs]
            for number in range(first, first + count):
                own = {n: v[number] for n, v in zip(names, each, strict=True)}
                run = executor.bound(open_inputs, executor.into(own))
                self._runs.append((run, keys_of(executor)))
        self.shares: list[dict[str, torch.Tensor]] = []
        self._shares: list[tuple[Callable[..., object], list[Key], int]] = []
        first = 0
        for executor, count in zip(shares, sizes, strict=True):
            self._add_shares(executor, first)
            first += count

    def _add_shares(self, executor: Executor, first: int) -> None:
        """Take the function that gives the micro-batches from ``first`` on their shares."""
        plan, constants = executor.plan, list[Key]()
        inputs: list[torch.Tensor | None] = []
        for index in plan.inputs:
            buffer = plan.buffers[index]
            head, _, number = buffer.name.partition(".")
            is_total = head == "sum" and number.isdigit()
            inputs.append(self._totals[int(number)][1] if is_total else self._held.get(buffer.name))
            if inputs[-1] is None:
                constants.append((buffer.name, buffer.placement))
        own = {
            plan.buffers[i].name: torch.zeros(shape, dtype=dtype)
            for i, (shape, dtype) in zip(plan.outputs, _outputs(executor), strict=True)
        }
        self.shares.append(own)
        self._shares.append((executor.bound(inputs, executor.into(own)), constants, first))

    def run(self) -> None:
        """Compute them of the inputs that were taken."""
        part = self._inputs.part
        for number, (run, reads) in enumerate(self._runs):
            run(*[part(key, number) for key in reads])
        for values, total in self._totals:
            torch.sum(values, 0, dtype=values.dtype, out=total)
        for share, constants, first in self._shares:
            share(*[part(key, first) for key in constants])


def _outputs(executor: Executor) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    buffers = (executor.plan.buffers[i] for i in executor.plan.outputs)
    return ((b.shape, dtypes()[b.dtype]) for b in buffers)
