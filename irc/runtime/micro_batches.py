"""The inputs of a step in micro-batches, and what losses divide by, of the whole batch.

Each function of a part reads its rank's part of a micro-batch. Functions that read the same part of
an input share what is cut of it.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch

from irc.errors import IrcError
from irc.plan.schema import AxisCut
from irc.runtime.dtypes import dtypes
from irc.runtime.executor import Executor
from irc.training.batch_sums import SHARE

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
    return name == SEED or name.startswith(OWN)


class MicroBatches:
    """Cuts the inputs of a step.

    Args:
        executors: the functions that read them.
        cut: names of the inputs that are cut along their first dim; each gets the others whole.
        count: of micro-batches.
    """

    def __init__(self, executors: Sequence[Executor], cut: Collection[str], count: int) -> None:
        self._cut, self._count = cut, count
        self._readers: dict[Key, Executor] = {}
        for executor in executors:
            for key in keys_of(executor):
                self._readers.setdefault(key, executor)
        self._parts: dict[Key, list[torch.Tensor]] = {key: [] for key in self._readers}

    def take(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Cut the inputs of a step.

        Raises:
            IrcError: ``input-mismatch``.
        """
        for key, executor in self._readers.items():
            name, whole = key[0], inputs[key[0]]
            each = self._each(name, whole)
            parts = [executor.part_of(name, each[0])]
            if name not in self._cut:
                parts *= self._count
            elif parts[0] is each[0]:
                parts = list(each)  # what is true of the first is of all: they are of one tensor
            else:
                parts += [executor.part_of(name, other) for other in each[1:]]
            self._parts[key] = parts

    def _each(self, name: str, whole: torch.Tensor) -> Sequence[torch.Tensor]:
        if name not in self._cut:
            return [whole]
        size, rest = divmod(whole.shape[0] if whole.ndim else 0, self._count)
        if rest or not size:
            raise IrcError(
                "input-mismatch",
                f"input '{name}' is {list(whole.shape)}, which {self._count} micro-batches do not "
                "share equally along the first dim",
                help=f"give a multiple of {self._count} samples",
            )
        return whole.split(size)

    def part(self, key: Key, number: int) -> torch.Tensor:
        """Return this rank's part of a micro-batch of an input."""
        return self._parts[key][number]


class BatchSums:
    """Gives the micro-batches of a part their shares of sums over the whole batch.

    Args:
        sums: gives those of a micro-batch.
        shares: turns their totals into what the micro-batches read.
        inputs: of the step.
        count: of micro-batches.

    Attributes:
        shares: by name.
    """

    def __init__(self, sums: Executor, shares: Executor, inputs: MicroBatches, count: int) -> None:
        self._inputs = inputs
        each = [torch.zeros(count, *shape, dtype=dtype) for shape, dtype in _outputs(sums)]
        names = [sums.plan.buffers[i].name for i in sums.plan.outputs]
        self._totals = [(values, torch.zeros_like(values[0])) for values in each]
        open_inputs = [None for _ in sums.plan.inputs]
        self._runs = [
            sums.bound(open_inputs, sums.into({n: v[k] for n, v in zip(names, each, strict=True)}))
            for k in range(count)
        ]
        self._reads, self._constants = keys_of(sums), []
        given: list[torch.Tensor | None] = []
        for index in shares.plan.inputs:
            buffer = shares.plan.buffers[index]
            head, _, number = buffer.name.partition(".")
            is_total = head == "sum" and number.isdigit()
            given.append(self._totals[int(number)][1] if is_total else None)
            if not is_total:
                self._constants.append((buffer.name, buffer.placement))
        self.shares = {
            shares.plan.buffers[i].name: torch.zeros(shape, dtype=dtype)
            for i, (shape, dtype) in zip(shares.plan.outputs, _outputs(shares), strict=True)
        }
        self._share = shares.bound(given, shares.into(self.shares))

    def run(self) -> None:
        """Compute them of the inputs that were taken."""
        part = self._inputs.part
        for number, run in enumerate(self._runs):
            run(*[part(key, number) for key in self._reads])
        for values, total in self._totals:
            torch.sum(values, 0, dtype=values.dtype, out=total)
        self._share(*[part(key, 0) for key in self._constants])


def _outputs(executor: Executor) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    buffers = (executor.plan.buffers[i] for i in executor.plan.outputs)
    return ((b.shape, dtypes()[b.dtype]) for b in buffers)
