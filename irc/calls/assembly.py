"""Steps of configurations, put together from pieces of the model, and what their ranks may hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from irc.calls.plan_pieces import Forward, Pieces
from irc.cluster.topology import Cluster
from irc.pipeline import Options
from irc.programs.cuts import Cuts
from irc.programs.schedules import schedule_for, searched_stages, splits_backward
from irc.programs.stage_memory import budget_of
from irc.schedule.actions import Schedule
from irc.search.ahead import Ahead
from irc.search.blocks import Blocks
from irc.search.configurations import FULL, Configuration, first_again
from irc.simulate.assembled import Assembled, KnownTapes, simulate_blocks

SCHEDULES = 8
"""So many are kept: each has all actions of all ranks."""


SPLIT = "zb-h1"
"""An order with the functions of those that a search compares, which takes the least memory."""


def is_searched(configuration: Configuration) -> bool:
    """Return whether the order of a step is searched."""
    return configuration.pipe > 1 and searched_stages(configuration.schedule) is not None


@dataclass
class Assembly:
    """Puts steps together.

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

    @cached_property
    def pieces(self) -> Pieces:
        """What steps are put together from."""
        return Pieces(self.short, self.options, self.cluster, self.ahead)

    @cached_property
    def _cuts(self) -> Cuts:
        # Of the whole batch, whichever configuration is the first one.
        return Cuts(self.forward(1)[0].module, self.options.cluster)

    def begin(self, configuration: Configuration) -> None:
        """Let the pieces of a configuration be planned, since they will probably be asked for."""
        if (splits := self.splits(configuration)) is None:
            return
        base, again = first_again(configuration.recompute)
        for policy in (base, FULL) if again else (base,):
            self.pieces.begin(replace(configuration, recompute=policy), splits=splits)

    def of(self, configuration: Configuration) -> Assembled | None:
        """Return a step put together of pieces; None where they say nothing."""
        own = configuration
        if not self.is_known(own):
            return None
        base, again = first_again(own.recompute)
        if (blocks := self._blocks(replace(own, recompute=base))) is None:
            return None
        if again:
            if (whole := self._blocks(replace(own, recompute=FULL))) is None:
                return None
            blocks = replace(blocks, again=whole.layer)
        return self.made_of(blocks, own, again)

    def made_of(self, blocks: Blocks, configuration: Configuration, again: int) -> Assembled:
        """Return a step put together of some pieces.

        Args:
            blocks: of its stages.
            configuration: says the schedule, and the mesh.
            again: layers of each stage that are computed again at most.
        """
        own, schedule = configuration, self.schedule(configuration)
        contents = self._cuts.contents(len(schedule.paths[0]))
        if again:
            contents = tuple(replace(own, again=min(again, own.layers)) for own in contents)
        cluster = self.cluster.fit(own.mesh)
        assembled = simulate_blocks(blocks, contents, schedule, own.inner, cluster, self._tapes)
        return replace(assembled, budget=self.budget(own)) if is_searched(own) else assembled

    def is_known(self, configuration: Configuration) -> bool:
        """Whether pieces say anything of the schedule of a step."""
        schedule = self.schedule(configuration)
        if is_searched(configuration) and searched_stages(configuration.schedule) != 1:
            return False
        is_odd = len(set(schedule.paths)) > 1 or schedule.skips or schedule.vocabulary
        return not is_odd and self.splits(configuration) is not None

    def layers(self, configuration: Configuration) -> int:
        """Return the most layers of a stage."""
        parts = len(self.schedule(configuration).paths[0])
        return max(content.layers for content in self._cuts.contents(parts))

    def budget(self, own: Configuration) -> int:
        """Return what a rank may hold."""
        return budget_of(replace(self.options, mesh=own.inner, within=own.mesh))

    def schedule(self, own: Configuration) -> Schedule:
        """Return the schedule of a step: what makes it smaller has the same."""
        key = own.schedule, own.pipe, own.micro_batches
        if key not in self._schedules:
            if len(self._schedules) == SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
            # Of an order that is searched, one of those that are compared.
            name = SPLIT if is_searched(own) else own.schedule
            self._schedules[key] = schedule_for(name, *key[1:])
        return self._schedules[key]

    def splits(self, configuration: Configuration) -> bool | None:
        """Return whether all parts of a schedule split backward; None where only some do."""
        schedule = self.schedule(configuration)
        parts = range(len(schedule.paths[0]))
        splits = {splits_backward(schedule, part) for part in parts}
        return splits.pop() if len(splits) == 1 else None

    def _blocks(self, configuration: Configuration) -> Blocks | None:
        """Return the pieces of a step, for the functions that its schedule runs."""
        splits = self.splits(configuration)
        return None if splits is None else self.pieces.of(configuration, splits=splits)
