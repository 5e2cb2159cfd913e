"""A program of the user's that joins a run: prints whether its numbers are right."""

import atexit
import json
import os
import sys

import torch

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.runtime.join import join
from tests.plan.programs import loaded, reference_segments, sharded, sharded_eager


def main() -> None:
    """Join, run, compare; say whether the processes have been left at the very end."""
    atexit.register(lambda: print(json.dumps({"left": not torch.distributed.is_initialized()})))

    def make():
        if sys.argv[1] == "yes":
            raise IrcError("capture-failed", "no plan today")
        assert os.environ["RANK"] == "0"
        return loaded(sharded())

    torch.manual_seed(0)
    x, w1, w2 = torch.randn(8, 6), torch.randn(6, 10), torch.randn(10, 6)
    mesh = Mesh.parse("data=2,tensor=2")
    run = join(make, {"w1": w1, "w2": w2}, mesh, load=reference_segments)
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
