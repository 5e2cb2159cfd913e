"""One file that may be malformed, given to irc in a process and a folder of its own, and judged."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tests.malformed.models import MODELS
from tests.malformed.mutations import MUTATIONS

MAX_SECONDS, MAX_BYTES, MAX_LINES = 5.0, 1 << 30, 15
KILLED_AFTER = 20
"""Seconds of processor time after which the process is ended from outside."""

SECRET = b"secret" * 16

LENIENT = ("Field 'shape' of 'type' is required but missing", "Field 'type' of 'value_info' is")
"""What onnx's checker refuses and irc reads on purpose: types that inference gives anyway."""

NO_OP = "No Op registered"


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Attributes:
        name: the model and what was done to it, with the seed that does it again.
        malformed: whether an independent judge (onnx's own checker) refuses the file, or irc does.
        status: the exit status of ``irc``.
        message: what it printed on stderr.
        seconds: of processor time.
        peak_bytes: resident memory at most, libraries included.
        faults: what is wrong with that end; empty where nothing is.
    """

    name: str
    malformed: bool
    status: int
    message: str
    seconds: float
    peak_bytes: int
    faults: tuple[str, ...]


def make(seed: int) -> tuple[str, bytes]:
    """Return the name and the bytes of a file."""
    chance = random.Random(seed)
    base, change = chance.choice(list(MODELS)), chance.choice(list(MUTATIONS))
    data = MUTATIONS[change](MODELS[base](), chance)
    return f"{seed} {base} {change}", data


def try_file(name: str, data: bytes, room: Path) -> Outcome:
    """Compile a file in a child process that inherits this one's imports.

    Args:
        name: for the outcome.
        data: the bytes of ``model.onnx``.
        room: an empty folder; what lies there beside the model's folder must stay as it is.
    """
    folder = _furnish(room, data)
    outcome = try_command(name, ["compile", "model.onnx", "-o", "out"], room)
    refused = refusal(folder / "model.onnx")
    faults = list(outcome.faults)
    if outcome.status == 0 and refused:
        faults.append(f"accepted, though onnx's checker says: {refused.splitlines()[0][:200]}")
    return replace(outcome, malformed=bool(refused) or outcome.malformed, faults=tuple(faults))


def try_command(name: str, words: Sequence[str], room: Path) -> Outcome:
    """Give a command line to a child process that works in ``room/model``.

    A child's memory is that of the parent too, as far as it inherits it.
    """
    folder = room / "model"
    before = _contents(room, folder)
    child = os.fork()
    if child == 0:
        _run(folder, words)
    _, waited, used = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(waited)
    message = (folder / "err.txt").read_text(encoding="utf-8", errors="replace")
    seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    faults = _faults(status, message, seconds, peak)
    if _contents(room, folder) != before:
        faults.append("it wrote outside its output folder")
    if status != 0 and (folder / "out").exists():
        faults.append("it left an output folder behind")
    return Outcome(name, status != 0, status, message, seconds, peak, tuple(faults))


def refusal(path: Path) -> str:
    """Return why onnx's own checker refuses a file; empty where it does not.

    Shapes are not inferred: that pass of onnx runs without limits on memory. The domain ``ai.onnx``
    is the empty one by another name: the checker knows that of opsets, not of nodes beside them.
    """
    reason = _refusal(str(path))
    if reason.startswith(NO_OP):
        model = onnx.ModelProto()
        try:
            model.ParseFromString(path.read_bytes())
        except DecodeError:  # of what the checker's own reader forgives
            return reason
        for entry in (*model.opset_import, *model.graph.node):
            entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
        reason = _refusal(model)
    return "" if reason.startswith(LENIENT) else reason


def _refusal(file: str | onnx.ModelProto) -> str:
    try:
        check: Callable[[str | onnx.ModelProto], None] = onnx.checker.check_model  # pyright: ignore
        check(file)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _furnish(room: Path, data: bytes) -> Path:
    folder = room / "model"
    (folder / "sub").mkdir(parents=True)
    (room / "secret.bin").write_bytes(SECRET)
    (folder / "w.bin").write_bytes(bytes(4096))
    (folder / "link.bin").symlink_to(room / "secret.bin")
    os.mkfifo(folder / "pipe")
    (folder / "model.onnx").write_bytes(data)
    return folder


def _contents(room: Path, folder: Path) -> dict[str, int]:
    """Return the files outside the output folder, by their sizes."""
    mine = {folder / "out", folder / "err.txt", folder / "out.txt"}
    sizes: dict[str, int] = {}
    for path in room.rglob("*"):
        if not any(each == path or each in path.parents for each in mine):
            sizes[str(path.relative_to(room))] = path.lstat().st_size
    return sizes


def _run(folder: Path, words: Sequence[str]) -> None:
    """Be the child: run the command line and leave with its status."""
    status = 99
    try:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER, KILLED_AFTER))
        for stream, path in ((1, "out.txt"), (2, "err.txt")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        # The parent's streams may be a test runner's own.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        warnings.simplefilter("ignore")
        from irc.cli import main

        status = main([*words])
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _faults(status: int, message: str, seconds: float, peak: int) -> list[str]:
    faults: list[str] = []
    if status not in (0, 2, 3):
        faults.append(f"exit status {status}")
    if "Traceback" in message:
        faults.append("a traceback")
    if status and not message.startswith("error["):
        faults.append("no registered error")
    if len(message.splitlines()) > MAX_LINES:
        faults.append(f"{len(message.splitlines())} lines")
    if any(not (c.isprintable() or c == "\n") for c in message):
        faults.append("a message with characters that a terminal may obey")
    if seconds > MAX_SECONDS:
        faults.append(f"{seconds:.1f} s")
    if peak > MAX_BYTES:
        faults.append(f"{peak >> 20} MiB")
    return faults


def clear(room: Path) -> None:
    """Remove a folder that a trial used."""
    shutil.rmtree(room)
