"""The script for torchrun, and its command as JSON for launchers of one's own."""

from __future__ import annotations

import json
import shlex

from irc.backends.launch.job import PORT, WORKER, Job


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
        f"{job.comment}"
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


def as_json(job: Job) -> str:
    """Return the command of one node, for launchers of one's own; options of the worker may follow.

    It is the script for torchrun, so that ranks meet as they do there: on several nodes HEAD names
    the first one.
    """
    command = ["sh", "-c", torchrun(job), job.name]
    content = {"command": command, "nodes": job.nodes, "ranks_per_node": job.ranks_per_node}
    return json.dumps(content, indent=1) + "\n"
