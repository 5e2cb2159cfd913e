"""A task of SkyPilot, for `sky launch`."""

from __future__ import annotations

import shlex

from irc.backends.launch.job import PORT, UNNAMED, WORKER, Job
from irc.backends.launch.manifest import to_yaml
from irc.errors import IrcError

_NOTE = """\
# For sky launch: the plan is copied to each node, whose image or set-up brings irc and PyTorch.
"""
PLAN = "/tmp/irc-plan"


def skypilot(job: Job) -> str:
    """Return the task: nodes, GPUs, the plan as a file mount, and torchrun on each node.

    Raises:
        IrcError: ``option-value`` where nothing says what the GPUs are.
    """
    if job.gpu == UNNAMED:
        raise IrcError(
            "option-value",
            "SkyPilot asks for GPUs by their names, and the cluster file is not here",
            help="run it where the plan was compiled",
        )
    resources = {
        **({"accelerators": f"{accelerator(job.gpu)}:{job.ranks_per_node}"} if job.gpu else {}),
        **({} if job.gpu else {"cpus": f"{job.ranks_per_node}+"}),
        **({"image_id": f"docker:{job.launching.image}"} if job.launching.image else {}),
    }
    run = (
        'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
        'torchrun --nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" \\\n'
        f'    --nproc-per-node {job.ranks_per_node} --master-addr "$head" --master-port {PORT} \\\n'
        f"    -m {WORKER} {shlex.quote(PLAN)}\n"
    )
    task = {
        "name": job.label,
        "num_nodes": job.nodes,
        "resources": resources,
        "file_mounts": {PLAN: job.place},
        "setup": 'python -c "import irc, torch"\n',
        "run": run,
    }
    return f"{_NOTE}{job.comment}{to_yaml(task)}"


LARGER = {("A100", "80GB"), ("V100", "32GB")}


def accelerator(gpu: str) -> str:
    """Return what SkyPilot calls a GPU.

    >>> accelerator("A100-80GB-SXM"), accelerator("A100-40GB-SXM"), accelerator("H100-80GB-SXM")
    ('A100-80GB', 'A100', 'H100')
    """
    kind, _, rest = gpu.partition("-")
    memory = rest.partition("-")[0]
    # Where two sizes of memory share a name, SkyPilot tells the larger one apart.
    return f"{kind}-{memory}" if (kind, memory) in LARGER else kind
