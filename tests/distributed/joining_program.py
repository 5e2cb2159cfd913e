"""A program of the user's that joins a run: prints whether its numbers are right."""

import atexit
import importlib
import json
import os
import sys
from pathlib import Path

import torch

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.runtime.join import join
from tests.plan.programs import loaded, reference_segments, sharded, sharded_eager

KEPT = []
"""A compiled function that is alive when the interpreter ends."""


def has_left() -> bool:
    """Whether the processes have parted, and none of their threads is there."""
    tasks = Path("/proc/self/task").glob("*/comm")
    gloo = [name for name in (task.read_text() for task in tasks) if "gloo" in name]
    return not torch.distributed.is_initialized() and not gloo


def main() -> None:
    """Join, run, compare; say whether the processes have been left at the very end."""
    atexit.register(lambda: print(json.dumps({"left": has_left()})))

    def make():
        if sys.argv[1] == "yes":
            raise IrcError("capture-failed", "no plan today")
        assert os.environ["RANK"] == "0"
        return loaded(sharded())

    torch.manual_seed(0)
    x, w1, w2 = torch.randn(8, 6), torch.randn(6, 10), torch.randn(10, 6)
    mesh = Mesh.parse("data=2,tensor=2")
    own = {"the program": bytes(32)}
    run = join(make, {"w1": w1, "w2": w2}, mesh, own=own, load=reference_segments)
    KEPT.append(run)
    # As torch.export does: what it defines has the group of now as a default.
    importlib.import_module("torch.distributed.nn.functional")
    expected = sharded_eager(x, w1, w2)
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(run(x), expected, strict=True))
    # A process that leaves early closes connections that others may still wait on.
    torch.distributed.barrier()
    print(json.dumps({"close": close}))
    if sys.argv[1] == "late":
        if os.environ["RANK"] == "2":
            raise ValueError("an error of the program's own")
        torch.distributed.barrier()


if __name__ == "__main__":
    main()
