"""A script that starts the ranks by ssh, for machines without a scheduler."""

from __future__ import annotations

import shlex

from irc.backends.launch.job import PORT, WORKER, Job


def ssh(job: Job) -> str:
    """Return a script for bash: torchrun on each host, ended everywhere when it fails on one.

    The plan lies under the same path on each, and ``torchrun`` there is that of an environment with
    irc; ranks meet at the first one. Options of the worker may follow the script's name.
    """
    hosts = job.launching.hosts.replace(",", " ")
    named = ': "${HOSTS:?name them, the first one first}"'
    if hosts:
        named = f"HOSTS={shlex.quote(hosts)}"
    return (
        "#!/bin/bash\n"
        "# Starts the ranks of a plan on several machines; options of the worker may follow.\n"
        f"{job.comment}"
        "set -eu\n"
        f"plan={shlex.quote(job.place)}\n"
        f"{named}\n"
        'read -ra hosts <<< "$HOSTS"\n'
        f'if [ "${{#hosts[@]}}" -ne {job.nodes} ]; then\n'
        f'    echo "the plan runs on {job.nodes} hosts, and HOSTS names ${{#hosts[@]}}" >&2\n'
        "    exit 2\n"
        "fi\n"
        "head=${hosts[0]#*@}\n"
        f"{_START}"
        f'words=$(printf " %q" torchrun --nnodes {job.nodes} --nproc-per-node '
        f'{job.ranks_per_node} --rdzv-id "irc-$$" --rdzv-backend c10d '
        f'--rdzv-endpoint "$head:{PORT}" -m {WORKER} "$plan" "$@")\n'
        'for host in "${hosts[@]}"; do\n'
        "    # A terminal there, so that a rank ends with its connection.\n"
        '    ssh -tt -o BatchMode=yes "$host" "exec$words" < /dev/null &\n'
        "done\n"
        f"{_WAIT}"
    )


_START = """\
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
"""
_WAIT = """\
status=0
for _ in "${hosts[@]}"; do
    wait -n || { status=$?; break; }
done
exit "$status"
"""
