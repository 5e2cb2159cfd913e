"""Where the values of a training step come from, when ranks take their parts of them.

A module that has its values is the usual start. Others give values once it is known which part of
what each rank has, so that no rank ever holds the whole: a checkpoint, files of weights, or the
initialisers of a module on the meta device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import torch

from irc.errors import IrcError
from irc.runtime.boxes import Box
from irc.runtime.parts import Parts
from irc.runtime.stored import StoredState


class Start(Protocol):
    """Gives values by the names that ranks hold them by."""

    @property
    def names(self) -> Collection[str]:
        """What it has values of."""
        ...

    def leave_out(self, names: Collection[str]) -> None:
        """Give no value to these: they have another."""
        ...

    def fill(self, parts: Parts, names: Collection[str]) -> None:
        """Write values into this rank's parts; every rank calls it.

        Args:
            parts: of this rank.
            names: which of :attr:`names`; those that this rank has no part of do not count.
        """
        ...

    def wholes(self, names: Mapping[str, torch.Tensor]) -> Iterable[tuple[str, torch.Tensor]]:
        """Give whole tensors by name, like others of these names; every rank calls it."""
        ...


class StoredStart:
    """What starts from files have in common.

    Args:
        stored: by the names that ranks hold, those in the files.
    """

    def __init__(self, stored: Mapping[str, str]) -> None:
        self._stored = dict(stored)

    @property
    def names(self) -> Collection[str]:
        """What it has values of."""
        return self._stored.keys()

    def leave_out(self, names: Collection[str]) -> None:
        """Give no value to these: they have another."""
        self._stored = {n: key for n, key in self._stored.items() if n not in names}


class CheckpointStart(StoredStart):
    """A checkpoint.

    Args:
        checkpoint: opened by every rank.
        stored: by the names that ranks hold, those in the checkpoint.
        lacking: states that it should have if they are asked for.
    """

    def __init__(
        self, checkpoint: StoredState, stored: Mapping[str, str], lacking: Collection[str] = ()
    ) -> None:
        super().__init__(stored)
        self._checkpoint, self._lacking = checkpoint, lacking

    def fill(self, parts: Parts, names: Collection[str]) -> None:
        """Read boxes of their own first: parts are as they were where a read fails.

        Raises:
            IrcError: ``state-mismatch``, ``checkpoint-corrupt``.
        """
        for name in self._lacking:
            if name in parts.roles:
                raise IrcError("state-mismatch", f"'{self._checkpoint.path}' has no '{name}'")
        read: dict[str, torch.Tensor] = {}
        boxes: dict[str, Box] = {}
        for name in names:
            if pieces := parts.pieces(name):
                own = {each: torch.empty_like(parts.local[each], device="cpu") for each in pieces}
                read |= own
                boxes[self._stored[name]] = Box([*own.values()], pieces.values(), parts.shape(name))
        self._checkpoint.read(boxes)
        for name, part in read.items():
            parts.local[name].copy_(part)

    def wholes(self, names: Mapping[str, torch.Tensor]) -> Iterable[tuple[str, torch.Tensor]]:
        """Give whole tensors by name, like others of these names; every rank calls it."""
        return self.whole(names).items()

    def whole(self, names: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return whole tensors that are like others, by name; every rank calls it."""
        read = {n: torch.empty_like(t, device="cpu") for n, t in names.items()}
        self._checkpoint.read({self._stored[n]: Box.of(t) for n, t in read.items()})
        return read
