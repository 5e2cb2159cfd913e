"""What the judges of a search share: a configuration is planned as `irc compile` would.

A judge says what a configuration may hold and which options it has, and asks in two orders of the
devices: as they are numbered, and by their wires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self, TypeVar

from irc.cluster.load import find_cluster, in_order_of
from irc.cluster.topology import Cluster
from irc.collection import collected_in_turn
from irc.errors import IrcError
from irc.pipeline import Options
from irc.pipeline.places import chosen
from irc.pipeline.preload import preload
from irc.programs.stage_memory import budget_of
from irc.search.ahead import Ahead
from irc.search.configurations import Configuration, Outline
from irc.search.fitting import stored_price
from irc.search.judge import OF_CONFIGURATION, Verdict
from irc.search.on_mesh import MARGIN
from irc.search.rank_orders import order_of

V = TypeVar("V", Verdict, "Verdict | None")


@dataclass(kw_only=True)
class PlanJudge(ABC):
    """Judges plans of one model on one cluster.

    Args:
        options: of the pipeline; the mesh is the configuration's.
        in_order: ranks stay on the devices in order.
        by_order: judges of the same on the devices in another order, as they are asked.
        ahead: computes what will be asked for.
    """

    options: Options
    in_order: bool = False
    by_order: dict[tuple[int, ...], Self] = field(default_factory=dict[tuple[int, ...], Any])
    ahead: Ahead = field(default_factory=Ahead)

    @abstractmethod
    def plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        """Plan a configuration on the devices in order, and simulate it."""

    @abstractmethod
    def prepare(self, configuration: Configuration) -> None:
        """Compute what several configurations are planned from, before children begin."""

    @abstractmethod
    def begin_price(self, configuration: Configuration) -> None:
        """Let what a price is put together from be computed ahead."""

    @abstractmethod
    def whole_outline(self) -> Outline:
        """Return what the forward pass of the whole batch says of itself, before any pass."""

    @cached_property
    def cluster(self) -> Cluster:
        """The machines."""
        return find_cluster(self.options.cluster)

    def outline(self) -> Outline:
        """Return what is known of the forward pass of the whole batch."""
        return self._outline

    @cached_property
    def _outline(self) -> Outline:
        """Without what a user's passes or rules may make less: stored bytes, and products."""
        outline, (own, _) = self.whole_outline(), chosen(self.options.passes)
        if not own and not self.options.rules:
            return outline
        return replace(outline, stored_bytes=0.0, sums_bytes=0.0, again=())

    def within(self, memory_bytes: int) -> Self:
        """Return a judge of the same under another budget, with what this one captured."""
        return self._under(replace(self.options, memory_bytes=memory_bytes))

    def unpinned(self) -> Self | None:
        """Return a judge without constraints; None where there are none."""
        return self._under(replace(self.options, pins="")) if self.options.pins else None

    def _under(self, options: Options) -> Self:
        return replace(self, options=options, by_order={})

    def budget_bytes(self, configuration: Configuration) -> int | None:
        """Return what each rank may hold; None where unequal devices have what they have."""
        if self.options.memory_bytes is None and self.cluster.unequal:
            return None
        mesh, inner = configuration.mesh, configuration.inner
        return budget_of(replace(self.options, mesh=inner, within=mesh))

    def begin(self, configurations: Iterable[Configuration], *, is_whole: bool) -> None:
        """Let configurations be computed ahead, in place of those that were to be."""
        self.ahead.drop()
        for own in configurations:
            # What is wrong with one is raised when it is asked for.
            with suppress(IrcError):
                preload(self.options_of(own, brief=True))
                self.prepare(own)
                if is_whole:
                    self.ahead.begin(self._asked(own, brief=True), partial(self._judged, own))
                else:
                    self.begin_price(own)

    def end(self) -> None:
        """End what is computed ahead."""
        self.ahead.end()

    @collected_in_turn()
    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        """Plan a configuration and simulate it."""
        job = partial(self._judged, configuration, brief=brief)
        return self.ahead.take(self._asked(configuration, brief=brief), job)

    def _judged(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        return self.in_better_order(configuration, lambda own: own.plan(configuration, brief=brief))

    def _asked(self, configuration: Configuration, *, brief: bool) -> Hashable:
        """Return what a whole plan is asked for by."""
        own = self.options
        return configuration, brief, own.cluster, own.memory_bytes, own.pins

    def options_of(self, configuration: Configuration, *, brief: bool) -> Options:
        """Return the options of a configuration; one device is held to the memory that it has.

        Args:
            configuration: that is planned.
            brief: where it does not fit say so alone, and not what would.
        """
        mesh, cluster = configuration.mesh, self.cluster
        memory = self.options.memory_bytes
        if memory is None and mesh.num_ranks == 1 and not configuration.is_staged:
            memory = int(cluster.device.memory_bytes / MARGIN)
        if (within := configuration.memory_bytes) is not None:
            memory = within if memory is None else min(memory, within)
        return replace(
            self.options,
            mesh=mesh,
            layout=configuration.layout,
            memory_bytes=memory,
            stored_price=stored_price(cluster, configuration),
            brief=brief,
        )

    def _may_be_elsewhere(self, configuration: Configuration) -> bool:
        """Whether it is asked for in another order of the devices, too."""
        if self.in_order:
            return False
        return bool(order_of(self.cluster, self.outline(), configuration))

    def in_better_order(self, configuration: Configuration, ask: Callable[[Self], V]) -> V:
        """Return the verdict of the better one of two orders: of the devices, and by their wires.

        An order that the configuration cannot be planned in is the worse one.

        Args:
            configuration: that is judged.
            ask: a judge of whom it is asked.

        Raises:
            IrcError: what asking of the devices in order raises, and what is wrong with more than
                a configuration in the other order.
        """
        plain = ask(self)
        if plain is None or self.in_order:
            return plain
        if not (order := order_of(self.cluster, self.outline(), configuration)):
            return plain
        if order not in self.by_order:
            cluster = in_order_of(self.options.cluster, order)
            self.by_order[order] = self._under(replace(self.options, cluster=cluster))
        try:
            other = ask(self.by_order[order])
        except IrcError as error:
            if error.code not in OF_CONFIGURATION:
                raise
            return plain
        if other is None or other.step_s >= plain.step_s:
            return plain
        return replace(other, order=order)
