"""What searches of one plan share: the stages of a pipeline are mostly the same ops on one mesh."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Event, Lock

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.search.options import Known


class Stopped(Exception):  # noqa: N818 - nobody asks for what the search would say
    """Another search of the plan failed, or the user has ended it."""


@dataclass(frozen=True)
class Shared:
    """Cost models and what is known of ops under them, of one plan; threads may share it.

    Attributes:
        costs: by cluster, mesh and the mesh of the whole run.
        known: by the identity of a cost model, which lives as long.
        turn: of the search that builds its problem; the next finds what it has looked up.
        stops: set where no search is wanted any more: a process ends when its threads have.
    """

    costs: dict[Hashable, ClusterCost] = field(default_factory=dict[Hashable, ClusterCost])
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    turn: Lock = field(default_factory=Lock)
    stops: Event = field(default_factory=Event)


SHARED: ContextVar[Shared | None] = ContextVar("irc_shared_searches", default=None)
"""Set where several searches follow each other (:mod:`irc.programs.placing`)."""


@contextmanager
def sharing(shared: Shared) -> Generator[None]:
    """Let what is planned meanwhile look up, and add to, what plans before it looked up."""
    token = SHARED.set(shared)
    try:
        yield
    finally:
        SHARED.reset(token)


def of_plan() -> Shared:
    """Return what the searches of one plan share: with those of other plans, where they may."""
    outer = SHARED.get()
    return Shared() if outer is None else Shared(outer.costs, outer.known)


TURN: ContextVar[ExitStack | None] = ContextVar("irc_turn", default=None)


@contextmanager
def turn() -> Generator[None]:
    """Build a problem when no other search of the plan does, until :func:`end_turn`.

    Raises:
        Stopped: the search is not wanted any more.
    """
    shared = SHARED.get()
    assert shared is not None
    with ExitStack() as held:
        held.enter_context(shared.turn)
        TURN.set(held)
        _check_wanted()
        yield


def end_turn() -> None:
    """Let another search build its problem: this one's is handed to a solver.

    Raises:
        Stopped: the search is not wanted any more.
    """
    if (held := TURN.get()) is not None:
        held.close()
        _check_wanted()


def _check_wanted() -> None:
    if (shared := SHARED.get()) is not None and shared.stops.is_set():
        raise Stopped


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
        # Of two threads that come at once, the first one's is taken.
        shared.costs.setdefault(key, ClusterCost(find_cluster(cluster), mesh, within=within))
    return shared.costs[key]


def known_of(cost: ClusterCost) -> Known:
    """Return what is known of ops under a cost model; nothing where no search shares it."""
    shared = SHARED.get()
    if shared is None or not any(cost is own for own in shared.costs.values()):
        return Known()
    return shared.known.setdefault(id(cost), Known())
