"""How fast the folder is that saved activations go to."""

from __future__ import annotations

import tempfile
import time
from statistics import median

from irc.runtime.offload_disk import scratch_folder


def disk_bytes_per_s(num_bytes: int, rounds: int = 3) -> float:
    """Return how fast a file is written again, or read, whichever takes longer.

    It is where saved activations go (``IRC_SCRATCH``); 0 where nothing can be written there. The
    system may keep it in its memory, as it does those.
    """
    content = memoryview(bytearray(num_bytes))
    try:
        with tempfile.TemporaryFile(buffering=0, dir=scratch_folder()) as file:
            seconds: list[float] = []
            for _ in range(1 + rounds):
                for move in (file.write, file.readinto):
                    file.seek(0)
                    start = time.perf_counter()
                    move(content)
                    seconds.append(time.perf_counter() - start)
    except OSError:
        return 0.0
    # The first time it gets its place on the disk.
    return num_bytes / max(median(seconds[2::2]), median(seconds[3::2]))
