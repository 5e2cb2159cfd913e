"""Which samples of a data set each rank loads: a sampler for torch's ``DataLoader``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch import nn
from torch.utils.data import Sampler

from irc.calls.feeding import Feeding
from irc.calls.step import TrainingStep
from irc.errors import IrcError
from irc.sharding.mesh import equal_shares

KEYS = ("epoch", "position", "seed", "shuffle", "size")
MOST = 2**62
"""Seeds are below: torch has 64 bits for a seed and the epochs that are added to it."""


class DataSampler(Sampler[int]):
    """Gives the numbers of the samples that this rank loads, in the order of an epoch.

    Ranks that share samples are given the same numbers. Of the others each takes its turn: batches
    of B samples on each of N parts are the batches of N B samples that one process would load. An
    epoch gives every rank as many: of a last batch that is short each has its part, and
    :attr:`left_out` samples, fewer than there are parts, are in no batch of that epoch.

    With a ``batch_size``, of a batch of all ranks, a rank is given a run of each batch instead, so
    that the batch is put together in one order whatever the number of parts: random numbers, which
    belong to places in a batch, meet the same samples.

    Args:
        feeding: says which part this rank is given.
        size: of the data set.
        shuffle: another order in each epoch; otherwise as they come.
        seed: of the orders; the same on all ranks.
        step: counts the samples that were trained on.
        batch_size: of all ranks together; 0 where it is not known.
    """

    def __init__(
        self,
        feeding: Feeding,
        size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        step: TrainingStep | None = None,
        batch_size: int = 0,
    ) -> None:
        self._feeding, self._size, self._shuffle, self._seed = feeding, size, shuffle, seed
        self._step, self._batch_size = step, batch_size
        self.epoch = 0
        self._start = self._given = self._trained_before = 0
        self._is_over = False

    @property
    def batch_size(self) -> int | None:
        """How many samples of a batch this rank loads: a loader's ``batch_size``.

        None where :func:`data_sampler` was not told that of all ranks.
        """
        return self._batch_size // self._feeding.count or None

    @property
    def left_out(self) -> int:
        """How many samples an epoch leaves out, so that every rank has as many."""
        return self._size % self._feeding.count

    def __len__(self) -> int:
        """How many samples this rank loads in a whole epoch."""
        return self._size // self._feeding.count

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, or stay in it where a state was loaded that is in it."""
        if epoch != self.epoch:
            self.epoch, self._start, self._given, self._is_over = epoch, 0, 0, False

    def __iter__(self) -> Iterator[int]:
        """Give this rank's samples of the epoch; after a state was loaded, those that are left."""
        if self._is_over:  # a further round of the same epoch
            self._start = 0
        self._given, self._is_over = 0, False
        self._trained_before = self._trained()
        for number in self._own(self._order()[self._start :]):
            self._given += 1
            yield number
        self._is_over = True

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is, the same on every rank: it goes on on any mesh.

        Samples count once a step was trained on them: what the workers of a loader have read ahead
        is read again. In a loop of the user's own, where nothing says what was trained on, those
        count that the loader asked for.
        """
        num_samples = self._given * self._feeding.count
        if self._step is not None:
            num_samples = min(num_samples, self._trained() - self._trained_before)
        return {
            "epoch": self.epoch,
            "position": self._start + num_samples,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "size": self._size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a run was; the next round gives what is left of the epoch.

        Raises:
            IrcError: ``state-mismatch`` for one of another data set, and for numbers that no
                sampler saves; nothing is changed then.
        """
        lacking = [key for key in KEYS if key not in state]
        if lacking or state["size"] != self._size:
            what = f"lacks '{lacking[0]}'" if lacking else f"is of {state['size']} samples"
            raise IrcError(
                "state-mismatch",
                f"the state of a sampler {what}; the data set has {self._size}",
                help="give the sampler that was saved the same data set",
            )
        for key in KEYS:
            if not self._is_saved(key, state[key]):
                raise IrcError(
                    "state-mismatch",
                    f"the state of a sampler has {key}={state[key]!r}",
                    because=f"the position is from 0 to the {self._size} samples of the data set"
                    if key == "position"
                    else (),
                    help="give what state_dict() of a sampler returned",
                )
        self.epoch, self._start = int(state["epoch"]), int(state["position"])
        self._seed, self._shuffle = int(state["seed"]), bool(state["shuffle"])
        self._given, self._is_over = 0, False
        self._trained_before = self._trained()

    def _is_saved(self, key: str, value: Any) -> bool:
        """Return whether a sampler may have saved a number; one of another size is told apart."""
        try:
            number = operator.index(value)
        except TypeError:
            return False
        most = {"seed": MOST - 1, "shuffle": 1, "position": self._size}.get(key)
        least = 1 - MOST if key == "seed" else 0
        return least <= number and (most is None or number <= most)

    def _own(self, order: list[int]) -> Iterator[int]:
        """Give this rank's samples of an order."""
        part, parts, size = self._feeding.part, self._feeding.count, self._batch_size
        if not size:
            yield from order[part::parts][: len(order) // parts]
            return
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            each = len(batch) // parts
            yield from batch[part * each : (part + 1) * each]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._size))
        draw = torch.Generator().manual_seed(self._seed + self.epoch)
        order: Any = torch.randperm(self._size, generator=draw)
        return order.tolist()

    def _trained(self) -> int:
        return 0 if self._step is None else self._step.samples


