"""Plans whose order is searched: ``search`` in the place of a schedule's name.

The functions of the stages are planned once with whole backwards and once with the gradients of
inputs and of weights apart; then the order of the step is searched by what these functions and the
messages of this plan take (:mod:`irc.simulate.orders`), within the memory of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from irc.cluster.load import find_cluster
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan import json_text
from irc.plan.parts import PIPE, PartsPlan, make_parts, with_files
from irc.plan.parts_facts import schedule_digest
from irc.plan.training import ORDER, OrderFacts
from irc.programs.schedules import as_functions, schedule_for, searched_stages
from irc.programs.stage_devices import clusters_by_place
from irc.programs.stage_memory import budget_of, check_memory
from irc.schedule.actions import Schedule
from irc.schedule.greedy import Rules, list_schedule
from irc.schedule.named import SEARCH, generate
from irc.schedule.named.stages import v_stages
from irc.schedule.notation import print_schedule
from irc.schedule.shortlist import apart, is_like
from irc.schedule.timeline import Times
from irc.simulate.orders import COMPARED, Orders, Search, best_of, compared
from irc.simulate.parts import all_held, held_at, priced

NO_ORDER = frozenset({"pipeline-memory", "offload-unsupported"})
"""Errors that say that a step cannot be in one order: in another it may."""


def plan_in_order(
    text: str,
    ranks: int,
    micro_batches: int,
    make: Callable[[Schedule], PartsPlan],
    options: Options,
) -> PartsPlan:
    """Plan a step in the order that a user names, or in the one that a search finds.

    Args:
        text: a schedule's name or file; ``search``, or ``search:2`` with two stages a rank.
        ranks: of the pipe axis.
        micro_batches: of a step.
        make: plans the step in an order.
        options: of the step; the mesh is the whole one.

    Raises:
        IrcError: ``schedule-unknown``, ``schedule-size``; ``pipeline-memory`` where no order fits;
            what planning raises.
    """
    chunks = searched_stages(text)
    if chunks is None:
        return make(schedule_for(text, ranks, micro_batches))
    return _searched(text, forms(chunks, ranks, micro_batches), make, options)


def plan_alike(
    text: str, first: PartsPlan, make: Callable[[Schedule], PartsPlan], options: Options
) -> PartsPlan:
    """Plan a step for a further kind of batch so that each rank keeps its weights.

    The order is the first plan's, with as many slots ahead as fit. Where it holds too much for
    these batches, one of the same functions on the same ranks is searched.

    Args:
        text: what the first order was searched by.
        first: the plan whose order was searched.
        make: plans the step in an order.
        options: of the step; the mesh is the whole one.

    Raises:
        IrcError: ``pipeline-memory`` where no such order fits; what planning raises.
    """
    order = first.written
    try:
        return within(make(order), order, first.facts.ahead, budgets_of(options))
    except IrcError as error:
        if error.code not in NO_ORDER:
            raise
    chunks, count = searched_stages(text) or 1, order.num_micro_batches
    alike = [own for own in forms(chunks, len(order.ranks), count) if is_like(own, order)]
    return _searched(text, alike, make, options)


def _searched(
    text: str,
    schedules: Sequence[Schedule],
    make: Callable[[Schedule], PartsPlan],
    options: Options,
) -> PartsPlan:
    plans: list[PartsPlan] = []
    refused: IrcError | None = None
    for schedule in schedules:
        try:
            plans.append(make(schedule))
        except IrcError as error:
            if error.code not in NO_ORDER:
                raise
            refused = refused or error
    budgets = budgets_of(options)
    if refused is not None and not plans:
        raise refused
    cluster = find_cluster(options.cluster).fit(options.mesh)
    searches = [search_of(plan, cluster, budgets) for plan in plans]
    orders = best_of(searches, [compared(plan.schedule) for plan in plans])
    # Each search tries the order for which its plan was made, and that fits.
    assert orders is not None
    best = orders.best.schedule
    form = next(plan for plan in plans if is_like(best, plan.schedule))
    return ordered(form, replace(best, name=text), orders)


def check_order(text: str, ranks: int, micro_batches: int) -> None:
    """Check what a user names as the order of a step, before the long work.

    Raises:
        IrcError: ``schedule-unknown``, ``schedule-size``; what reading and checking a file raise.
    """
    if (chunks := searched_stages(text)) is None:
        schedule_for(text, ranks, micro_batches)
    else:
        forms(chunks, ranks, micro_batches)


def forms(chunks: int, ranks: int, micro_batches: int) -> list[Schedule]:
    """Return an order for each form that a step may have: who has which stages, and what they run.

    Raises:
        IrcError: ``schedule-size`` for a pipeline of one rank.
    """
    if ranks < 2:
        raise IrcError(
            "schedule-size",
            f"the schedule '{SEARCH}' is of a pipeline, and there is one rank",
            because="one rank has no order to choose: it waits for no other",
            help="give the mesh an axis pipe of two ranks or more, or leave out the schedule",
        )
    if chunks == 1:
        plain = generate(COMPARED[0], ranks=ranks, micro_batches=micro_batches)
        return [as_functions(plain), as_functions(apart(plain))]
    looped = [tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks)]
    placements = [(looped, False), (looped, True)]
    if chunks == 2:
        placements.append(([v_stages(rank, ranks) for rank in range(ranks)], True))
    orders = (
        list_schedule(
            placement, micro_batches, Times(), [float(2 * ranks * chunks)] * ranks, Rules(fill=1),
            split=splits,
        )
        for placement, splits in placements
    )  # fmt: skip
    return [as_functions(order) for order in orders if order is not None]


def search_of(plan: PartsPlan, cluster: Cluster, budgets: Sequence[float | None]) -> Search:
    """Return a search of the order of a plan's step.

    Args:
        plan: of one path through its stages.
        cluster: whose devices are the ranks, in order.
        budgets: bytes that a rank may hold, by place of the pipe axis.
    """
    held = [held_at(plan, place) for place in range(len(plan.ranks))]
    fixed = [own.weights + own.arena for own in held]
    return Search(priced(plan, cluster), plan.schedule, fixed, budgets)


def budgets_of(options: Options) -> list[int]:
    """Return the bytes that a rank may hold at each place of the pipe axis."""
    inner = Mesh(tuple(axis for axis in options.mesh.axes if axis[0] != PIPE))
    own = replace(options, mesh=inner, within=options.mesh)
    places = clusters_by_place(options.cluster, options.mesh)
    return [budget_of(replace(own, cluster=each)) for each in places]


def with_order(plan: PartsPlan, schedule: Schedule, ahead: int) -> PartsPlan:
    """Return a plan of the same functions in another order.

    Args:
        plan: of several programs.
        schedule: of the same stages on the same ranks, with the same kinds of functions.
        ahead: for how many actions a message has a slot before it is read.

    Raises:
        IrcError: what :func:`irc.plan.parts.make_parts` raises.
    """
    text = print_schedule(schedule)
    facts = replace(plan.facts, schedule=schedule_digest(text), ahead=ahead)
    return replace(make_parts(facts, text, plan.parts), texts=plan.texts, folder=plan.folder)


def within(plan: PartsPlan, schedule: Schedule, ahead: int, budgets: Sequence[int]) -> PartsPlan:
    """Return a plan in another order, with as many slots ahead as ranks have memory for.

    Args:
        plan: of several programs.
        schedule: as in :func:`with_order`.
        ahead: for how many actions a message has a slot at most.
        budgets: bytes that a rank may hold, by place of the pipe axis.

    Raises:
        IrcError: ``pipeline-memory`` where ranks have none for slots of one action ahead.
    """
    for fewer in range(ahead, 1, -1):
        reordered = with_order(plan, schedule, fewer)
        held = [own.num_bytes() for own in all_held(reordered)]
        if all(most <= budget for most, budget in zip(held, budgets, strict=True)):
            return reordered
    reordered = with_order(plan, schedule, min(ahead, 1))
    check_memory(reordered, budgets)
    return reordered


def ordered(plan: PartsPlan, schedule: Schedule, orders: Orders) -> PartsPlan:
    """Return a plan in the order that was chosen for it, with what it was compared with."""
    best = orders.best
    facts = OrderFacts(best.origin, best.seconds, best.ahead, orders.named, orders.tried)
    file = {ORDER: json_text.dump(json_text.encode(facts))}
    return with_files(with_order(plan, schedule, best.ahead), file)
