"""Memory of a machine that outlives the processes of a launcher: what a rank leaves there.

    /dev/shm/irc-UID/LAUNCHER/RUN/RANK-SLOT.data   bytes of tensors, of one rank of this machine
    /dev/shm/irc-UID/LAUNCHER/RUN/RANK-SLOT.head   what they are; there once all bytes are

Torchrun ends all processes of a job where one is lost, and starts others: its launcher on each
machine lives on, by whose number they know what those before them left. What belongs to a launcher
that is gone is removed by the next one that keeps something. A rank writes to two slots in turn, so
that one of them is whole whenever the process ends.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
from pathlib import Path

import torch

from irc.errors import IrcError
from irc.runtime.processes import RUN_VARIABLE

MEMORY = Path("/dev/shm")
SLOTS = ("0", "1")


class Shelf:
    """What one rank of a machine leaves behind, by slot.

    Args:
        folder: of the launcher and run.
        number: of the rank on its machine.

    Attributes:
        resumed: the slot that the run went on from, which is written to last; "" for none.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._rooms: dict[str, torch.Tensor] = {}
        self.resumed = ""

    def heads(self) -> dict[str, str]:
        """Return what slots that are whole say of themselves."""
        paths = {slot: self._path(slot, "head") for slot in SLOTS}
        return {slot: path.read_text() for slot, path in paths.items() if path.is_file()}

    def read(self, slot: str) -> torch.Tensor:
        """Return the bytes of a slot, which stay as they are while the tensor is held."""
        path = self._path(slot, "data")
        size = path.stat().st_size
        return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)

    def room(self, slot: str, size: int) -> torch.Tensor:
        """Return memory to write to, which is no slot until :meth:`publish`.

        Args:
            slot: is taken; whoever reads it keeps its bytes.
            size: in bytes.

        Raises:
            IrcError: ``checkpoint-failed`` where the machine has no such memory.
        """
        self._path(slot, "head").unlink(missing_ok=True)
        room = self._rooms.get(slot)
        if room is None or len(room) != size:
            self._rooms.pop(slot, None)
            room = self._rooms[slot] = self._new_room(slot, size)
        return room

    def publish(self, slot: str, head: str) -> None:
        """Make a slot of what was written to its room.

        Raises:
            IrcError: ``checkpoint-failed`` where the machine has no memory for what is said of it.
        """
        partial = self._path(slot, "partial")
        try:
            partial.write_text(head)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise _no_memory(len(head), error) from error
        partial.rename(self._path(slot, "head"))

    def remove(self) -> None:
        """Give the memory of all slots back."""
        self._rooms.clear()
        for path in self._folder.glob(f"{self._number}-*"):
            path.unlink(missing_ok=True)
        for folder in (self._folder, self._folder.parent):
            try:
                folder.rmdir()
            except OSError:  # other ranks of the machine have something there
                return

    def remove_at_exit(self) -> None:
        """Give the memory back when the process ends by itself, and not by an error or a signal."""
        owner = os.getpid()

        def leave() -> None:
            if os.getpid() == owner and not hasattr(sys, "last_value"):
                self.remove()

        atexit.register(leave)

    def _path(self, slot: str, kind: str) -> Path:
        return self._folder / f"{self._number}-{slot}.{kind}"

    def _new_room(self, slot: str, size: int) -> torch.Tensor:
        path = self._path(slot, "data")
        try:
            self._folder.parents[1].mkdir(mode=0o700, exist_ok=True)
            self._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)  # whoever has mapped it keeps it
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # A page that cannot be had later would end the process by a signal.
                os.posix_fallocate(descriptor, 0, max(size, 1))
            finally:
                os.close(descriptor)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _no_memory(size, error) from error
        return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _no_memory(size: int, error: OSError) -> IrcError:
    return IrcError(
        "checkpoint-failed",
        f"'{MEMORY}' cannot keep the {size:,} bytes that this rank holds: "
        f"{error.strerror or error}",
        because="step.keep needs two copies of what the ranks of a machine hold",
        help="give it more memory (docker run --shm-size=..), or save checkpoints alone",
    )


def shelf_of(run: Path) -> Shelf | None:
    """Return where this process leaves what a run goes on from; None without torchrun.

    Args:
        run: the folder of its checkpoints, by which runs are told apart.

    Raises:
        IrcError: ``checkpoint-failed`` where the memory is another user's.
    """
    if RUN_VARIABLE not in os.environ or not Path("/proc/self/stat").is_file():
        return None
    own = MEMORY / f"irc-{os.getuid()}"
    if own.is_symlink() or own.exists():
        state = own.lstat()
        if own.is_symlink() or state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise IrcError(
                "checkpoint-failed",
                f"'{own}' is not this user's alone",
                because="whoever writes there says what a run goes on from",
                help="remove it",
            )
        _clear(own)
    name = hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:16]
    return Shelf(own / _name(_launcher()) / name, int(os.environ.get("LOCAL_RANK", "0")))


def _launcher() -> int:
    """Return the process that torchrun itself is: the first one above that it gave no rank."""
    process = os.getppid()
    while process > 1:
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes()
        except OSError:
            return process
        if f"{RUN_VARIABLE}=".encode() not in environment:
            return process
        process = int(_stat(process)[1])
    return process


def _name(process: int) -> str:
    """Return a name of a process that no later one has; numbers of containers are their own."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino}-{process}-{_stat(process)[19]}"


def _stat(process: int) -> list[str]:
    """Return what the system says of a process, from its state on (proc(5))."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _clear(own: Path) -> None:
    """Remove what launchers of this container left that are gone."""
    here = f"{Path('/proc/self/ns/pid').stat().st_ino}"
    for folder in own.iterdir():
        space, _, rest = folder.name.partition("-")
        process = rest.partition("-")[0]
        if space != here or not process.isdigit():
            continue
        try:
            is_alive = folder.name == _name(int(process))
        except OSError:
            is_alive = False
        if not is_alive:
            shutil.rmtree(folder, ignore_errors=True)
