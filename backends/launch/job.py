"""What is started: how many processes on how many nodes, which GPUs, and where the plan lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from irc.cluster.launching import NOTHING_ASKED, Launching
from irc.cluster.load import THIS_HOST, find_cluster, of_all_kinds
from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.plan.schema import Plan

WORKER = "irc.runtime.worker"
PORT = 29500
UNNAMED = "GPU"
"""A GPU of which nothing is known but that there is one."""


@dataclass(frozen=True)
class Job:
    """How many processes start where.

    Attributes:
        ranks: of the plan.
        nodes: machines; each starts as many of the ranks.
        folder: where the plan lies; None for a script inside it, which finds it by itself.
        gpu: what each rank computes on; empty where kernels are for CPUs.
        launching: what the cluster, or the user, says to launchers.
        note: what the file's reader should know, one line.
    """

    ranks: int
    nodes: int = 1
    folder: Path | None = None
    gpu: str = ""
    launching: Launching = NOTHING_ASKED
    note: str = ""

    @property
    def ranks_per_node(self) -> int:
        """Processes that each machine starts."""
        return self.ranks // self.nodes

    @property
    def name(self) -> str:
        """A job name of harmless characters, from the folder's name."""
        own = "" if self.folder is None else self.folder.name
        return re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-.")[:48] or "irc"

    @property
    def label(self) -> str:
        """The name as Kubernetes and clouds take it: small letters, digits and dashes.

        >>> Job(4, folder=Path("/plans/My_Plan.v2")).label
        'irc-my-plan-v2'
        """
        return f"irc-{re.sub(r'[^a-z0-9]+', '-', self.name.lower()).strip('-')}".rstrip("-")

    @property
    def comment(self) -> str:
        """The note as a line of a script or manifest; empty where there is none."""
        return f"# {self.note}\n" if self.note else ""

    @property
    def place(self) -> str:
        """The plan's folder, for files that name it.

        Raises:
            ValueError: the job has none.
        """
        if self.folder is None:
            raise ValueError("this launch file names the plan's folder, and the job has none")
        return str(self.folder)


def job_of(
    plan: Plan, ranks: int, folder: Path | None, nodes: int | None, launching: Launching
) -> Job:
    """Return the job of a plan on the cluster that it was planned for.

    Args:
        plan: of one rank, or of any part of a plan of parts: they are for one cluster.
        ranks: of the whole plan.
        folder: where it lies.
        nodes: machines; None for as many as the cluster has for these ranks.
        launching: the user's own words, which go before the cluster's.

    Raises:
        IrcError: ``option-value`` where the ranks do not divide among the nodes.
    """
    name = of_all_kinds(plan.cluster or THIS_HOST)
    note = ""
    try:
        cluster = find_cluster(name)
        gpu = cluster.device.name
    except IrcError as error:
        if error.code != "file-missing":
            raise
        # A plan is carried to where it runs, and its cluster file often is not.
        cluster, gpu = find_cluster(THIS_HOST), UNNAMED
        text = "".join(char for char in name if char.isprintable())
        note = f"The cluster file {text} is not here: --nodes and other options say what it would."
    if nodes is None:
        nodes = nodes_for(cluster, ranks)
    if nodes < 1 or ranks % nodes:
        raise IrcError(
            "option-value",
            f"{ranks} ranks do not divide among {nodes} nodes",
            help=f"use one of: {', '.join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)}",
        )
    if plan.backend == "cpu" or (cluster.device.cores and gpu != UNNAMED):
        gpu = ""
    both = Launching(**{**dict(cluster.launching), **dict(launching)})
    return Job(ranks, nodes, folder, gpu, both, note)


def nodes_for(cluster: Cluster, ranks: int) -> int:
    """Return how many nodes of a cluster share some ranks equally, the fewest that hold them.

    A cluster of single wires does not say what a node is: 1.

    >>> nodes_for(find_cluster("4x8xH100"), 16), nodes_for(find_cluster("4x8xH100"), 20)
    (2, 4)
    """
    inside = [link.devices for link in cluster.links if not link.tree]
    if cluster.device.cores or not inside or len(inside) == len(cluster.links):
        return 1
    least = -(-ranks // inside[-1])
    return next(nodes for nodes in range(max(1, least), ranks + 1) if ranks % nodes == 0)
