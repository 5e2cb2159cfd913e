"""A plan of several programs in one process: each rank a thread, with real registers and slots.

So a laptop runs what a cluster is to run, with small sizes, and `irc check` sees each value on its
way. Ranks do what their tapes say, in any order that the waits allow; nothing is shared but what
they send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from irc.dialects.placement import Mesh, Partial, Placement
from irc.errors import IrcError
from irc.interpret.parts_moves import LateMoves
from irc.interpret.parts_peers import Ended, Exchange, Sight, ThreadPeers, Values
from irc.interpret.segments import interpreted_segments
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.plan.weights import local_slices
from irc.runtime.pipeline import PipelineExecutor
from irc.runtime.segments import DEVICE_BACKENDS
from irc.runtime.spread_parts import SpreadParts
from irc.schedule.tapes import Event
from irc.training.accumulators import ACCUMULATED
from irc.training.slices import Sliced

MOST_RANKS = 64


class TracedExecutor(PipelineExecutor):
    """Runs a rank, and notes what its functions read, make and add to sums.

    Args:
        seen: where to.
    """

    def __init__(self, *args: Any, seen: Values, **options: Any) -> None:
        self._seen = seen
        super().__init__(*args, **options)

    def _step(self, event: Event) -> Callable[[], object]:
        run = super()._step(event)
        stage, kind, number, _ = event.action
        registers, rank, seen = self._registers, self.rank, self._seen
        if event.what == "send" and event.place is not None and event.route is not None:
            register, sent = (
                registers[event.place],
                Sight("sent", rank, stage, event.route.name, number),
            )

            def seen_off() -> None:
                seen[sent] = register.clone()
                run()

            return seen_off
        if event.what != "run":
            return run
        plan = self._functions[self._stages[stage], self.plan.wiring.kind(kind, number)].plan
        written = sorted({plan.buffers[index].name for index in plan.states()})
        sums = {n: self._held.local[n] for n in written if n.startswith(ACCUMULATED)}
        is_last = self._stages[stage] == len(self.plan.parts) - 1
        gives_loss = is_last and kind == self.plan.loss_kind
        loss = self.plan.facts.loss

        def noted() -> None:
            for name, place in event.reads.items():
                seen[Sight("read", rank, stage, name, number, kind)] = registers[place].clone()
            before = {name: total.clone() for name, total in sums.items()}
            run()
            for name, place in event.makes.items():
                seen[Sight("made", rank, stage, name, number)] = registers[place].clone()
            if gives_loss:
                loss_value = self._losses[number].clone()
                seen[Sight("made", rank, stage, loss, number)] = loss_value
            for name, total in sums.items():
                seen[Sight("added", rank, stage, name, number, kind)] = total - before[name]

        return noted


class HostParts(SpreadParts):
    """Parts that lie on the host, whatever the plan is for."""

    def _memory(self, plan: Plan) -> None:
        return None


@dataclass
class Run:
    """A step that all ranks of a plan have made in this process.

    Attributes:
        losses: of each step.
        parts: what each rank holds afterwards.
        seen: what went through registers in the last step.
        sliced: by name, what ranks hold in slices.
    """

    losses: list[torch.Tensor]
    parts: list[SpreadParts]
    seen: Values
    sliced: Mapping[str, Sliced]

    def whole(self, name: str) -> torch.Tensor:
        """Return a tensor put together from the ranks that hold it; sums of parts added up."""
        if (own := self.sliced.get(name)) is not None:
            return torch.cat([self.whole(each) for each in own.names], own.dim)
        first = next(p for p in self.parts if name in p.local)
        placement, shape = first.placement_and_shape(name)
        holders = [self.parts[rank].local[name] for rank in first.ranks[name]]
        return whole_of(holders, placement, first.mesh, shape)


def whole_of(
    local: Sequence[torch.Tensor], placement: Placement, mesh: Mesh, shape: Sequence[int]
) -> torch.Tensor:
    """Return a tensor put together from what the ranks of a part hold, in their order."""
    whole = torch.zeros(tuple(shape), dtype=local[0].dtype)
    partial = [axis for axis, placed in placement.axes if isinstance(placed, Partial)]
    for rank, own in enumerate(local):
        where = local_slices(placement, mesh, rank, tuple(shape))
        if not partial:
            whole[where] = own
            continue
        place = mesh.coordinates(rank)
        split = {axis for d in range(len(shape)) for axis in placement.split_axes(d)}
        if not any(i for axis, i in place.items() if axis not in split and axis not in partial):
            whole[where] += own
    return whole


def run_here(
    plan: PartsPlan,
    wholes: Mapping[str, torch.Tensor],
    batches: Sequence[Sequence[torch.Tensor]],
    *,
    lr: float,
    seed: int = 0,
    scale: float = 1.0,
    peers: type[ThreadPeers] = ThreadPeers,
) -> Run:
    """Make some steps of a plan, all ranks in this process.

    Args:
        plan: for at most 64 ranks.
        wholes: weights by name; they stay as they are.
        batches: of each step, its inputs in the order of the plan.
        lr: the learning rate.
        seed: of the first step.
        scale: of the loss, where that is scaled.
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
    # Kernels for GPUs are interpreted: there need not be any, and one would not do for all ranks.
    load = interpreted_segments if plan.backend in DEVICE_BACKENDS else None
    parts: list[SpreadParts] = [HostParts(plan, rank) for rank in range(world)]
    losses: list[list[torch.Tensor]] = [[] for _ in range(world)]
    seen: Values = {}
    rate, scales = torch.tensor(lr, dtype=torch.float64), torch.tensor((scale, 1 / scale))

    def rank_thread(rank: int) -> None:
        own = {name: tensor.detach().clone() for name, tensor in wholes.items()}
        parts[rank].adopt_stages(plan, own)
        talk = peers(plan, rank, exchange, seen)
        run = TracedExecutor(plan, parts[rank], rank, talk, load=load, moves=LateMoves(), seen=seen)
        for number, batch in enumerate(batches):
            losses[rank].append(run(batch, rate, seed + number, tuple(scales)))

    with _one_thread_each():
        _all(world, rank_thread, exchange)
    return Run(losses[0], parts, seen, plan.sliced)


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
def _one_thread_each() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
