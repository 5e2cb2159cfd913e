"""What searches of one plan share: the stages of a pipeline are mostly the same ops on one mesh."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.search.options import Known


@dataclass(frozen=True)
class Shared:
    """Cost models and what is known of ops under them, of one plan.

    Attributes:
        costs: by cluster, mesh and the mesh of the whole run.
        known: by the identity of a cost model, which lives as long.
    """

    costs: dict[Hashable, ClusterCost] = field(default_factory=dict[Hashable, ClusterCost])
    known: dict[int, Known] = field(default_factory=dict[int, Known])


SHARED: ContextVar[Shared | None] = ContextVar("irc_shared_searches", default=None)
"""Set where several searches follow each other (:mod:`irc.programs.stage_plans`)."""


@contextmanager
def sharing(shared: Shared | None = None) -> Generator[None]:
    """Let what is planned meanwhile look up, and add to, what plans before it looked up.

    Args:
        shared: by what is planned here; None: what is shared around it, or else something new.
    """
    token = SHARED.set(shared or SHARED.get() or Shared())
    try:
        yield
    finally:
        SHARED.reset(token)


def cost_on(cluster: str, mesh: Mesh, within: Mesh | None) -> ClusterCost:
    """Return the cost model of a mesh: the one of the searches before, where they share it.

    Args:
        cluster: a preset or a file.
        mesh: of the search.
        within: of the whole run, where ``mesh`` is that of one stage.

    Raises:
        IrcError: what :func:`irc.cluster.load.find_cluster` raises.
    """
    shared = SHARED.get()
    if shared is None:
        return ClusterCost(find_cluster(cluster), mesh, within=within)
    key = cluster, mesh, None if within == mesh else within
    if key not in shared.costs:
        shared.costs[key] = ClusterCost(find_cluster(cluster), mesh, within=within)
    return shared.costs[key]


def known_of(cost: ClusterCost) -> Known:
    """Return what is known of ops under a cost model; nothing where no search shares it."""
    shared = SHARED.get()
    if shared is None or not any(cost is own for own in shared.costs.values()):
        return Known()
    return shared.known.setdefault(id(cost), Known())
