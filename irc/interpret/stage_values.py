"""Values of a stage of a plan, by the id that they have at every level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from irc.dialects.placement import Placement

if TYPE_CHECKING:
    import torch

Key: TypeAlias = tuple[str, int]
"""Op id, qualified by the calls around it, and result index."""


@dataclass(frozen=True)
class Value:
    """One value of a stage, with what a report says about it.

    Attributes:
        wholes: the logical tensor; more than one where replicas or copies are held, one for each.
        op: the op's name.
        loc: the user's source line.
        placement: how the mesh holds it, None on one device.
        before: what the same memory held until it was written again: of values that share it,
            each is right at one time.
    """

    wholes: tuple[torch.Tensor, ...]
    op: str
    loc: str
    placement: Placement | None
    before: Value | None = None

    def error(self, reference: Value) -> float:
        """Return the largest error of any replica, relative to the reference's magnitude."""
        from irc.interpret.levels import difference

        now = max(difference(whole, reference.wholes[0]) for whole in self.wholes)
        return now if self.before is None else min(now, self.before.error(reference))


Stages: TypeAlias = Mapping[str, Callable[[], dict[Key, Value]]]


AGAIN = "#"
"""Between a pass and a number, in the name of the stage of its second run or a later one."""
