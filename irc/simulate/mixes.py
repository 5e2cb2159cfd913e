"""Functions as single actions that hold ports: what they do for which part of their time.

A step of a pipeline runs each function as one action. Inside, kernels and collectives overlap; what
is sent to another stage meanwhile shares the ports with the collectives, and slows the kernels
down. A function goes through its mix many times (once a layer) while it runs, so it slows a
transfer down as much as its mix does on average, and takes as much longer itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from irc.cluster.interference import NO_INTERFERENCE, Interference
from irc.cluster.ports import COMPUTE, Ports
from irc.simulate.plan import Prediction

Mix: TypeAlias = tuple[tuple[tuple[str, ...], float], ...]
"""What runs at a time, a kind for each action, and the part of a function's time in which it does;
the parts add up to 1."""


def mix_of(predictions: Sequence[Prediction]) -> Mix:
    """Return what the streams of a rank do while some functions run one after the other."""
    seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for predicted in predictions:
        actions, timeline = predicted.actions, predicted.timeline
        spans = zip(actions, timeline.starts, timeline.ends, strict=True)
        changes = sorted(
            (at, is_end, action.kind)
            for action, begin, end in spans
            if end > begin
            for at, is_end in ((begin, False), (end, True))
        )
        running: Counter[str] = Counter()
        before = 0.0
        for at, is_end, kind in changes:
            seconds[tuple(sorted(running.elements()))] += at - before
            running[kind] += -1 if is_end else 1
            before = at
    total = sum(seconds.values())
    return tuple((kinds, each / total) for kinds, each in seconds.items() if each) if total else ()


@dataclass(frozen=True)
class MixedPorts:
    """The ports of a device that runs functions.

    Attributes:
        mixes: by kind of action, what a function does; one without is compute alone.
        ports: what they are measured by.
    """

    mixes: Mapping[str, Mix] = field(default_factory=dict[str, Mix])
    ports: Ports = field(default_factory=Ports)

    @staticmethod
    def of(mixes: Mapping[str, Mix], interference: Interference = NO_INTERFERENCE) -> MixedPorts:
        """Return those of a device whose ports and kernels slow each other down by a table."""
        return MixedPorts(mixes, Ports(interference))

    def rates(self, running: Mapping[str, float]) -> Mapping[str, float]:
        """Return how fast each of some kinds gets on, relative to alone.

        >>> half = (("compute", ), 0.5), (("compute", "nic"), 0.5)
        >>> rates = MixedPorts({"F": half}).rates({"F": 1, "nic out": 1})
        >>> rates["nic out"], rates["F"]
        (0.75, 1.0)
        """
        functions = [kind for kind in running if self.mixes.get(kind)]
        others = {kind: count for kind, count in running.items() if kind not in functions}
        faster = dict.fromkeys(others, 0.0)
        longer = dict.fromkeys(functions, 0.0)
        for parts in product(*(self.mixes[kind] for kind in functions)):
            part = 1.0
            inside = Counter(others)
            for kinds, own in parts:
                part *= own
                inside.update(kinds)
            rates = self.ports.rates({kind: n for kind, n in inside.items() if n})
            for kind in others:
                faster[kind] += part * rates[kind]
            for name, (kinds, _) in zip(functions, parts, strict=True):
                longer[name] += part * self._longer(kinds, rates)
        return {**faster, **{kind: 1.0 / factor for kind, factor in longer.items()}}

    def _longer(self, kinds: Sequence[str], rates: Mapping[str, float]) -> float:
        """Return how much longer a part of a function takes beside others than by itself.

        What it does beside compute is hidden by it, and may take longer.
        """
        alone = self.ports.rates(Counter(kinds))
        counted = (COMPUTE,) if COMPUTE in kinds else kinds
        return max((alone[kind] / rates[kind] for kind in counted), default=1.0)
