"""A worker of which one rank is killed while it runs."""

import os
import signal
import sys

from irc.runtime.worker import main
from tests.plan.programs import ReferenceSegment


class Dying(ReferenceSegment):
    """Kernels that kill rank 2."""

    def run(self, table: int) -> None:
        if os.environ["RANK"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        super().run(table)


if __name__ == "__main__":
    sys.exit(main(load=lambda plan, segments, _: [Dying(plan, calls) for calls in segments]))
