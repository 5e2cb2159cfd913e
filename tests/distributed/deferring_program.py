"""One of some processes that make groups; prints what the threads of gloo then have.

Of each its policy and its processors; then those of the thread that computes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from irc.dialects.placement import Mesh
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.held import device_mesh
from irc.runtime.network_threads import NAME
from irc.runtime.processes import place_of, start_processes


def state(thread: int) -> tuple[int, list[int]]:
    """Return the policy and the processors of a thread; 0 is this one."""
    return os.sched_getscheduler(thread), sorted(os.sched_getaffinity(thread))


def states_of_network() -> list[tuple[int, list[int]]]:
    """Return those of the threads that receive and send."""
    tasks = Path("/proc/self/task").iterdir()
    own = [task for task in tasks if (task / "comm").read_text().strip() == NAME]
    return [state(int(task.name)) for task in own]


def main() -> None:
    """Join, make groups, say what there is."""
    rank, world = place_of(os.environ)
    start_processes(rank, world)
    states = [states_of_network()]
    mesh = Mesh.parse(f"data=2,tensor={world // 2}")
    kept = TorchCommunicator.of(mesh, rank)
    states.append(states_of_network())
    device_mesh(mesh)
    states.append(states_of_network())
    print(json.dumps([states, state(0)]))
    sys.stdout.flush()
    del kept
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
