"""The batch script for Slurm: one task a node, in which torchrun starts the ranks."""

from __future__ import annotations

import shlex

from irc.backends.launch.job import PORT, WORKER, Job


def slurm(job: Job) -> str:
    """Return the script for `sbatch`; options of the worker may follow it there."""
    if job.folder is None:
        # Slurm runs a copy of the script, which does not know where the plan is.
        plan = "plan=${1:?usage: sbatch slurm.sbatch PLAN}\nshift\n"
    else:
        plan = f"plan={shlex.quote(job.place)}\n"
    asked = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.ranks_per_node,
        "gpus-per-node": job.ranks_per_node if job.gpu else "",
        "partition": job.launching.partition,
        "account": job.launching.account,
        "time": job.launching.time,
    }
    directives = "".join(f"#SBATCH --{key}={value}\n" for key, value in asked.items() if value)
    return (
        "#!/bin/bash\n"
        f"{directives}{job.comment}"
        "set -eu\n"
        f"{plan}"
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        f"srun torchrun --nnodes {job.nodes} --nproc-per-node {job.ranks_per_node} \\\n"
        '    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d '
        f'--rdzv-endpoint "$head:{PORT}" \\\n'
        f'    -m {WORKER} "$plan" "$@"\n'
    )
