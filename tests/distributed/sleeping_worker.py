"""A worker that never ends by itself; it leaves a file when it has come that far."""

import os
import sys
import time
from pathlib import Path

from irc.runtime.worker import main


def load(*_: object) -> list[object]:
    """Kernels that take for ever."""
    Path(os.environ["IRC_REPORT"], f"asleep-{os.environ['RANK']}").touch()
    time.sleep(600)
    return []


if __name__ == "__main__":
    sys.exit(main(load=load))
