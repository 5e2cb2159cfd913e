"""Ranks that compute beside the one that is timed, as they do in a run.

Ranks of a machine share its last cache and its memory: on two cores with 32 MiB of cache, kernels
of a Llama's step on 2 ranks take 5 % longer beside the other rank than alone. So each core that a
run would give to another rank has one here, which calls the plan again and again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch

from irc.cluster.cpus import on_all_cpus
from irc.cluster.host import num_cores
from irc.errors import InternalError
from irc.frontends.torch.named import import_all
from irc.plan.load import LoadedPlan, load_plan
from irc.runtime.processes import end_with_parent
from irc.tune.alone import rank_alone

READY = "ready"


@contextmanager
def ranks_beside(loaded: LoadedPlan, threads: int, imports: Sequence[str] = ()) -> Generator[None]:
    """Have as many other ranks of a plan compute as there are cores for, until the end.

    Args:
        loaded: a plan with a folder.
        threads: of each rank.
        imports: files and modules with the user's own ops, as ``irc tune --import`` has them.

    Raises:
        InternalError: one of them does not run the plan.
    """
    others = min(loaded.plan.device_mesh.num_ranks, num_cores() // threads) - 1
    command = [sys.executable, "-m", "irc.tune.beside", str(loaded.folder), str(threads)]
    command += ["--trust"] if loaded.is_known else []
    command += [word for name in imports for word in ("--import", name)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with on_all_cpus():
            for rank in range(1, others + 1):
                own = [*command, "--rank", str(rank)]
                processes.append(
                    subprocess.Popen(own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
                )
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY.encode():
                raise InternalError(f"a rank beside the one that is timed ended: {command}")
        yield
        if any(process.poll() is not None for process in processes):
            raise InternalError(f"a rank ended beside the one that was timed: {command}")
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()  # and its time counts as that of a child


def main(argv: Sequence[str] | None = None) -> int:
    """Call a plan as one of its ranks until the parent has seen enough."""
    parser = argparse.ArgumentParser(prog="irc.tune.beside", description=__doc__)
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("threads", type=int, help="of a rank")
    parser.add_argument("--rank", type=int, required=True, help="whose part is computed")
    parser.add_argument("--trust", action="store_true", help="run its code, whoever made it")
    parser.add_argument("--import", metavar="FILE.py|MODULE", dest="imports", action="append",
                        default=[], help="import it before")  # fmt: skip
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with_parent()
    # Whatever the user's modules and ops print, the parent reads one line.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_all(args.imports)
    torch.set_num_threads(args.threads)
    run = rank_alone(load_plan(args.plan, trust=args.trust), args.rank, args.threads)
    run()
    print(READY, file=answer, flush=True)
    while True:
        run()


if __name__ == "__main__":
    sys.exit(main())
