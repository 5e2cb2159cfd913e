"""What the actions of a plan take, told apart by the layers of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from irc.plan.schema import Plan, Start, Step, touched
from irc.programs.short_steps import LayerOps, Where
from irc.simulate.actions import SimAction
from irc.simulate.plan import Prediction, steps

COMPUTE = "compute"


def inner(numbers: Sequence[float]) -> float:
    """Return what an inner layer has: the outer ones wait for more than others, or for less.

    >>> inner([9.0, 9.0, 1.0, 2.0, 2.0, 3.0, 9.0, 9.0]), inner([])
    (2.0, 0.0)
    """
    skip = len(numbers) // 4
    own = numbers[skip : len(numbers) - skip]
    return sum(own) / len(own) if own else 0.0


class Places:
    """Where in a model the steps of a plan are.

    A step is of the layer of its op. What is of no op gathers a weight, sums its gradient or moves
    it, and is of the layer that reads the weight.

    Attributes:
        count: layers that were planned.
        positions: launches one by one, each with the position of its action.
        steps: these without the positions.
        where: of each step, its piece.
        layers: of each step, the numbers of its layers; several where one moves several weights.
    """

    def __init__(self, plan: Plan, ops: LayerOps) -> None:
        self._plan, self._ops, self.count = plan, ops, ops.num_layers
        self.positions = steps(plan)
        self.steps = [step for _, step in self.positions]
        self.layers = [self._layers(step) for step in self.steps]
        self.where: list[Where] = [
            self._where(*own) for own in zip(self.steps, self.layers, strict=True)
        ]

    def of_actions(self, prediction: Prediction) -> Iterator[tuple[int, SimAction, float, float]]:
        """Yield the step of each action that was simulated, with its start and end in seconds."""
        # A collective is two actions: it is issued, and it is on a link.
        places = (
            n for n, step in enumerate(self.steps) for _ in range(1 + isinstance(step, Start))
        )
        times = prediction.timeline.starts, prediction.timeline.ends
        yield from zip(places, prediction.actions, *times, strict=True)

    def share(self, numbers: list[float], place: int, number: float) -> None:
        """Add a number to those of a step's layers."""
        own = self.layers[place]
        for layer in own:
            numbers[layer] += number / len(own)

    def _weights(self, step: Step) -> set[str]:
        roots = (self._plan.root(index) for index in touched(step, self._plan.actions))
        return {self._plan.buffers[root].name for root in roots} - {""}

    def _layers(self, step: Step) -> tuple[int, ...]:
        if self._ops.is_known(step.id):
            number = self._ops.layer(step.id)
            return () if number is None else (number,)
        numbers = map(self._ops.holding_layer, self._weights(step))
        return tuple(sorted({number for number in numbers if number is not None}))

    def _where(self, step: Step, layers: Sequence[int]) -> Where:
        if layers:
            return "layer"
        if self._ops.is_known(step.id) or not (names := self._weights(step)):
            return self._ops.where(step.id)
        return self._ops.holder(min(names))


class LayerTimes:
    """What layers take of each stream, of compute with what it waits for.

    A layer more takes as long as an inner one does, or as its collectives hold a link where that is
    longer: those that nothing waits for at once pile up behind each other, layer after layer.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._streams = {COMPUTE: [0.0] * places.count}
        self._waits = [0.0] * places.count

    def add(self, place: int, stream: str, seconds: float, idle_s: float = 0.0) -> None:
        """Note a step: what passes of its stream until it ends, and how long it waits meanwhile."""
        own = self._streams.setdefault(stream, [0.0] * self._places.count)
        self._places.share(own, place, seconds)
        self._places.share(self._waits, place, idle_s)

    @property
    def seconds(self) -> float:
        """Of compute, of all layers."""
        return sum(self._streams[COMPUTE])

    @property
    def idle_s(self) -> float:
        """Of these, for which compute waits."""
        return sum(self._waits)

    @property
    def layer_s(self) -> float:
        """What a layer more takes."""
        return max(map(inner, self._streams.values()))

    @property
    def layer_idle_s(self) -> float:
        """Of that, for which compute waits."""
        return inner(self._waits) + self.layer_s - inner(self._streams[COMPUTE])
