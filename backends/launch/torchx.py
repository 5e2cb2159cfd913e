"""A script that gives the plan to TorchX, which knows Kubernetes, Slurm, AWS Batch and others."""

from __future__ import annotations

import shlex

from irc.backends.launch.job import WORKER, Job


def torchx(job: Job) -> str:
    """Return a script around TorchX's own component ``dist.ddp``.

    ``SCHEDULER`` names the scheduler (default: processes of this machine). Options of the worker
    may follow the script's name.
    """
    asked = ["-j", f"{job.nodes}x{job.ranks_per_node}", "--name", job.label, "-m", WORKER]
    if job.gpu:
        asked += ["--gpu", str(job.ranks_per_node)]
    if job.launching.image:
        asked += ["--image", job.launching.image]
    return (
        "#!/bin/sh\n"
        "# Gives a plan to TorchX; options of the worker may follow.\n"
        f"{job.comment}"
        "set -eu\n"
        f"plan={shlex.quote(job.place)}\n"
        'exec torchx run --scheduler "${SCHEDULER:-local_cwd}" \\\n'
        f'    dist.ddp {shlex.join(asked)} -- "$plan" "$@"\n'
    )
