"""The search by whole plans: for a call, and where pieces of a model say nothing.

All that is tried is planned whole: meshes of one program that the integer program finds
(:mod:`irc.search.meshes`), what people lay out by hand, the first few steps by the closed form, and
what differs from the best in one choice as long as that helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import (
    FULL,
    NOTHING,
    Configuration,
    Outline,
    customary,
    neighbours,
)
from irc.search.judge import OF_CONFIGURATION, OF_MEMORY, Judged
from irc.search.searched_order import in_best_order
from irc.search.seeds import SEEDS, seeds, smallest
from irc.search.trials import Trials
from irc.search.within_less import plan_tighter


def search_by_plans(trials: Trials, devices: int) -> None:
    """Search on one number of devices."""
    trials.most = len(trials.judged) + trials.limits.most_judged
    _Plans(trials, devices, trials.most).run()


@dataclass(frozen=True)
class _Plans:
    trials: Trials
    devices: int
    most: int

    def run(self) -> None:
        trials = self.trials
        recompute, late = self._of_one_program()
        if not trials.is_training:
            plan_tighter(trials, trials.best())
            return
        outline = trials.judge.outline()
        hands = customary(outline, trials.cluster, self.devices)
        by_hand = [replace(each, recompute=recompute) for each in hands]
        first = seeds(trials, outline, self.devices)
        self._attempt((*first[:1], *by_hand, *first[1:]))
        if not trials.fits(self.devices):
            self._fit(outline, late)
        best = trials.best()
        while best is not None and best.configuration.mesh.num_ranks == self.devices:
            self._around(best, outline)
            if (now := trials.best()) is best:
                break
            best = now
        if (ordered := in_best_order(trials, self.devices)) is not None:
            # One more than most: it is what the best of them becomes.
            trials.attempt(ordered)

    def _attempt(self, configurations: Sequence[Configuration]) -> None:
        for place, each in enumerate(configurations):
            if len(self.trials.judged) < self.most:
                self.trials.begin(configurations[place + 1 :])
                self.trials.attempt(each)

    def _of_one_program(self) -> tuple[str, list[Configuration]]:
        """Try meshes of one program.

        Returns:
            What they recompute, and meshes that an expert would not use, which are left for where
            nothing else fits.
        """
        trials, devices = self.trials, self.devices
        recompute, meshes = self._meshes()
        ones = [Configuration(mesh, recompute=recompute) for mesh in meshes]
        late = [each for each in ones if trials.objection(each)]
        right = [each for each in ones if each not in late]
        trials.begin(right[1:])
        for first in right[:1]:
            trials.attempt(first)
        self._attempt(right[1:])
        if devices > 1 and self._are_indivisible(meshes, recompute):
            # Its samples are whole on every device, so that any batch will do.
            whole = Configuration(Mesh((("tensor", devices),)), recompute=recompute)
            if trials.objection(whole):
                late.append(whole)
            else:
                trials.attempt(whole)
        return recompute, late

    def _fit(self, outline: Outline, late: Sequence[Configuration]) -> None:
        """Try what holds least until something fits; last what an expert would not do."""
        trials = self.trials
        least = smallest(trials, outline, self.devices)
        wrong = [*late, *(each for each in least if trials.objection(each))]
        for each in least:
            is_open = len(trials.judged) < self.most and not trials.fits(self.devices)
            if is_open and each not in wrong:
                trials.attempt(each)
        for last in wrong[:SEEDS]:
            if not trials.fits(self.devices):
                trials.attempt(last)

    def _around(self, best: Judged, outline: Outline) -> None:
        """Try what differs from the best in one choice; where none is better, it within less."""
        trials = self.trials
        others = neighbours(best.configuration, outline)
        self._attempt([each for each in others if best.objection or not trials.objection(each)])
        if trials.best() is best:
            plan_tighter(trials, best)

    def _are_indivisible(self, meshes: Sequence[Mesh], recompute: str) -> bool:
        """True where meshes were tried, and each would have divided what does not divide so."""
        judged = self.trials.judged
        tried = [judged.get(Configuration(mesh, recompute=recompute)) for mesh in meshes]
        errors = [each.error for each in tried if each is not None]
        return bool(errors) and all(
            error is not None and error.code not in OF_MEMORY for error in errors
        )

    def _meshes(self) -> tuple[str, Sequence[Mesh]]:
        """Return the best meshes of one program, and what it recomputes so that it fits."""
        trials, devices = self.trials, self.devices
        if devices == 1:
            return NOTHING, [Mesh(())]
        if trials.limits.micro_batches not in (None, 1):
            return NOTHING, []
        trials.check_time()
        one = Configuration(Mesh((("data", devices),)))
        policies = (NOTHING, FULL) if trials.is_training else (NOTHING,)
        for recompute in policies:
            trials.tell(f"searching meshes of {devices} devices")
            try:
                return recompute, trials.judge.meshes(devices, recompute)
            except IrcError as error:
                if error.code not in OF_CONFIGURATION:
                    raise
                if recompute != policies[-1]:
                    trials.judged[one] = Judged(one, error=error)
        return policies[-1], [one.mesh]
