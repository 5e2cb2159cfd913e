"""A worker of `irc run` that writes down on which addresses the processes of its run listen."""

import contextlib
import json
import os
import sys
from pathlib import Path

from irc.runtime.segments import load_segments
from irc.runtime.worker import main

LISTENS = "0A"


def family(launcher: int) -> list[int]:
    """Return a process and its children."""
    processes = [launcher]
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit():
                fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                processes += [int(place.name)] if int(fields[1]) == launcher else []
    return processes


def sockets_of(processes: list[int]) -> set[str]:
    """Return the sockets that processes have open."""
    sockets: set[str] = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            links = (str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
            sockets.update(link[8:-1] for link in links if link.startswith("socket:["))
    return sockets


def listening(launcher: int) -> list[str]:
    """Return the addresses, as Linux writes them, on which a launcher and its processes listen."""
    own = sockets_of(family(launcher))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTENS and row[9] in own]


def load(*args: object) -> object:
    """Load, and write down what is open by now: the ranks have met."""
    if os.environ["RANK"] == "0":
        Path(os.environ["IRC_TEST_LISTENING"]).write_text(json.dumps(listening(os.getppid())))
    return load_segments(*args)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(load=load))  # type: ignore[arg-type]
