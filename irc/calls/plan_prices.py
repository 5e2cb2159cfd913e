"""Prices of configurations from pieces of the model: what a search asks before it plans any whole.

A configuration is priced in a second or less, whatever the model's depth and the devices: a few
layers are planned on the mesh of a stage (:mod:`irc.programs.blocks`), or as a step of one program
(:mod:`irc.programs.program_blocks`), the stages of the real cut are put together from them, and the
step of the schedule is simulated. What was planned is kept for configurations that differ in the
schedule alone. Where a step does not fit, its pieces are planned with layers that are computed
again, and with a price on what is held all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from irc.calls.plan_pieces import Forward, Pieces
from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.pipeline import Options
from irc.programs.cuts import Cuts
from irc.programs.schedules import schedule_for, splits_backward
from irc.programs.stage_memory import budget_of
from irc.schedule.actions import Schedule
from irc.search.ahead import Ahead
from irc.search.blocks import Blocks, Content
from irc.search.configurations import (
    FULL,
    IN_PARTS,
    Configuration,
    can_divide,
    first_again,
    with_first_again,
)
from irc.search.fitting import cheapest
from irc.search.judge import Verdict
from irc.simulate.assembled import Assembled, KnownTapes, simulate_blocks

SCHEDULES = 8
"""So many are kept: each has all actions of all ranks."""


@dataclass
class Prices:
    """Prices configurations of a step of training with stages, micro-batches or both.

    Args:
        forward: gives the program of a micro-batch.
        short: gives it with the first :data:`irc.programs.short_steps.MOST` layers alone.
        options: of the pipeline; the mesh is the configuration's.
        cluster: the machines.
        ahead: plans pieces that will be asked for.
    """

    forward: Forward
    short: Forward
    options: Options
    cluster: Cluster
    ahead: Ahead = field(default_factory=Ahead)
    _schedules: dict[tuple[str, int, int], Schedule] = field(
        default_factory=dict[tuple[str, int, int], Schedule]
    )
    _tapes: KnownTapes = field(default_factory=KnownTapes)

    def begin(self, configuration: Configuration) -> None:
        """Let the pieces of a configuration be planned, since it will probably be priced."""
        if (splits := self._splits(configuration)) is None:
            return
        base, again = first_again(configuration.recompute)
        for policy in (base, FULL) if again else (base,):
            self._pieces.begin(replace(configuration, recompute=policy), splits=splits)

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what a step takes; None where pieces of the model do not say that.

        Raises:
            IrcError: ``pipeline-memory`` where a rank would hold too much; ``pipeline-stages``;
                what the passes raise.
        """
        own = configuration
        if (found := self._assembled(own)) is None:
            return None
        self._check(max(found.held_bytes), own)
        bubbles = [found.simulation.bubble(rank) for rank in range(len(found.held_bytes))]
        return Verdict(
            found.simulation.seconds,
            int(max(found.held_bytes)),
            max(0.0, sum(bubbles) / len(bubbles)),
            sum(found.bare_s) / len(found.bare_s),
        )

    def fitting(self, configuration: Configuration) -> Configuration | None:
        """Return the same step made to fit in the least time.

        As many layers of each stage as need be are computed again, and what is held all the time
        lies in parts.

        Args:
            configuration: whose policy holds for all other layers.

        Returns:
            None where it fits as it is, where nothing does, and where pieces say nothing.
        """
        own, budget = configuration, self._budget(configuration)
        if first_again(own.recompute)[1] or own.in_parts or self._assembled(own) is None:
            return None
        parts = len(self._schedule_of(own).paths[0])
        layers = max(content.layers for content in self._contents(parts))
        depth = 0 if own.recompute == FULL else layers

        def step(in_parts: int, again: int) -> Assembled | None:
            return self._assembled(_made_smaller(own, in_parts, again, depth))

        def fits(in_parts: int, again: int) -> bool:
            smaller = step(in_parts, again)
            return smaller is not None and max(smaller.held_bytes) <= budget

        def seconds(in_parts: int, again: int) -> float:
            smaller = step(in_parts, again)
            return inf if smaller is None else smaller.simulation.seconds

        points = range(len(IN_PARTS) if can_divide(own) else 1)
        # Mostly all are asked for; the first and the last one say whether anything fits.
        for point in sorted(points, key=lambda point: point != points[-1]):
            for policy in dict.fromkeys((FULL, own.recompute)):
                self.begin(replace(own, recompute=policy, in_parts=point))
        best = cheapest(points, depth, fits, seconds)
        return None if best in (None, (0, 0)) else _made_smaller(own, *best, depth)

    def boundless_s(self, configuration: Configuration) -> float:
        """Return what a step takes, whatever it holds; 0 where pieces do not say that."""
        found = self._assembled(configuration)
        return 0.0 if found is None else found.simulation.seconds

    def _check(self, held: float, own: Configuration) -> None:
        if held > (budget := self._budget(own)):
            raise IrcError(
                "pipeline-memory",
                f"a rank holds {int(held)} bytes, and may hold {budget}",
                help=f"the smallest budget that works is memory_bytes={int(held)}",
            )

    def _budget(self, own: Configuration) -> int:
        return budget_of(replace(self.options, mesh=own.inner, within=own.mesh))

    def _assembled(self, configuration: Configuration) -> Assembled | None:
        """Return a step put together of pieces; None where they say nothing."""
        own, schedule = configuration, self._schedule_of(configuration)
        if len(set(schedule.paths)) > 1 or schedule.skips or schedule.vocabulary:
            return None
        base, again = first_again(own.recompute)
        if (blocks := self._blocks_of(replace(own, recompute=base))) is None:
            return None
        contents = self._contents(len(schedule.paths[0]))
        if again:
            if (whole := self._blocks_of(replace(own, recompute=FULL))) is None:
                return None
            blocks = replace(blocks, again=whole.layer)
            contents = tuple(replace(own, again=min(again, own.layers)) for own in contents)
        cluster = self.cluster.fit(own.mesh)
        return simulate_blocks(blocks, contents, schedule, own.inner, cluster, self._tapes)

    def _schedule_of(self, own: Configuration) -> Schedule:
        """Return the schedule of a step: what makes it smaller has the same."""
        key = own.schedule, own.pipe, own.micro_batches
        if key not in self._schedules:
            if len(self._schedules) == SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[key] = schedule_for(*key)
        return self._schedules[key]

    def _blocks_of(self, configuration: Configuration) -> Blocks | None:
        """Return the pieces of a step, for the functions that its schedule runs."""
        splits = self._splits(configuration)
        return None if splits is None else self._pieces.of(configuration, splits=splits)

    def _splits(self, configuration: Configuration) -> bool | None:
        """Return whether all parts of a schedule split backward; None where only some do."""
        schedule = self._schedule_of(configuration)
        parts = range(len(schedule.paths[0]))
        splits = {splits_backward(schedule, part) for part in parts}
        return splits.pop() if len(splits) == 1 else None

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self.short, self.options, self.cluster, self.ahead)

    @cached_property
    def _cuts(self) -> Cuts:
        # Of the whole batch, whichever configuration is the first one.
        return Cuts(self.forward(1)[0].module, self.options.cluster)

    def _contents(self, parts: int) -> tuple[Content, ...]:
        """Return what each stage has of the model where it is cut into so many."""
        return self._cuts.contents(parts)


def _made_smaller(own: Configuration, in_parts: int, again: int, depth: int) -> Configuration:
    """Return a step with so many layers of each stage computed again; with all, by a name."""
    policy = own.recompute
    if again:
        policy = FULL if again >= depth else with_first_again(policy, again)
    return replace(own, recompute=policy, in_parts=in_parts)
