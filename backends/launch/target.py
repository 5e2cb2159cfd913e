"""What starts a plan: a script for torchrun, one for Slurm, or the command as JSON.

Names from outside (paths, the folder's name) are data: they are quoted for the shell, and where a
format has no quoting (``#SBATCH`` lines) only harmless characters of them are kept.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from irc.errors import IrcError, did_you_mean
from irc.plan.load import load_plan
from irc.plan.parts_files import is_parts, load_parts
from irc.plan.schema import Plan

WORKER = "irc.runtime.worker"
PORT = 29500


@dataclass(frozen=True)
class Job:
    """How many processes start where.

    Attributes:
        ranks: of the plan.
        nodes: machines; each starts as many of the ranks.
        folder: where the plan lies; None for a script inside it, which finds it by itself.
    """

    ranks: int
    nodes: int = 1
    folder: Path | None = None

    @property
    def ranks_per_node(self) -> int:
        """Processes that each machine starts."""
        return self.ranks // self.nodes

    @property
    def name(self) -> str:
        """A job name of harmless characters, from the folder's name."""
        own = "" if self.folder is None else self.folder.name
        return re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-.")[:48] or "irc"


def render_launch(folder: str, form: str, nodes: int = 1) -> str:
    """Return the file that starts a plan.

    Args:
        folder: of the plan.
        form: ``torchrun``, ``slurm`` or ``json``.
        nodes: how many machines share the ranks.

    Raises:
        IrcError: there is no such plan, or its ranks do not divide among the nodes.
    """
    if form not in FORMATS:
        raise IrcError(
            "option-value", f"no launch format '{form}'", help=did_you_mean(form, FORMATS)
        )
    several = is_parts(folder)
    mesh = load_parts(folder).mesh if several else load_plan(folder).plan.device_mesh
    ranks = mesh.num_ranks
    if nodes < 1 or ranks % nodes:
        raise IrcError(
            "option-value",
            f"{ranks} ranks do not divide among {nodes} nodes",
            help=f"use one of: {', '.join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)}",
        )
    place = Path(folder).absolute()
    # A line break would survive quoting, but begin a line that Slurm might read as its own.
    if any(ord(char) < 32 or ord(char) == 127 for char in str(place)):
        raise IrcError(
            "option-value",
            f"the path of the plan holds control characters: {str(place)!r}",
            help="rename the folder",
        )
    return FORMATS[form](Job(ranks, nodes, place))


def launch_files(plan: Plan) -> dict[str, str]:
    """Return the launch files that a plan's folder holds: name to text, free of paths."""
    job = Job(plan.device_mesh.num_ranks)
    return {"launch/torchrun.sh": torchrun(job), "launch/slurm.sbatch": slurm(job)}


def torchrun(job: Job) -> str:
    """Return a shell script; on several nodes it is run on each, with HEAD naming the first."""
    if job.nodes == 1:
        meeting = (
            '--nnodes 1 --rdzv-backend c10d --rdzv-endpoint "$meet/rendezvous" '
            '--rdzv-conf store_type=file --rdzv-id "irc-$$" --local-addr 127.0.0.1'
        )
        note = _ONE_MACHINE
    else:
        meeting = (
            f'--nnodes {job.nodes} --rdzv-backend c10d --rdzv-id "${{RDZV_ID:-irc}}" '
            f'--rdzv-endpoint "${{HEAD:?name the first node}}:{PORT}"'
        )
        note = ""
    return (
        "#!/bin/sh\n"
        "# Starts the ranks of a plan on this machine; options of the worker may follow.\n"
        "set -eu\n"
        f"{_find_plan(job)}{note}"
        f"exec torchrun {meeting} --nproc-per-node {job.ranks_per_node} \\\n"
        f'    -m {WORKER} "$plan" "$@"\n'
    )


_ONE_MACHINE = """\
# Nothing of a run on one machine listens on its network: the ranks meet in files, which go when
# this process (torchrun's by then) has ended.
case $(uname) in Darwin) lo=lo0 ;; *) lo=lo ;; esac
meet=$(mktemp -d)
export GLOO_SOCKET_IFNAME="$lo" IRC_STORE="$meet/store" TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
(while kill -0 $$ 2>/dev/null; do sleep 1; done; rm -rf "$meet") </dev/null >/dev/null 2>&1 &
"""


def _find_plan(job: Job) -> str:
    if job.folder is None:
        return 'plan=$(cd -- "$(dirname -- "$0")/.." && pwd)\n'
    return f"plan={shlex.quote(str(job.folder))}\n"


def slurm(job: Job) -> str:
    """Return a batch script: one task a node, in which torchrun starts the ranks."""
    if job.folder is None:
        # Slurm runs a copy of the script, from which the plan cannot be found.
        plan = "plan=${1:?usage: sbatch slurm.sbatch PLAN}\nshift\n"
    else:
        plan = f"plan={shlex.quote(str(job.folder))}\n"
    return (
        "#!/bin/bash\n"
        f"#SBATCH --job-name={job.name}\n"
        f"#SBATCH --nodes={job.nodes}\n"
        f"#SBATCH --ntasks={job.nodes}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --cpus-per-task={job.ranks_per_node}\n"
        "set -eu\n"
        f"{plan}"
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        f"srun torchrun --nnodes {job.nodes} --nproc-per-node {job.ranks_per_node} \\\n"
        '    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d '
        f'--rdzv-endpoint "$head:{PORT}" \\\n'
        f'    -m {WORKER} "$plan" "$@"\n'
    )


def as_json(job: Job) -> str:
    """Return the command of one node, for launchers of one's own; options of the worker may follow.

    It is the script for torchrun, so that ranks meet as they do there: on several nodes HEAD names
    the first one.
    """
    command = ["sh", "-c", torchrun(job), job.name]
    content = {"command": command, "nodes": job.nodes, "ranks_per_node": job.ranks_per_node}
    return json.dumps(content, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Job], str]] = {
    "json": as_json,
    "slurm": slurm,
    "torchrun": torchrun,
}
