"""A plan of several programs in one process: each rank a thread, with real registers and slots.

So a laptop runs what a cluster is to run, with small sizes, and `irc check` sees each value on its
way. Ranks do what their tapes say, in any order that the waits allow; nothing is shared but what
they send.
"""

# pyright: basic
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from irc.errors import IrcError
from irc.interpret.parts_peers import Ended, Exchange, ThreadPeers, Values
from irc.plan.parts import PartsPlan
from irc.plan.weights import local_slices
from irc.runtime.pipeline import PipelineExecutor
from irc.runtime.spread_parts import SpreadParts
from irc.schedule.tapes import Event

MOST_RANKS = 64


class TracedExecutor(PipelineExecutor):
    """Runs a rank, and notes what its functions make.

    Args:
        seen: where to.
    """

    def __init__(self, *args: Any, seen: Values, **options: Any) -> None:
        self._seen = seen
        super().__init__(*args, **options)

    def _step(self, event: Event) -> Callable[[], object]:
        run = super()._step(event)
        if event.what != "run":
            return run
        number, rank = event.action.micro_batch, self.rank

        def noted() -> None:
            run()
            for name, place in event.makes.items():
                key = "sent", rank, f"{place.stage}:{name}", number
                self._seen[key] = self._registers[place].clone()

        return noted


@dataclass
class Run:
    """A step that all ranks of a plan have made in this process.

    Attributes:
        losses: of each step.
        parts: what each rank holds afterwards.
        seen: what went through registers in the last step.
    """

    losses: list[torch.Tensor]
    parts: list[SpreadParts]
    seen: Values

    def whole(self, name: str) -> torch.Tensor:
        """Return a tensor put together from the ranks that hold it; sums of parts added up."""
        from irc.dialects.placement import Partial

        first = next(p for p in self.parts if name in p.local)
        placement, shape = first.placement_and_shape(name)
        holders = [self.parts[rank] for rank in first.ranks[name]]
        made = torch.zeros(shape, dtype=first.local[name].dtype)
        partial = [axis for axis, placed in placement.axes if isinstance(placed, Partial)]
        for local, part in enumerate(holders):
            where = local_slices(placement, part.mesh, local, shape)
            if partial:
                place = part.mesh.coordinates(local)
                split = {axis for d in range(len(shape)) for axis in placement.split_axes(d)}
                if any(i for axis, i in place.items() if axis not in split and axis not in partial):
                    continue
                made[where] += part.local[name]
            else:
                made[where] = part.local[name]
        return made


def run_here(
    plan: PartsPlan,
    wholes: Mapping[str, torch.Tensor],
    batches: Sequence[Sequence[torch.Tensor]],
    *,
    lr: float,
    seed: int = 0,
    peers: type[ThreadPeers] = ThreadPeers,
) -> Run:
    """Make some steps of a plan, all ranks in this process.

    Args:
        plan: for at most 64 ranks.
        wholes: weights by name; they stay as they are.
        batches: of each step, its inputs in the order of the plan.
        lr: the learning rate.
        seed: of the first step.
        peers: how ranks talk to each other.

    Raises:
        IrcError: ``world-size`` for more ranks; ``schedule-deadlock``; what a rank raises.
    """
    world = plan.mesh.num_ranks
    if world > MOST_RANKS:
        raise IrcError(
            "world-size",
            f"{world} ranks, and one process runs at most {MOST_RANKS}",
            help="compile the plan for a smaller mesh, with the same stages",
        )
    exchange = Exchange()
    parts: list[SpreadParts] = [SpreadParts(plan, rank) for rank in range(world)]
    losses: list[list[torch.Tensor]] = [[] for _ in range(world)]
    seen: Values = {}

    def rank_thread(rank: int) -> None:
        own = {name: tensor.detach().clone() for name, tensor in wholes.items()}
        parts[rank].adopt_stages(plan, own)
        talk = peers(plan, rank, exchange, seen)
        run = TracedExecutor(plan, parts[rank], rank, talk, seen=seen)
        for number, batch in enumerate(batches):
            losses[rank].append(run(batch, lr, seed + number))

    with _one_thread_each():
        _all(world, rank_thread, exchange)
    return Run(losses[0], parts, seen)


def _all(world: int, run: Callable[[int], None], exchange: Exchange) -> None:
    def guarded(rank: int) -> None:
        try:
            run(rank)
        except Ended:
            pass
        except BaseException as error:
            with exchange.changed:
                exchange.failed = exchange.failed or error
                exchange.changed.notify_all()

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if exchange.failed is not None:
        raise exchange.failed


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
