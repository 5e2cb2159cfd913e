"""What a run goes on from: a state with tensors by name, which ranks read slices of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from irc.runtime.boxes import Box


class StoredState(Protocol):
    """A checkpoint in files, or what ranks kept in memory; every rank opens the same.

    Attributes:
        path: what it is called in messages.
        shapes: of its tensors, by their names joined by dots.
        dtypes: of the same.
        objects: the names of what is no tensor.
    """

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    objects: list[str]

    def read(self, boxes: Mapping[str, Box]) -> None:
        """Fill boxes by name; every rank calls it, with its own."""
        ...

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what is no tensor, by name; every rank calls it."""
        ...

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimiser, as torch has them; every rank calls it."""
        ...

    def section(self, name: str) -> Any:
        """Return all that is under one name, whole; None where there is nothing."""
        ...
