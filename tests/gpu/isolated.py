"""Each slice in a process of its own: one that ends, or hangs, takes nothing else with it.

After a kernel has touched what is not its own, every later call of that process fails; the slice
goes on behind the item in another process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.record import Record

LOST = 4
"""Exit status of a process whose device fails every call from now on."""
RESTARTS = 4
"""Times that a slice goes on after a process was lost."""


def run_apart(name: str, arguments: Sequence[str], record: Record, seconds: float) -> None:
    """Run a slice in other processes and take what they find.

    Args:
        name: of the slice.
        arguments: of this command, for the other processes.
        record: gets the rows.
        seconds: for all of them together.
    """
    until, skip = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory(prefix="irc-gpu-") as folder:
        for number in range(RESTARTS + 1):
            path = Path(folder) / f"{number}.json"
            own = ["--only", name, "--skip", str(skip), "--child", str(path)]
            command = [sys.executable, "-m", "tests.gpu", *arguments, *own]
            left = until - time.monotonic()
            try:
                code = subprocess.run(command, check=False, timeout=max(left, 1)).returncode
            except subprocess.TimeoutExpired:
                record.take(path)
                record.add(name, f"time is up after {seconds:.0f} s, at {record.at[2] or name}")
                return
            record.at = ("", -1, "")
            record.take(path)
            if code in (0, 1):
                return
            slice_, at, item = record.at
            if code != LOST:
                what = item if slice_ == name else name
                record.fail(name, what, f"{what}: the process ended with status {code}")
            if slice_ != name:
                return
            skip = at + 1
        record.fail(name, name, f"{name}: given up after {RESTARTS + 1} processes")
