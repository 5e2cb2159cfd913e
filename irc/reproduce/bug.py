"""The archive of ``irc bug-report``: what the machine is, and a crash without names."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from irc.cluster.cache import cache_root
from irc.cluster.host import memory_bytes, num_cores, processor
from irc.errors import IrcError
from irc.pipeline.reproducer import files_of, read, versions
from irc.reproduce.anonymous import anonymous

ENVIRONMENT = "environment.json"
VARIABLES = ("IRC_", "OMP_", "MKL_", "TORCH", "CUDA_", "NCCL_", "KMP_")
"""How names of variables begin that say how irc runs."""
PLAIN = re.compile(r"-?\d+(?:\.\d+)?|on|off|all|true|false|yes|no", re.IGNORECASE)
"""Values that name nothing of the user's; of others only that they are set is said."""
ABOUT = """\
What irc bug-report has written, and no more:

environment.json   versions, processor, memory, GPUs; variables of the environment that change what
                   irc does, with their values where those are numbers or switches.
reproducer/        (with --reproducer) the program on which irc crashed: its ops, shapes and
                   literals; not its weights, and not the names of tensors, files, folders or users.

Look at it before you send it: the shapes of a model, and numbers that its source has, are in it.
"""


@dataclass(frozen=True)
class Archive:
    """What was written for a report of a bug.

    Attributes:
        file: where it is.
        members: how many characters each of its files has, by name.
        fails_alike: whether the crash without names fails as the one that was told; None without
            one.
    """

    file: str
    members: Mapping[str, int]
    fails_alike: bool | None

    def __str__(self) -> str:
        lines = [f"{name}, {size} characters" for name, size in self.members.items()]
        if self.fails_alike is not None:
            said = "fails in the same way" if self.fails_alike else "does not fail so"
            lines.append(f"without names it {said}")
        lines.append(f"written {self.file}: look at it before you send it")
        return "\n".join(lines)


def write_report(out: Path, folder: Path | None) -> Archive:
    """Write the archive.

    Args:
        out: the file, ending in ``.zip``; one that is there is not overwritten.
        folder: of a reproducer, or None.

    Returns:
        What the user is to know.

    Raises:
        IrcError: ``output-exists``, ``output-write``; ``reproducer-invalid``.
    """
    is_same: bool | None = None
    files = {"about.txt": ABOUT, ENVIRONMENT: json.dumps(environment(), indent=2) + "\n"}
    if folder is not None:
        known = read(folder)
        reproducer = anonymous(known)
        now = reproducer.replayed()
        is_same = now is not None and now.is_like(known.failure)
        files |= {f"reproducer/{name}": text for name, text in files_of(reproducer).items()}
    try:
        with zipfile.ZipFile(out, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    except FileExistsError:
        raise IrcError(
            "output-exists", f"'{out}' is there already", help="-o names another"
        ) from None
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{out}': {error.strerror}") from error
    return Archive(f"{out}", {name: len(text) for name, text in files.items()}, is_same)


def environment() -> dict[str, Any]:
    """Return versions, hardware and settings, without names of the user's."""
    return {
        "versions": versions(),
        "system": {
            "name": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "python": {
            "implementation": platform.python_implementation(),
            "is_64_bit": sys.maxsize > 1 << 32,
        },
        "processor": {"name": processor(), "cores": num_cores(), "memory_bytes": memory_bytes()},
        "gpus": _gpus(),
        "variables": {
            name: value if PLAIN.fullmatch(value) else "set"
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES)
        },
        "cache_files": _count(cache_root()),
    }


def _gpus() -> list[str]:
    """Return the GPUs by their driver's tool, a line each; none where there is no such tool."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _count(folder: Path) -> int:
    return sum(1 for each in folder.rglob("*") if each.is_file())