def data_sampler(
    trained: TrainingStep | nn.Module,
    dataset: Sized | int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    batch_size: int | None = None,
) -> DataSampler:
    """Return a sampler for a ``DataLoader``, which gives each rank the samples it is to be given.

    ``batch_size`` of the loader is that of a rank, which the sampler has where it is told that of
    all ranks. Where ranks are given the whole batch, each gets all samples, in one order. A last
    batch that is short is shared by all ranks; the loader's ``drop_last`` leaves it out::

        step = irc.compile_step(model, loss=f, mesh="data=auto,tensor=2", batch="local")
        sampler = irc.data_sampler(step, dataset, seed=0, batch_size=16)
        loader = DataLoader(dataset, batch_size=sampler.batch_size, sampler=sampler, drop_last=True)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                step(x, y)
            step.save(folder, more={"sampler": sampler})  # step.load goes on where it was

    Args:
        trained: what :func:`irc.compile_step` made, or a module that ``irc.compile`` made.
        dataset: of which samples are taken, or how many there are.
        shuffle: give them in another order in each epoch (``set_epoch``).
        seed: of the orders; the same on all ranks.
        batch_size: of all ranks together. A job that goes on with another number of ranks then
            trains on the same batches, in the same order: see :attr:`DataSampler.batch_size`.

    Raises:
        IrcError: ``input-mismatch`` for what irc did not make; ``option-value`` for a data set
            without a length, and for numbers that are none; ``mesh-axis-indivisible`` for batches
            that the ranks do not share equally.
    """
    if isinstance(dataset, int):
        size = dataset
    elif hasattr(dataset, "__len__"):
        size = len(dataset)
    else:
        raise IrcError(
            "option-value",
            f"{type(dataset).__name__} has no length, so its samples cannot be shared out",
            help="give the number of samples, or share them out in the data set itself: "
            "step.feeding() has `part` and `count`",
        )
    if size < 0:
        raise IrcError("option-value", f"a data set of {size} samples is none")
    if type(seed) is not int or abs(seed) >= MOST:
        raise IrcError("option-value", f"seed={seed!r} is no number of less than 62 bits")
    step = trained if isinstance(trained, TrainingStep) else None
    feeding = feeding_of_trained(trained)
    return DataSampler(
        feeding,
        size,
        shuffle=shuffle,
        seed=seed,
        step=step,
        batch_size=_batch_size(batch_size, feeding),
    )


def _batch_size(batch_size: int | None, feeding: Feeding) -> int:
    """Check that ranks share batches of a size; 0 where none was said."""
    if batch_size is None:
        return 0
    if type(batch_size) is not int or batch_size < 1:
        raise IrcError("option-value", f"batch_size={batch_size!r} is no number of samples")
    if batch_size % feeding.count:
        raise IrcError(
            "mesh-axis-indivisible",
            f"batches of {batch_size} samples are shared by {feeding.count} parts of the mesh "
            f"'{feeding.mesh}', not equally",
            because="the samples of a rank are as many as those of the others",
            help=equal_shares(batch_size, feeding.count),
        )
    return batch_size


def feeding_of_trained(trained: object) -> Feeding:
    """Return what ranks are given of a batch of something that is trained.

    Raises:
        IrcError: ``input-mismatch``.
    """
    if isinstance(trained, TrainingStep):
        return trained.feeding()
    feeding = getattr(trained, "feeding", None)
    trained_feeding = feeding() if callable(feeding) else None
    if isinstance(trained_feeding, Feeding):
        return trained_feeding
    raise IrcError(
        "input-mismatch",
        f"{type(trained).__name__} was made neither by irc.compile_step nor by irc.compile with a "
        "mesh",
    )
