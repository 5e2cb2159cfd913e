"""A worker of `irc run` whose rank 1 gets a signal when it has kernels to run."""

import os
import signal
import sys

from irc.runtime.segments import load_segments
from irc.runtime.worker import main


def load(*args: object) -> object:
    """Load, where this is not rank 1."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), getattr(signal, f"SIG{os.environ['IRC_TEST_SIGNAL']}"))
    return load_segments(*args)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(load=load))  # type: ignore[arg-type]
