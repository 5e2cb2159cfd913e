"""Prices of configurations from pieces of the model: what a search asks before it plans any whole.

A configuration is priced in a second or less, whatever the model's depth and the devices: a few
layers are planned on the mesh of a stage (:mod:`irc.calls.plan_pieces`), the stages of the real cut
are put together from them (:mod:`irc.calls.assembly`), and the step of the schedule is simulated.
Where a step does not fit, its pieces are planned with layers that are computed again, and with a
price on what is held all the time: those that may be the best by what they take at least
(:mod:`irc.calls.least_prices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from irc.calls.assembly import Assembly
from irc.calls.least_prices import LeastPrices
from irc.errors import IrcError
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
from irc.simulate.assembled import Assembled


@dataclass
class Prices:
    """Prices configurations of a step of training with stages, micro-batches or both.

    Args:
        steps: puts steps together.
        again: flops of the products of a layer that are computed again at least, by dtype, of the
            whole batch (:mod:`irc.search.again`).
    """

    steps: Assembly
    again: Sequence[tuple[str, float]] = ()

    def begin(self, configuration: Configuration) -> None:
        """Let the pieces of a configuration be planned, since it will probably be priced."""
        self.steps.begin(configuration)

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what a step takes; None where pieces of the model do not say that.

        Raises:
            IrcError: ``pipeline-memory`` where a rank would hold too much; ``pipeline-stages``;
                what the passes raise.
        """
        own = configuration
        if (assembled := self.steps.of(own)) is None:
            return None
        self._check(max(assembled.held_bytes), own)
        bubbles = [assembled.simulation.bubble(rank) for rank in range(len(assembled.held_bytes))]
        return Verdict(
            assembled.simulation.seconds,
            int(max(assembled.most_bytes)),
            max(0.0, sum(bubbles) / len(bubbles)),
            sum(assembled.bare_s) / len(assembled.bare_s),
        )

    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        """Return the same step made to fit in the least time.

        As many layers of each stage as need be are computed again, and what is held all the time
        lies in parts.

        Args:
            configuration: whose policy holds for all other layers.
            beat_s: what takes as long at least is not looked for.

        Returns:
            None where it fits as it is, where nothing does in less time, and where pieces say
            nothing.
        """
        own, budget = configuration, self.steps.budget(configuration)
        if first_again(own.recompute)[1] or own.in_parts or self.steps.of(own) is None:
            return None
        depth = 0 if own.recompute == FULL else self.steps.layers(own)

        def step(in_parts: int, again: int) -> Assembled | None:
            return self.steps.of(_made_smaller(own, in_parts, again, depth))

        def fits(in_parts: int, again: int) -> bool:
            smaller = step(in_parts, again)
            return smaller is not None and max(smaller.held_bytes) <= budget

        def seconds(in_parts: int, again: int) -> float:
            smaller = step(in_parts, again)
            return inf if smaller is None else smaller.simulation.seconds

        def least_s(in_parts: int) -> float:
            return self._least.fitted_s(own, in_parts)

        points = range(len(IN_PARTS) if can_divide(own) else 1)
        for point in points:
            if least_s(point) < beat_s:
                self.begin(replace(own, recompute=own.recompute if point else FULL, in_parts=point))
        best = cheapest(points, depth, fits, seconds, least_s, beat_s)
        return None if best in (None, (0, 0)) else _made_smaller(own, *best, depth)

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        """Return what a step takes at least, by pieces that are planned; 0 where that is not known.

        Args:
            configuration: the step.
            is_fitted: made to fit in any way.
        """
        own = configuration
        if first_again(own.recompute)[1] or (is_fitted and own.in_parts):
            return 0.0
        if not is_fitted:
            return self._least.own_s(own)
        points = range(len(IN_PARTS) if can_divide(own) else 1)
        least = min(self._least.fitted_s(own, point) for point in points)
        return 0.0 if least == inf else least

    @cached_property
    def _least(self) -> LeastPrices:
        return LeastPrices(self.steps, self.again)

    def _check(self, held: float, own: Configuration) -> None:
        if held > (budget := self.steps.budget(own)):
            raise IrcError(
                "pipeline-memory",
                f"a rank holds {int(held)} bytes, and may hold {budget}",
                help=f"the smallest budget that works is memory_bytes={int(held)}",
            )


def _made_smaller(own: Configuration, in_parts: int, again: int, depth: int) -> Configuration:
    """Return a step with so many layers of each stage computed again; with all, by a name."""
    policy = own.recompute
    if again:
        policy = FULL if again >= depth else with_first_again(policy, again)
    return replace(own, recompute=policy, in_parts=in_parts)
