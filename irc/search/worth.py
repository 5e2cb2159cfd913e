"""Which configurations are worth a price, and which are left alone for what they take at least.

Three things are known of a configuration before its pieces are planned: what the closed form says,
beside what it said of those that have a price; what pieces say of the step as it is, which any step
that is made smaller takes too; and what a step that is made smaller takes at least by the pieces
that are known (:mod:`irc.search.least_pieces`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from irc.search.configurations import TIGHTER, Configuration, Outline
from irc.search.trials import Trials
from irc.search.tried import Left

BEHIND = 1.15
"""What seems to take so many times the best one is not priced: estimates are so far off."""

LEAST_KNOWN = 2
"""So many prices say by how much estimates are short of prices."""

PRICE_ERROR = 0.05
"""Of the step of a whole plan: so far off are prices from pieces, as tests hold them to."""

ALIKE_ERROR = 0.02
"""So far off are prices of one search from each other: what one is off, the others are about.

Bounds are of the same pieces as prices. What is left alone by this little is noted, and looked at
once more when the best has a plan, which says how far off they are.
"""


@dataclass(frozen=True)
class Worth:
    """Says what is worth a price.

    Attributes:
        trials: what was tried.
        outline: of the forward pass of the whole batch.
        devices: that configurations are on.
        most: that are priced.
        error: of bounds, beside the step that they are held against.
    """

    trials: Trials
    outline: Outline
    devices: int
    most: int
    error: float = ALIKE_ERROR

    def is_worth(self, configuration: Configuration, least_s: float) -> bool:
        """Whether to price a configuration, or to make one smaller that takes so long at least.

        What is not, for what it seems to take, or takes at least, is noted.

        Args:
            configuration: to be priced.
            least_s: seconds that it takes whatever is chosen of it; 0 where that is not known.
        """
        left = self.behind(configuration, least_s)
        if left is not None and left.seconds:
            self.trials.left[configuration] = left
        return left is None

    def beat_s(self) -> float:
        """Return the seconds that a price is to be below, by the error of bounds; infinity."""
        steps = self._steps()
        return min(steps.values()) / (1 - self.error) if steps else inf

    def behind(self, configuration: Configuration, least_s: float) -> Left | None:
        """Return None for what is worth a price, else the seconds for which it is not, or 0.

        It is not where even by the price that was least beside its estimate it would be far behind
        the best one; nor where it is behind whatever is chosen of it; nor where fewer micro-batches
        of the same step fit with room, in which nothing waits for a stage.
        """
        trials = self.trials
        if len(trials.judged) >= self.most or not trials.prices:
            return Left(0.0)
        if not (steps := self._steps()):
            return None
        if any(is_in_fewer(configuration, own) for own in steps if self._has_room(own)):
            return Left(0.0)
        ratio = min(step_s / self.estimate(own) for own, step_s in steps.items())
        likely_s = ratio * self.estimate(configuration) if len(steps) >= LEAST_KNOWN else 0.0
        best_s = min(steps.values())
        if least_s * (1 - self.error) > best_s:
            return Left(least_s, is_bound=True)
        return Left(likely_s) if likely_s >= BEHIND * best_s else None

    def estimate(self, configuration: Configuration) -> float:
        """Return about what a step takes, by the closed form."""
        return self.trials.estimate(self.outline, configuration)

    def _steps(self) -> dict[Configuration, float]:
        """Return what steps take that others are held against; none for other objectives."""
        if self.trials.limits.objective not in ("throughput", "latency"):
            return {}
        # What has an objection is no measure: anything without is preferred, however slow.
        return {
            own: each.verdict.step_s
            for own, each in self.trials.judged.items()
            if each.verdict and not each.objection and own.mesh.num_ranks == self.devices
        }

    def _has_room(self, configuration: Configuration) -> bool:
        """Whether a whole plan fits, too, which holds a little more or less than its price says."""
        budget = self.trials.judge.budget_bytes(configuration)
        verdict = self.trials.judged[configuration].verdict
        return budget is None or (verdict is not None and verdict.num_bytes <= TIGHTER * budget)


def is_in_fewer(own: Configuration, known: Configuration) -> bool:
    """Return whether what fits is the same step in fewer micro-batches, of one program a rank.

    More of them compute as much, in smaller products and more launches, and sum gradients behind
    the last one alone: they are there to hold less, and to fill a pipeline.

    >>> from irc.dialects.placement import Mesh
    >>> four, two = (Configuration(Mesh.parse("data=8"), count) for count in (4, 2))
    >>> is_in_fewer(four, two), is_in_fewer(two, four)
    (True, False)
    """
    if own.pipe > 1 or known.micro_batches >= own.micro_batches:
        return False
    return replace(known, micro_batches=own.micro_batches) == own
