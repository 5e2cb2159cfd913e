"""Unequal devices under stages: each is cut, placed and priced by the devices that it runs on.

A stage runs at the slowest of its own devices. So a stage on fast ones gets more layers, and may
hold what they hold, where a stage on slow or small ones gets fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.cluster.load import find_cluster, of_kinds
from irc.dialects.placement import Mesh
from irc.plan.parts import ranks_by_place
from irc.schedule.actions import Schedule


def clusters_by_place(cluster: str, mesh: Mesh) -> tuple[str, ...]:
    """Return by place of the pipe axis the name of the cluster as the devices there see it.

    Args:
        cluster: a name or file.
        mesh: of the whole run, ranks laid out in the order of devices.

    Raises:
        IrcError: what :func:`irc.cluster.load.find_cluster` raises.
    """
    kinds = [
        kind for kind, (_, count) in enumerate(find_cluster(cluster).unequal) for _ in range(count)
    ]
    places = ranks_by_place(mesh)
    if not kinds or mesh.num_ranks > len(kinds):  # which is an error of its own
        return (cluster,) * len(places)
    own = [sorted({kinds[rank] for rank in ranks}) for ranks in places]
    if all(each == own[0] for each in own):
        return (cluster,) * len(places)
    return tuple(of_kinds(cluster, each) for each in own)


def clusters_by_stage(cluster: str, mesh: Mesh, schedule: Schedule) -> tuple[str, ...]:
    """Return the same by part of the model: of two copies of a part, as the first's devices do."""
    places = clusters_by_place(cluster, mesh)
    return tuple(places[schedule.rank_of[stage]] for stage in schedule.paths[0])


def differ(clusters: Sequence[str]) -> bool:
    """Return whether stages are on unequal devices."""
    return len(set(clusters)) > 1
