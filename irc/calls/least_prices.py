"""What steps take at least that have no price, by pieces that are planned already.

Nothing is planned here: bounds say which pieces need not be (:mod:`irc.search.least_pieces`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from irc.calls.assembly import Assembly, is_searched
from irc.search.blocks import Blocks
from irc.search.configurations import FULL, NOTHING, Configuration, divisors
from irc.search.fitting import fewest
from irc.search.least_pieces import computed_again, in_more_parts


@dataclass
class LeastPrices:
    """Bounds of steps.

    Args:
        steps: puts steps together.
        again: flops of the products of a layer that are computed again at least, by dtype, of the
            whole batch.
    """

    steps: Assembly
    again: Sequence[tuple[str, float]]
    _known: dict[Hashable, float] = field(default_factory=dict[Hashable, float])

    def own_s(self, configuration: Configuration) -> float:
        """Return what a step takes at least, whatever it holds; 0 where that is not known."""
        own = configuration
        # A search of the order takes as long as a price.
        if not self.steps.is_known(own) or is_searched(own):
            return 0.0
        if (blocks := self._pieces(own)) is not None:
            return self._seconds(own, blocks, 0)
        return max(self._of_fewer_s(own), self._of_less_again_s(own))

    def _of_fewer_s(self, own: Configuration) -> float:
        """Return what it takes at least by the same step in fewer micro-batches.

        More of them, on a rank that has the whole model, compute as much in smaller products, and
        sum gradients behind the last one alone.
        """
        if own.pipe > 1 or own.in_parts:
            return 0.0
        fewer = (replace(own, micro_batches=count) for count in divisors(own.micro_batches)[:-1])
        known = ((each, self._pieces(each)) for each in fewer if self.steps.is_known(each))
        steps = (self._seconds(each, blocks, 0) for each, blocks in known if blocks is not None)
        return max(steps, default=0.0)

    def _of_less_again_s(self, own: Configuration) -> float:
        """Return what it takes at least by the same step with nothing computed again."""
        if own.recompute == NOTHING or own.in_parts:
            return 0.0
        if (blocks := self._pieces(replace(own, recompute=NOTHING))) is None:
            return 0.0
        if own.recompute != FULL:
            return self._seconds(own, blocks, 0)
        return self._seconds(own, self._again(own, blocks), self.steps.layers(own))

    def fitted_s(self, configuration: Configuration, in_parts: int) -> float:
        """Return what a step takes at least that is made to fit.

        Args:
            configuration: whose policy holds for layers that are not computed again as a whole.
            in_parts: what lies in parts.

        Returns:
            Seconds; 0 where nothing is known, infinity where it cannot fit.
        """
        own = replace(configuration, in_parts=in_parts)
        key = own, self.steps.pieces.planned
        if key not in self._known:
            is_known = self.steps.is_known(own) and not is_searched(own)
            self._known[key] = self._fitted_s(own) if is_known else 0.0
        return self._known[key]

    def _fitted_s(self, own: Configuration) -> float:
        if (blocks := self._pieces(own)) is not None:
            return self._with_again_s(own, blocks)
        for less in range(own.in_parts, -1, -1) if own.in_parts else ():
            like = replace(own, in_parts=less)
            if (blocks := self._pieces(like, of_fewer=True)) is not None:
                return self._seconds(own, in_more_parts(blocks), 0)
        return 0.0

    def _with_again_s(self, own: Configuration, blocks: Blocks) -> float:
        """Return what a step takes with the fewest layers computed again that let it fit."""
        steps, budget = self.steps, self.steps.budget(own)
        if own.recompute == FULL:
            held = steps.made_of(blocks, own, 0).held_bytes
            return self._seconds(own, blocks, 0) if max(held) <= budget else inf
        whole = self._pieces(replace(own, recompute=FULL))
        least = self._again(own, blocks) if whole is None else replace(blocks, again=whole.layer)

        def fits(layers: int) -> bool:
            return max(steps.made_of(least, own, layers).held_bytes) <= budget

        layers = fewest(depth := steps.layers(own), fits)
        if layers is not None and layers < depth:
            return self._seconds(own, least, layers)
        # With all of them again ends are other ones, too, which may hold less.
        if whole is None:
            return self._seconds(own, least, depth)
        full = steps.made_of(whole, replace(own, recompute=FULL), 0)
        seconds = full.simulation.seconds if max(full.held_bytes) <= budget else inf
        return seconds if layers is None else min(seconds, self._seconds(own, least, depth))

    def _again(self, own: Configuration, blocks: Blocks) -> Blocks:
        device = self.steps.cluster.fit(own.mesh).device
        ranks = own.inner.num_ranks
        # Of unequal devices each has a peak of its own.
        work = () if self.steps.cluster.unequal else self.again
        seconds = sum(flops / device.flops(dtype) for dtype, flops in work)
        return computed_again(blocks, seconds / (own.micro_batches * ranks), ranks)

    def _pieces(self, own: Configuration, *, of_fewer: bool = False) -> Blocks | None:
        """Return pieces that are planned.

        Args:
            own: the step that they are of.
            of_fewer: those of fewer copies of the model do as well, each with as many samples.
        """
        splits = self.steps.splits(own)
        assert splits is not None
        return self.steps.pieces.known(own, splits=splits, of_fewer=of_fewer)

    def _seconds(self, own: Configuration, blocks: Blocks, again: int) -> float:
        return self.steps.made_of(blocks, own, again).simulation.seconds
