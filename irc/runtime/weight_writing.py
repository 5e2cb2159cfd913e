"""Writes weights into a folder of safetensors, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.weights import write_safetensors
from irc.runtime.synced import sync, write_synced
from irc.runtime.weight_files import FILE, INDEX

METADATA = {"format": "pt"}
"""What transformers wants to read of a file."""


def write_weight_files(
    folder: Path,
    sizes: Mapping[str, int],
    whole: Callable[[str], torch.Tensor | None],
    *,
    max_bytes: int,
    writes: bool,
    beside: Callable[[], object] = lambda: None,
) -> None:
    """Write weights into a folder, one file after the other; every rank calls it.

    Files get their names when all of them are on the disk, the index last.

    Args:
        folder: is made where it is not there.
        sizes: bytes of each weight, by name, in order.
        whole: gives a weight on the rank that writes; every rank calls it for all names in order.
        max_bytes: of a file, but for one that a single weight fills.
        writes: whether this is the rank that writes.
        beside: writes what else belongs there; the rank that writes calls it before files get
            their names, and may call it again in a later attempt.

    Raises:
        OSError: where a file cannot be written, or not be kept; what it wrote is gone then.
        IrcError: ``op-unsupported`` for a dtype that the format lacks.
    """
    groups = _groups(sizes, max_bytes)
    files = [FILE] if len(groups) == 1 else [
        f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)
    ]  # fmt: skip
    failed: OSError | IrcError | None = None
    for file, names in zip(files, groups, strict=True):
        read = ((name, whole(name)) for name in names)
        tensors = {name: value for name, value in read if value is not None}
        if writes and failed is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_safetensors(_partial(folder, file), tensors, METADATA)
            except (OSError, IrcError) as error:
                failed = error  # the other ranks still send what they have
    if not writes:
        return
    index = ""
    if len(files) > 1:
        weight_map = {n: f for f, names in zip(files, groups, strict=True) for n in names}
        metadata = {"total_size": sum(sizes.values())}
        index = json_text.dump({"metadata": metadata, "weight_map": weight_map})
    try:
        if failed is not None:
            raise failed
        beside()
        _publish(folder, files, index)
    finally:
        for file in (*files, INDEX):
            with suppress(OSError):  # where the folder is none, it is told why
                _partial(folder, file).unlink(missing_ok=True)


def _partial(folder: Path, file: str) -> Path:
    return folder / f".{file}.partial"


def _publish(folder: Path, files: Iterable[str], index: str) -> None:
    """Give files their names when all are on the disk; take back those of some."""
    names = [*files]
    for file in names:
        sync(_partial(folder, file))
    if index:
        write_synced(_partial(folder, INDEX), index)
        names.append(INDEX)
    moved: list[Path] = []
    try:
        for file in names:
            _partial(folder, file).replace(folder / file)
            moved.append(folder / file)
        sync(folder)
    except OSError:
        for path in moved:
            with suppress(OSError):  # the first failure is told
                path.unlink()
        raise


def _groups(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Return which weights are in one file, in order.

    >>> _groups({"a": 3, "b": 3, "c": 9, "d": 1}, 6)
    [['a', 'b'], ['c'], ['d']]
    """
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if groups[-1] and total + size > max_bytes:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups
