"""What a search asks of a configuration, and what it is told: the simulator's verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import Configuration, Outline

OF_MEMORY = frozenset({"sharding-infeasible", "pipeline-memory"})
OF_CONFIGURATION = OF_MEMORY | {
    "chunk-whole", "mesh-axes", "mesh-axis-indivisible", "mesh-mismatch", "pipeline-stages",
    "pipeline-unsupported", "schedule-size",
}  # fmt: skip
"""Errors that say that one configuration cannot be; all others are of the model or the options."""

BOUNDLESS = 2**50
"""Bytes of a budget that everything fits into."""


@dataclass(frozen=True)
class Verdict:
    """What the simulator says of a plan.

    Attributes:
        step_s: of a step, or a call.
        num_bytes: that a device holds at the worst moment.
        bubble: the share of a step in which a rank waits for others, in the mean over ranks.
        exposed_s: for which compute waits for collectives, of a rank, in the mean.
        order: by rank, the device that it runs on; empty: they are in the order of the devices.
    """

    step_s: float
    num_bytes: int
    bubble: float = 0.0
    exposed_s: float = 0.0
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A configuration, and what came of it.

    Attributes:
        configuration: what was planned.
        verdict: None where there is no plan.
        error: why there is none.
        is_pinned: the user stated it, for comparison.
        objection: what is wrong with it, for which any other plan is preferred; empty: nothing.
        is_priced: the verdict is put together from pieces of the model; nothing is planned whole.
        priced_s: what pieces said of one that was planned whole since; None where they did not.
    """

    configuration: Configuration
    verdict: Verdict | None = None
    error: IrcError | None = None
    is_pinned: bool = False
    objection: str = ""
    is_priced: bool = False
    priced_s: float | None = None


class Judge(Protocol):
    """What a search asks: it captures, plans and simulates."""

    def outline(self) -> Outline:
        """Return what is known of the forward pass of the whole batch."""
        ...

    def budget_bytes(self, configuration: Configuration) -> int | None:
        """Return what each rank of a configuration may hold; None where ranks are unlike."""
        ...

    def within(self, memory_bytes: int) -> Judge:
        """Return a judge of the same under another budget."""
        ...

    def unpinned(self) -> Judge | None:
        """Return a judge without the user's constraints; None where there are none."""
        ...

    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes of one program, best first.

        Raises:
            IrcError: ``sharding-infeasible``.
        """
        ...

    def in_pieces(self) -> bool:
        """Whether the model has layers that pieces of it can stand for."""
        ...

    def begin(self, configurations: Iterable[Configuration], *, is_whole: bool) -> None:
        """Let configurations be computed ahead that will probably be asked for next.

        Others that were to be, and have not been begun, are not.

        Args:
            configurations: in the order in which they will be asked for.
            is_whole: they will be planned, not priced.
        """
        ...

    def end(self) -> None:
        """End what is computed ahead: nothing more is asked for."""
        ...

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what pieces of the model say of a configuration; None where they say nothing.

        Raises:
            IrcError: of the configuration, or of the model.
        """
        ...

    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        """Return the same step made to fit in the least time.

        Some layers are computed again, and what is held all the time lies in parts. None where it
        fits as it is, where nothing fits in less time, and where pieces say nothing.

        Args:
            configuration: to make smaller.
            beat_s: seconds; what takes as long at least is not looked for.

        Raises:
            IrcError: of the configuration, or of the model.
        """
        ...

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        """Return what a step takes at least, by pieces that are planned; 0 where none say that.

        Args:
            configuration: the step.
            is_fitted: made to fit in any way; else as it is, whatever it holds.
        """
        ...

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        """Plan a configuration and simulate it.

        Args:
            configuration: to plan.
            brief: where it does not fit say so alone, and not what would, which takes long.

        Raises:
            IrcError: of the configuration, or of the model.
        """
        ...
