"""A rank's weights as its kernels read them: contiguous; in place where they are so already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from irc.errors import IrcError
from irc.plan.schema import Buffer, Plan
from irc.runtime.addresses import check_elements
from irc.runtime.contents import Watch, watch_of
from irc.runtime.dtypes import dtypes
from irc.runtime.rooms import is_short, room_of, with_room


@dataclass
class WeightCopy:
    """A weight of other strides or without room, its copy, and the version that was copied.

    Where it is watched, writes count that torch does not count.
    """

    weight: torch.Tensor
    copy: torch.Tensor
    version: int | None
    watch: Watch | None = None

    def shows(self, weight: torch.Tensor) -> bool:
        """True where the copy is one of this memory, read in this way."""
        own = self.weight
        return (own.data_ptr(), own.shape, own.stride(), own.dtype) == (
            weight.data_ptr(),
            weight.shape,
            weight.stride(),
            weight.dtype,
        )


class LocalWeights:
    """Tensors by buffer of the plan; the copies among them follow what they are copies of.

    torch counts writes to a tensor, so a copy is made again only where there was one. It does not
    count those through ``.data``: where copies are watched (:meth:`watch`), they are seen as well.

    Args:
        plan: says which weights, and which are written to.
        tensors: this rank's parts, by name.
        copies: contiguous copies by name, shared by the plans of one model; new ones are added.

    Raises:
        IrcError: ``input-mismatch`` where one is missing or is not what the plan takes.
    """

    def __init__(
        self,
        plan: Plan,
        tensors: Mapping[str, torch.Tensor],
        copies: dict[str, WeightCopy] | None = None,
    ) -> None:
        self.by_buffer: dict[int, torch.Tensor] = {}
        self._copies: list[WeightCopy] = []
        self._states: list[WeightCopy] = []
        self._is_watched = False
        known = {} if copies is None else copies
        for index in plan.weights:
            buffer = plan.buffers[index]
            if buffer.name not in tensors:
                raise IrcError("input-mismatch", f"no value for weight '{buffer.name}'")
            tensor = tensors[buffer.name].detach()
            if buffer.rows:
                tensor = self._room(tensor, buffer, known, is_state=index in plan.states())
            if tuple(tensor.shape) != buffer.shape or tensor.dtype != dtypes()[buffer.dtype]:
                raise IrcError(
                    "input-mismatch",
                    f"weight '{buffer.name}' is {list(tensor.shape)} {tensor.dtype} on this rank; "
                    f"the plan takes {list(buffer.shape)} {dtypes()[buffer.dtype]}",
                )
            check_elements(tensor, f"weight '{buffer.name}'")
            if not tensor.is_contiguous():
                held = known.get(buffer.name)
                if held is None or not held.shows(tensor):
                    held = WeightCopy(tensor, tensor.contiguous(), version_of(tensor))
                    known[buffer.name] = held
                self._copies.append(held)
                if index in plan.states():
                    self._states.append(held)
                tensor = held.copy
            self.by_buffer[index] = tensor

    def _room(
        self,
        front: torch.Tensor,
        buffer: Buffer,
        known: dict[str, WeightCopy],
        *,
        is_state: bool,
    ) -> torch.Tensor:
        """Return memory with padding of which a part, or else a copy of it, is the front."""
        room = room_of(front, buffer.shape)
        if room is not None or not is_short(front, buffer):
            return front if room is None else room
        # A device that it was moved to has the front alone, and so has what was loaded.
        held = known.get(buffer.name)
        if held is None or not held.shows(front):
            held = WeightCopy(front, with_room(front, buffer.shape), version_of(front))
            known[buffer.name] = held
        self._copies.append(held)
        if is_state:
            self._states.append(held)
        room = room_of(held.copy, buffer.shape)
        assert room is not None
        return room

    @property
    def are_copied(self) -> bool:
        """Whether any weight is a copy, so that calls must keep it in step."""
        return bool(self._copies)

    def watch(self, segments: Sequence[object]) -> None:
        """See writes that torch does not count, too.

        Args:
            segments: of the plan; their backend reads the memory, if it can.
        """
        self._is_watched = True
        states = set(map(id, self._states))
        for each in self._copies:
            each.version = None
            if id(each) not in states:
                each.watch = watch_of(segments, [each.weight])

    def refresh(self) -> None:
        """Copy again what has been written to since."""
        for each in self._copies:
            now, differs = version_of(each.weight), self._may_differ(each)
            if now is None or now != each.version or differs:
                each.copy.copy_(each.weight)
                each.version = now

    def _may_differ(self, copy: WeightCopy) -> bool:
        """True for a copy of what holds something else now, or cannot be watched."""
        return self._is_watched and (copy.watch is None or copy.watch.looked())

    def write_back(self) -> None:
        """Copy the states back to where they came from."""
        for each in self._states:
            each.weight.copy_(each.copy)
            each.version = version_of(each.weight)


def version_of(tensor: torch.Tensor) -> int | None:
    """Return torch's count of writes to a tensor; inference tensors have none."""
    return None if tensor.is_inference() else tensor._version
