"""The files of a checkpoint: torch.distributed.checkpoint's, written beside their place first.

    FOLDER/step-12/.metadata       torch's: which box of which tensor lies where
    FOLDER/step-12/__R_0.distcp    what rank R wrote
    FOLDER/step-12/irc.json        the SHA-256 of each of these files
    FOLDER/.step-13.partial/       one that is being written, or that was broken off

A folder gets its name by one rename, when every rank's files and the digests are on the disk: a run
that ends before leaves the checkpoints that were there as they were.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter

from irc.errors import IrcError
from irc.plan import json_text
from irc.runtime.synced import sync, write_synced

MANIFEST = "irc.json"
METADATA = ".metadata"
DIGEST = ".sha256"
FORMAT = 1
NAME = re.compile(r"(?:step-(\d+)|\.step-(\d+)\.old)")
"""Of a whole one; the second form is one whose successor of the same step was being moved in."""
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class FileDigest:
    """What a file of a checkpoint has to be."""

    bytes: int
    sha256: str


class CheckpointWriter(FileSystemWriter):
    """Writes a checkpoint beside its place, and moves it there when all of it is written.

    Args:
        target: the place.
        keep: how many checkpoints to leave in its folder, 0 for all.
    """

    def __init__(self, target: Path, keep: int) -> None:
        super().__init__(partial_of(target), overwrite=True)  # pyright: ignore[reportUnknownMemberType]
        self._target, self._keep = target, keep

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's files, and their digests beside them."""
        done = super().write_data(plan, planner)
        folder = partial_of(self._target)
        for name in sorted({each.storage_data.relative_path for each in done.value()}):
            write_synced(
                folder / f"{name}{DIGEST}",
                json_text.dump(json_text.encode(digest_of(folder / name))),
            )
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Write what rank 0 knows of all ranks, and publish the folder."""
        super().finish(metadata, results)
        folder = partial_of(self._target)
        files: dict[str, Any] = {METADATA: json_text.encode(digest_of(folder / METADATA))}
        for path in sorted(folder.glob(f"*{DIGEST}")):
            files[path.name.removesuffix(DIGEST)] = json_text.parse(path.read_bytes(), f"{path}")
            path.unlink()
        write_synced(folder / MANIFEST, json_text.dump({"format": FORMAT, "files": files}))
        sync(folder)
        if self._target.exists():  # the same step again: it is given up only for its successor
            old = self._target.with_name(f".{self._target.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            self._target.rename(old)
            folder.rename(self._target)
            shutil.rmtree(old)
        else:
            folder.rename(self._target)
        sync(self._target.parent)
        if self._keep:
            for path in checkpoints_in(self._target.parent)[: -self._keep]:
                shutil.rmtree(path, ignore_errors=True)


def partial_of(target: Path) -> Path:
    """Return where a checkpoint is while it is written."""
    return target.with_name(f".{target.name}.partial")


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the complete checkpoints that a folder holds, those of later steps last."""
    if not folder.is_dir():
        return []
    whole: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):  # names that begin with a dot come first
        if (step := step_of(path)) >= 0 and (path / MANIFEST).is_file():
            whole[step] = path
    return [whole[step] for step in sorted(whole)]


def step_of(path: Path) -> int:
    """Return how many steps the checkpoint of a name has; -1 for another name."""
    match = NAME.fullmatch(path.name)
    return int(match[1] or match[2]) if match else -1


def checkpoint_at(folder: Path) -> Path:
    """Return a checkpoint: the folder itself, or the one of the last step in it.

    Raises:
        IrcError: ``checkpoint-missing``; ``state-mismatch`` where there are weights alone, which
            is no reason to begin anew.
        OSError: where the folder cannot be read.
    """
    if (folder / METADATA).is_file() or (folder / MANIFEST).is_file():
        return folder
    if held := checkpoints_in(folder):
        return held[-1]
    if any(folder.glob("model*.safetensors*")):
        raise IrcError(
            "state-mismatch",
            f"'{folder}' has weights alone, no checkpoint of a step",
            help="irc.load_safetensors(step, folder) takes them",
        )
    broken = [p.name for p in folder.glob(".step-*.partial")] if folder.is_dir() else []
    raise IrcError(
        "checkpoint-missing",
        f"'{folder}' holds no checkpoint" if folder.is_dir() else f"there is no folder '{folder}'",
        because=f"'{broken[0]}' is one whose writing was broken off" if broken else (),
        help="give the folder that step.save wrote to, or one of torch.distributed.checkpoint",
    )


def check_files(path: Path, share: int, num_shares: int) -> str:
    """Compare a share of a checkpoint's files with their digests; return what is wrong, or "".

    One that torch wrote has no digests.
    """
    if not (path / MANIFEST).is_file():
        return "" if (path / METADATA).is_file() else f"'{METADATA}' is missing"
    try:
        content = json_text.parse_object((path / MANIFEST).read_bytes(), f"{path / MANIFEST}")
        if content.get("format") != FORMAT:
            return f"'{MANIFEST}' is of another irc"
        wanted = json_text.decode(Mapping[str, FileDigest], content["files"], MANIFEST)
    except (IrcError, OSError, KeyError) as error:
        return f"'{MANIFEST}' cannot be read: {error}"
    for name in sorted(wanted)[share::num_shares]:
        if not (path / name).is_file():
            return f"'{name}' is missing"
        size = (path / name).stat().st_size
        if size != wanted[name].bytes:
            return f"'{name}' has {size} bytes of {wanted[name].bytes}"
        if digest_of(path / name) != wanted[name]:
            return f"'{name}' is not what was written: its SHA-256 is another"
    return ""


def digest_of(path: Path) -> FileDigest:
    """Return the digest of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return FileDigest(size, digest.hexdigest())
