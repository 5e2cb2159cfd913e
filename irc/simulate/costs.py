"""What a pipeline's step takes: its stages' functions and its transfers.

A function is one action here: whatever collectives it has inside are in its seconds, and what it
allocates and frees meanwhile is its arena. :mod:`irc.simulate.plan` gives both for a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from irc.schedule.actions import Action
from irc.schedule.tapes import SMALLER
from irc.schedule.timeline import Times


@dataclass(frozen=True)
class StageCosts:
    """What a stage takes of each of its ranks.

    Attributes:
        seconds: by kind of action, also on a smaller micro-batch (``F.smaller``); a B that is not
            there is I and W one after the other.
        arena_bytes: by kind, the most that the function allocates for itself while it runs.
        saved_bytes: what F leaves for the backward of its micro-batch; free at the end of B or I.
        kept_bytes: of these, what W reads and frees.
        weight_bytes: weights, their gradients, and states of the optimiser, all the time.
        reduce_seconds: to add up the gradients over the columns, once all have theirs.
        update_seconds: of the optimiser, after that.
        slots: places for what F leaves; None for as many as the schedule wants.
    """

    seconds: Mapping[str, float]
    arena_bytes: Mapping[str, float] = field(default_factory=dict[str, float])
    saved_bytes: float = 0.0
    kept_bytes: float = 0.0
    weight_bytes: float = 0.0
    reduce_seconds: float = 0.0
    update_seconds: float = 0.0
    slots: int | None = None

    def of(self, kind: str) -> float:
        """Return the seconds of a kind of action; what is not stated takes none."""
        suffix = SMALLER if kind.endswith(SMALLER) else ""
        if kind == f"B{suffix}" and kind not in self.seconds:
            return self.of(f"I{suffix}") + self.of(f"W{suffix}")
        return self.seconds.get(kind, 0.0)

    def arena(self, kind: str) -> float:
        """Return the arena of a kind of action."""
        if kind == "B" and "B" not in self.arena_bytes:
            return max(self.arena("I"), self.arena("W"))
        return self.arena_bytes.get(kind, 0.0)


@dataclass(frozen=True)
class Transfer:
    """A value on its way between two stages, or its gradient on the way back.

    Attributes:
        seconds: for which it has the link between the two ranks to itself.
        latency_s: until it has arrived after that; the link is free meanwhile.
        port: that it takes of both ranks: to the links of a node, or to the network (``nic``).
        num_bytes: that it takes on either rank: from the start of what makes it until it is sent,
            and from then until the end of what reads it.
        slots: places for it on either rank; None for as many as the schedule wants.
    """

    seconds: float = 0.0
    latency_s: float = 0.0
    num_bytes: float = 0.0
    slots: int | None = None
    port: str = "link"


Way: TypeAlias = tuple[int, int]
"""The stages that a value leaves and reaches."""


@dataclass(frozen=True)
class Costs:
    """What a step takes.

    Attributes:
        stages: by stage; one stands for all.
        transfer: of every value that goes from a stage to one on another rank.
        transfers: of those that differ.
        overlap: what actions that run as one take, relative to their sum.
        norm: whether no rank updates before all gradients of all stages are there, as clipping by
            the norm of all of them wants it.
        smaller_from: the first micro-batch that is smaller than those before it, if any.
    """

    stages: Sequence[StageCosts]
    transfer: Transfer = Transfer()
    transfers: Mapping[Way, Transfer] = field(default_factory=dict[Way, Transfer])
    overlap: float = 1.0
    norm: bool = False
    smaller_from: int | None = None

    def stage(self, stage: int) -> StageCosts:
        """Return the costs of a stage."""
        return self.stages[stage if len(self.stages) > 1 else 0]

    def way(self, source: int, target: int) -> Transfer:
        """Return the transfer from a stage to another."""
        return self.transfers.get((source, target), self.transfer)

    def seconds(self, action: Action) -> float:
        """Return what an action takes on a rank that is not slow."""
        if action.parts:
            return self.overlap * sum(map(self.seconds, action.parts))
        is_smaller = self.smaller_from is not None and action.micro_batch >= self.smaller_from
        return self.stage(action.stage).of(f"{action.kind}{SMALLER if is_smaller else ''}")

    def times(self, num_stages: int) -> Times:
        """Return what stages take, without transfers, as a schedule's own timeline has it."""
        kinds = [[self.stage(s).of(kind) for s in range(num_stages)] for kind in "FIWBST"]
        forward, inputs, weights, backward, logits, vocabulary = kinds
        return Times(
            forward, inputs, weights, backward, 0.0, max(logits), max(vocabulary), self.overlap
        )

    @staticmethod
    def of(times: Times, num_stages: int) -> Costs:
        """Return the costs that stand for times without memory, for as many stages.

        >>> Costs.of(Times(), 2).stage(1).seconds
        {'F': 1.0, 'B': 2.0, 'I': 1.0, 'W': 1.0, 'S': 0.0, 'T': 0.0}
        """
        stages = [
            StageCosts({kind: times.of(Action(stage, kind, 0)) for kind in "FBIWST"})
            for stage in range(num_stages)
        ]
        return Costs(stages, Transfer(latency_s=times.transfer), overlap=times.overlap)
