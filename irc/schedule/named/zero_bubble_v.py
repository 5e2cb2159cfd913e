"""ZB-V: zero bubble with two stages a rank that lie as a V (Qi et al., arXiv:2401.10241, 6)."""

from __future__ import annotations

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.named.stages import two_stages_each, v_stages


def zb_v(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Let a micro-batch go down the ranks and come back, so that its loss is on the first rank.

    No bubble where F, I and W take the same time, with the activations of 1F1B: p of a rank's
    worth. It takes at least ``2 p - 1`` micro-batches to fill.
    """
    require_sizes("zb-v", ranks, micro_batches)
    two_stages_each("zb-v", chunks)
    if micro_batches < 2 * ranks - 1:
        raise IrcError(
            "schedule-size",
            f"schedule 'zb-v' on {ranks} ranks cannot use {micro_batches} micro-batches",
            because=f"{2 * ranks - 1} fill its ranks",
            help=f"use at least {2 * ranks - 1} micro-batches, or zb-h1",
        )
    orders = tuple(_Order(rank, ranks, micro_batches).order() for rank in range(ranks))
    return Schedule(orders, straight(2 * ranks, micro_batches))


class _Order:
    """The order of one rank, written down as it is counted through."""

    def __init__(self, rank: int, ranks: int, micro_batches: int) -> None:
        self.rank, self.ranks, self.micro_batches = rank, ranks, micro_batches
        self.stages = v_stages(rank, ranks)
        self.done = {(kind, chunk): 0 for kind in "FIW" for chunk in (0, 1)}
        self.actions: list[Action] = []

    def run(self, kinds: str, chunk: int) -> None:
        for kind in kinds:
            m = self.done[kind, chunk]
            if m < self.micro_batches:
                self.done[kind, chunk] += 1
                self.actions.append(Action(self.stages[chunk], kind, m))

    def order(self) -> tuple[Action, ...]:
        """Fill with forwards of the first stage, then of both; then alternate; then drain."""
        rank, ranks = self.rank, self.ranks
        for _ in range(2 * (ranks - rank) - 1):
            self.run("F", 0)
        for _ in range(rank):
            self.run("F", 1)
            self.run("F", 0)
        for _ in range(ranks - rank):
            self.run("FIW", 1)
        while self.done["F", 1] < self.micro_batches:
            self.run("F", 0)
            self.run("IW", 0)
            self.run("FIW", 1)
        for _ in range(rank):
            self.run("I", 0)
            self.run("I", 1)
        for _ in range(ranks - rank):
            self.run("IW", 0)
        for chunk in (1, 0):
            while self.done["W", chunk] < self.micro_batches:
                self.run("W", chunk)
        return tuple(self.actions)
