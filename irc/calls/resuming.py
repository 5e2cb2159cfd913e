"""From what a step of training goes on: from memory that ranks are left with, or a checkpoint."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from irc.errors import IrcError
from irc.runtime.agreement import ranks_named
from irc.runtime.host_memory import Shelf
from irc.runtime.join import own_rank
from irc.runtime.kept import kept_state
from irc.runtime.stored import StoredState


class StateLostWarning(UserWarning):
    """What ranks kept in memory is not all there any more: steps are made again."""


@dataclass(frozen=True)
class Resumed:
    """From what a run goes on.

    Attributes:
        step: how many steps were made.
        place: ``"memory"``, ``"checkpoint"``, or ``"nothing"`` where it begins.
        text: the same in words.
    """

    step: int
    place: str
    text: str

    def __str__(self) -> str:
        return self.text


def stored_state(
    folder: Path, shelf: Shelf | None, *, missing_ok: bool
) -> tuple[StoredState | None, str, str]:
    """Open what is to be gone on from; every rank calls it.

    Args:
        folder: of checkpoints.
        shelf: what this rank kept in memory, which counts where it is of as late a step; None where
            it does not.
        missing_ok: whether there may be nothing.

    Returns:
        It, None for nothing; ``Resumed.place``; and in words where it is.

    Raises:
        IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``, ``state-mismatch``.
    """
    from irc.runtime.checkpoint import Checkpoint, last_step

    lost = ""
    if shelf is not None:
        state, lost = kept_state(shelf)
        if state is not None and state.step >= last_step(folder):
            _tell(lost, str(state.path))
            return state, "memory", f"the memory of {ranks_named(state.ranks)}"
    try:
        checkpoint = Checkpoint(folder)
    except IrcError as error:
        if missing_ok and error.code == "checkpoint-missing":  # on every rank, or on none
            _tell(lost, "")
            return None, "nothing", ""
        raise
    _tell(lost, f"'{checkpoint.path}'")
    return checkpoint, "checkpoint", f"'{checkpoint.path}'"


def _tell(lost: str, instead: str) -> None:
    if lost and own_rank() == 0:
        goes_on = f"it goes on from {instead}" if instead else "it begins anew: no checkpoint"
        warnings.warn(f"{lost}; {goes_on}", StateLostWarning, stacklevel=4)
