"""What the parts of a step take, in whichever order they run: what orders of it are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from irc.schedule.actions import Schedule
from irc.schedule.tapes import Function, Tape, Wiring
from irc.simulate.actions import Resource
from irc.simulate.costs import Costs
from irc.simulate.schedule import Simulation
from irc.simulate.tapes import Moves, Ways, simulate_tapes


@dataclass(frozen=True)
class Priced:
    """A step without an order.

    Attributes:
        wiring: of its stages.
        costs: of its stages.
        ways: what values take between stages that lie where they do.
        sizes: bytes of a slot, by stage and register.
        moves: of values that leave their slots; None where none does.
        device: what streams of a rank share; None: each runs as if alone.
    """

    wiring: Wiring
    costs: Costs
    ways: Ways
    sizes: Mapping[tuple[int, str], float]
    moves: Moves | None = None
    device: Resource | None = None

    def simulate(self, schedule: Schedule, tapes: Sequence[Tape]) -> Simulation:
        """Simulate the step in an order."""
        return simulate_tapes(
            schedule, tapes, self.costs, self.ways, self.sizes, moves=self.moves, device=self.device
        )

    def joined(self) -> Priced:
        """Return the same with one register for all that the same functions make and read.

        They are alive together and take as many slots, so that the step and its bytes are the
        same, and an order is spelt out in a fraction of the time. Where values are moved, each has
        a move of its own; nothing is joined then. Stages are those of a schedule with one path.
        """
        if self.moves is not None:
            return self
        on_ways = {(r.producer, r.register) for r in self.wiring.routes}
        on_ways |= {(r.consumer, r.name) for r in self.wiring.routes}
        functions: list[Mapping[str, Function]] = []
        sizes: dict[tuple[int, str], float] = {}
        for stage, own in enumerate(self.wiring.functions):
            # By what stands for it, the names that it stands for.
            joined: dict[object, str] = {}
            name_of: dict[str, str] = {}
            for name in dict.fromkeys(n for f in own.values() for n in (*f.makes, *f.reads)):
                makers = tuple(kind for kind, f in own.items() if name in f.makes)
                readers = tuple(kind for kind, f in own.items() if name in f.reads)
                is_sent = (stage, name) in on_ways
                first = joined.setdefault(name if is_sent else (makers, readers), name)
                name_of[name] = first
                size = self.sizes.get((stage, name), 0.0)
                sizes[stage, first] = sizes.get((stage, first), 0.0) + size
            functions.append(
                {
                    kind: Function(
                        tuple(dict.fromkeys(name_of[name] for name in f.reads)),
                        tuple(dict.fromkeys(name_of[name] for name in f.makes)),
                    )
                    for kind, f in own.items()
                }
            )
        wiring = replace(self.wiring, functions=tuple(functions))
        return replace(self, wiring=wiring, sizes=sizes)
