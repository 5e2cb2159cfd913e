"""Checkpoints in parts: each rank writes what it holds, and reads what it needs of any of them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from irc.errors import IrcError
from irc.runtime.agreement import fail_together, texts
from irc.runtime.boxes import Box
from irc.runtime.checkpoint_files import (
    CheckpointWriter,
    check_files,
    checkpoint_at,
    checkpoints_in,
    partial_of,
    step_of,
)
from irc.runtime.watch import naming_lost_ranks

_loader: Any = state_dict_loader
_saver: Any = state_dict_saver
"""torch's ways in and out, whose types are unknown in part."""
_load_state_dict_from_keys, load = _loader._load_state_dict_from_keys, _loader.load
save = _saver.save

GROUPS = "optimizer.param_groups."
"""How names of the numbers of groups begin, then the number of the group."""


class Saving:
    """Writes checkpoints of one step, one after the other."""

    def __init__(self) -> None:
        self._group: Any = None
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Path] | None = None

    def save(self, state: Mapping[str, Any], target: Path, keep: int) -> Path:
        """Write a checkpoint; every rank calls it, and it is there when any of them returns.

        Args:
            state: boxes and plain values in dictionaries; ranks may have other ones.
            target: its folder.
            keep: how many to leave beside it, 0 for all.

        Raises:
            IrcError: ``checkpoint-failed``; ``rank-lost``.
        """
        self._prepare(target)
        with naming_lost_ranks():
            return _write(state, target, keep, None)

    def save_async(self, state: Mapping[str, Any], target: Path, keep: int) -> Future[Path]:
        """Write a checkpoint in a thread; its tensors must be copies. See :meth:`save`."""
        self._prepare(target)
        if self._group is None and _world() > 1:
            # Collectives of the thread must not mix with those of the steps.
            self._group = dist.new_group(  # pyright: ignore[reportUnknownMemberType]
                backend="gloo"
            )
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="irc-checkpoint")
        self._last = self._thread.submit(_write, state, target, keep, self._group)
        return self._last

    def _prepare(self, target: Path) -> None:
        """Wait for the one before, whose failure is told now, and clear the place."""
        last, self._last = self._last, None
        if last is not None:
            last.result()
        failed: IrcError | None = None
        if _rank() == 0:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(partial_of(target), ignore_errors=True)
                partial_of(target).mkdir()
            except OSError as error:
                message = f"'{target}' cannot be written: {error.strerror or error}"
                failed = IrcError("checkpoint-failed", message)
        fail_together(failed)


def _write(state: Mapping[str, Any], target: Path, keep: int, group: Any) -> Path:
    try:
        with _without_warnings():
            save(
                dict(state),
                storage_writer=CheckpointWriter(target, keep),
                process_group=group,
                no_dist=_world() == 1,
            )
    except CheckpointException as error:
        said = "; ".join(f"rank {rank}: {why[0]}" for rank, why in sorted(error.failures.items()))
        raise IrcError(
            "checkpoint-failed",
            f"'{target}' cannot be written: {said}",
            because="the checkpoints before it are as they were",
        ) from error
    return target


class Checkpoint:
    """A checkpoint that is read; every rank makes it, of the same folder.

    Attributes:
        path: of the checkpoint.
        shapes: of its tensors, by their names joined by dots.
        dtypes: of the same.
        objects: the names of what is no tensor.

    Raises:
        IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``, ``state-mismatch`` for a folder
            of weights alone; the same on every rank.
    """

    def __init__(self, folder: Path) -> None:
        place: list[Any] = [None]
        failed: IrcError | None = None
        if _rank() == 0:
            try:
                place = [str(checkpoint_at(folder))]
            except IrcError as error:
                failed = error
            except OSError as error:
                message = f"'{folder}' cannot be read: {error.strerror or error}"
                failed = IrcError("checkpoint-corrupt", message)
        fail_together(failed)
        if _world() > 1:
            with naming_lost_ranks():
                dist.broadcast_object_list(place, 0)
        self.path = Path(place[0])
        try:
            reason = check_files(self.path, _rank(), _world())
        except OSError as error:
            reason = f"{error}"
        entries: Mapping[str, Any] = {}
        if not reason:
            try:
                entries = FileSystemReader(self.path).read_metadata().state_dict_metadata
            except Exception as error:
                reason = f"'.metadata' cannot be read: {error}"
        self._agree(reason)
        self.shapes = {
            n: tuple(e.size) for n, e in entries.items() if isinstance(e, TensorStorageMetadata)
        }
        self.dtypes = {
            n: e.properties.dtype
            for n, e in entries.items()
            if isinstance(e, TensorStorageMetadata)
        }
        self.objects = [name for name in entries if name not in self.shapes]

    def read(self, boxes: Mapping[str, Box]) -> None:
        """Fill boxes by name; every rank calls it, with its own.

        Raises:
            IrcError: ``checkpoint-corrupt``; some may be filled then.
        """
        self._agree(self._failing(lambda: load(
            dict(boxes), storage_reader=FileSystemReader(self.path), no_dist=True
        )))  # fmt: skip

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what is no tensor, by name; every rank calls it."""
        wanted: dict[str, Any] = dict.fromkeys(n for n in names if n in self.objects)
        if wanted:
            self._agree(self._failing(lambda: load(
                wanted, storage_reader=FileSystemReader(self.path), no_dist=True
            )))  # fmt: skip
        return wanted

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimiser, as torch has them; every rank calls it."""
        names = [name for name in self.objects if name.startswith(GROUPS)]
        groups: dict[str, dict[str, Any]] = {}
        for name, value in self.values(names).items():
            number, _, key = name.removeprefix(GROUPS).partition(".")
            groups.setdefault(number, {})[key] = value
        return list(groups.values())

    def section(self, name: str) -> Any:
        """Return all that is under one name, whole; None where there is nothing."""
        keys = [n for n in (*self.shapes, *self.objects) if n.partition(".")[0] == name]
        if not keys:
            return None
        read: dict[str, Any] = {}
        self._agree(self._failing(lambda: read.update(
            _load_state_dict_from_keys({name}, storage_reader=FileSystemReader(self.path))
        )))  # fmt: skip
        return read[name]

    def _failing(self, read: Any) -> str:
        """Run a read, and return why it failed."""
        try:
            with _without_warnings():
                read()
        except (Exception, CheckpointException) as error:
            failures: Mapping[int, Any] = (
                error.failures if isinstance(error, CheckpointException) else {}
            )
            return (
                "; ".join(str(why[0]) for why in failures.values())
                or f"{type(error).__name__}: {error}"
            )
        return ""

    def _agree(self, reason: str) -> None:
        message = f"the checkpoint '{self.path}' is damaged: {reason}"
        fail_together(
            IrcError("checkpoint-corrupt", message, help=self._advice()) if reason else None
        )

    def _advice(self) -> str:
        others = [p for p in self.path.parent.glob("step-*") if p != self.path]
        return f"load '{sorted(others)[-1]}'" if others else "load another one"


def last_step(folder: Path) -> int:
    """Return how many steps the last checkpoint in a folder has, as rank 0 sees it; -1 for none.

    Every rank calls it.
    """
    held = checkpoints_in(folder)
    own = str(step_of(held[-1]) if held else -1)
    return int(texts(own)[0] if _world() > 1 else own)


@contextmanager
def _without_warnings() -> Generator[None]:
    """Leave out that torch.distributed is not used where a process works for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
