"""What starts a plan, for each launcher.

Names from outside (paths, the folder's name) are data: they are quoted for the shell, manifests are
written by a library that quotes them, and where a format has no quoting (``#SBATCH`` lines) only
harmless characters of them are kept.

To add a launcher: a file here with a function from a job to a text, and a line of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from irc.backends.launch.job import Job, job_of
from irc.backends.launch.kubeflow import kubeflow
from irc.backends.launch.skypilot import skypilot
from irc.backends.launch.slurm import slurm
from irc.backends.launch.ssh import ssh
from irc.backends.launch.torchrun import as_json, torchrun
from irc.backends.launch.torchx import torchx
from irc.cluster.launching import Launching
from irc.errors import IrcError, did_you_mean
from irc.plan.load import load_plan
from irc.plan.parts_files import is_parts, load_parts
from irc.plan.schema import Plan


@dataclass(frozen=True)
class Format:
    """A kind of launch file.

    Attributes:
        write: its text.
        takes: what of `Launching` it has a place for.
    """

    write: Callable[[Job], str]
    takes: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "torchrun": Format(torchrun),
    "slurm": Format(slurm, ("partition", "account", "time")),
    "kubeflow": Format(kubeflow, ("image",)),
    "skypilot": Format(skypilot, ("image",)),
    "torchx": Format(torchx, ("image",)),
    "ssh": Format(ssh, ("hosts",)),
    "json": Format(as_json),
}


def render_launch(
    folder: str, form: str, nodes: int | None = None, options: Mapping[str, str] | None = None
) -> str:
    """Return the file that starts a plan.

    Args:
        folder: of the plan.
        form: a name of `FORMATS`.
        nodes: how many machines share the ranks; None for as many as the plan's cluster has.
        options: values for fields of `irc.cluster.launching.Launching`, before the cluster's own.

    Raises:
        IrcError: there is no such plan, its ranks do not divide among the nodes, or an option has
            no place in the format or a wrong value.
    """
    if form not in FORMATS:
        raise IrcError(
            "option-value", f"no launch format '{form}'", help=did_you_mean(form, FORMATS)
        )
    chosen = FORMATS[form]
    for key in options or ():
        if key not in chosen.takes:
            able = [name for name, each in FORMATS.items() if key in each.takes]
            raise IrcError(
                "option-value",
                f"a launch file for {form} has no place for --{key}",
                help=f"--format {' or '.join(able)} has" if able else "",
            )
    try:
        launching = Launching(**(options or {}))
    except ValueError as error:
        raise IrcError("option-value", str(error).replace("launch.", "--", 1)) from error
    place = Path(folder).absolute()
    if is_parts(folder):
        parts = load_parts(folder)
        plan, ranks = parts.parts[0]["F"].plan, parts.mesh.num_ranks
    else:
        plan = load_plan(folder).plan
        ranks = plan.device_mesh.num_ranks
    # A line break would survive quoting, but begin a line that Slurm might read as its own.
    if any(ord(char) < 32 or ord(char) == 127 for char in str(place)):
        raise IrcError(
            "option-value",
            f"the path of the plan holds control characters: {str(place)!r}",
            help="rename the folder",
        )
    return chosen.write(job_of(plan, ranks, place, nodes, launching))


def launch_files(plan: Plan) -> dict[str, str]:
    """Return the launch files that a plan's folder holds: name to text, free of paths.

    The script for torchrun starts all ranks on one machine; that for Slurm is for the nodes of the
    plan's cluster, where the ranks divide among them.
    """
    ranks = plan.device_mesh.num_ranks
    try:
        batch = job_of(plan, ranks, None, None, Launching())
    except IrcError:  # a part of a plan may have ranks that do not fill its nodes
        batch = Job(ranks)
    return {"launch/torchrun.sh": torchrun(Job(ranks)), "launch/slurm.sbatch": slurm(batch)}
