"""Values of registers on a disk: one file of a rank, and a thread that reads and writes it.

The file is in the folder that ``IRC_SCRATCH`` names, by default in that for temporary files. It has
no name there, so that nothing is left of it when the process ends, however it does. Its space is
set aside before the first step. Of values on a GPU the thread copies through pinned memory.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from irc.errors import IrcError
from irc.runtime.offload_host import copies_on, pinned
from irc.runtime.outside import (
    Move,
    Outside,
    Run,
    bytes_of,
    device_of_slots,
    outside_of,
    places_outside,
)
from irc.schedule.tapes import Place, Tape

VARIABLE = "IRC_SCRATCH"
PAGE = 4096


class DiskMoves:
    """Moves values between slots and a file.

    Args:
        tape: of the rank.
        registers: by slot.

    Raises:
        IrcError: ``offload-storage`` where the file cannot be made, or there is too little space.
    """

    def __init__(self, tape: Tape, registers: Mapping[Place, torch.Tensor]) -> None:
        self._offsets: dict[Outside, int] = {}
        total = 0
        for place, size in places_outside(tape, registers).items():
            self._offsets[place] = total
            total += -(-size // PAGE) * PAGE
        self.num_bytes = total
        self._folder = scratch_folder()
        self._file = _file_of(self._folder, total)
        # One thread does what a rank begins in its order, as a stream of a GPU does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="irc-disk")
        self._begun: dict[Place, Future[None]] = {}
        weakref.finalize(self, _close, self._thread, self._file)
        device = device_of_slots(registers)
        # Of a GPU's slots, the memory that the thread reads and writes; and the last copies of it.
        moved = {p: bytes_of(r).numel() for p, r in registers.items() if p[:2] in tape.outside}
        self._staged = pinned(moved, device) if device.type != "cpu" else {}
        self._out: Any = copies_on(device)
        self._copied: dict[Place, Any] = {}

    def step(self, events: Sequence[Move]) -> Run:
        """Return what does moves; one job of the thread does those that begin together.

        The wait for one that failed raises ``offload-storage``.
        """
        what, begun = events[0][0].what, self._begun
        places = [event.place for event, _ in events if event.place is not None]
        slots = [bytes_of(slot) for _, slot in events]
        memory = [self._staged.get(p, slot) for p, slot in zip(places, slots, strict=True)]
        offsets = [self._offsets[outside_of(event)] for event, _ in events]
        pieces = [(_memory(own), at) for own, at in zip(memory, offsets, strict=True)]
        staged = list(zip(places, slots, memory, strict=True)) if self._staged else []

        def begin(move: Callable[[memoryview, int], None]) -> None:
            copies = [self._copied[p] for p, _, _ in staged if p in self._copied]
            job = self._thread.submit(_each, move, pieces, copies)
            begun.update(dict.fromkeys(places, job))

        def finish() -> None:
            for job in {id(job): job for job in map(begun.pop, places)}.values():
                job.result()

        def store() -> None:
            for place, slot, own in staged:
                self._copied[place] = self._out.enqueue(own, slot)
            begin(self._write)

        def fetched() -> None:
            finish()
            for place, slot, own in staged:
                slot.copy_(own, non_blocking=True)
                self._copied[place] = torch.cuda.current_stream(slot.device).record_event()

        steps: Mapping[str, Run] = {
            "store": store, "stored": finish, "fetch": lambda: begin(self._read), "fetched": fetched
        }  # fmt: skip
        return steps[what]

    def _write(self, content: memoryview, offset: int) -> None:
        at = 0
        while at < len(content):
            try:
                at += os.pwrite(self._file.fileno(), content[at:], offset + at)
            except OSError as error:
                raise _failed(self._folder, "written to", error) from error

    def _read(self, content: memoryview, offset: int) -> None:
        at = 0
        while at < len(content):
            try:
                count = os.preadv(self._file.fileno(), [content[at:]], offset + at)
            except OSError as error:
                raise _failed(self._folder, "read from", error) from error
            if not count:
                raise IrcError("offload-storage", f"the file in '{self._folder}' was cut off")
            at += count


def _each(
    move: Callable[[memoryview, int], None],
    pieces: Sequence[tuple[memoryview, int]],
    copies: Sequence[Any],
) -> None:
    """Move pieces of memory once copies between them and a GPU have ended."""
    for copy in copies:
        copy.synchronize()
    for content, offset in pieces:
        move(content, offset)


def _close(thread: ThreadPoolExecutor, file: Any) -> None:
    """Close a file behind all that was begun with it."""
    try:
        thread.submit(file.close)
    except RuntimeError:  # Python ends, and has waited for the thread
        file.close()
    thread.shutdown(wait=False)


def _memory(content: torch.Tensor) -> memoryview:
    array: Any = content.numpy()
    return memoryview(array)


def scratch_folder() -> str:
    """Return the folder that values go to: by ``IRC_SCRATCH``, or that of temporary files."""
    return os.environ.get(VARIABLE) or tempfile.gettempdir()


def _file_of(folder: str, size: int) -> Any:
    """Return a file without a name, its space set aside.

    Raises:
        IrcError: ``offload-storage``.
    """
    try:
        file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - open while we are
    except OSError as error:
        raise _failed(folder, "written to", error) from error
    try:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError as error:
        file.close()
        raise IrcError(
            "offload-storage",
            f"there is no space for {size} bytes of saved activations in '{folder}'",
            because=error.strerror or "",
            help=f"let {VARIABLE} name a folder with as much space for each rank",
        ) from error
    return file


def _failed(folder: str, how: str, error: OSError) -> IrcError:
    return IrcError(
        "offload-storage",
        f"'{folder}' cannot be {how}",
        because=error.strerror or f"{error}",
        help=f"let {VARIABLE} name a folder on a disk of this machine that you may write to",
    )
