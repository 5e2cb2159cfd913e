"""Values of registers in the memory of a GPU's host, and how they get there: beside its kernels.

What leaves goes on one stream and what comes back on another, each begun after all that the current
stream has begun; the current stream waits for their ends, and the host for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from irc.errors import IrcError
from irc.runtime.outside import Move, Run, bytes_of, device_of_slots, outside_of, places_outside
from irc.schedule.tapes import Place, Tape


class HostMoves:
    """Moves values between slots and pinned memory.

    In Triton's interpreter slots are in the memory of the host: there they are copied in it.

    Args:
        tape: of the rank.
        registers: by slot.

    Raises:
        IrcError: ``offload-storage`` where there is too little memory.
    """

    def __init__(self, tape: Tape, registers: Mapping[Place, torch.Tensor]) -> None:
        device = device_of_slots(registers)
        self._out, self._back = copies_on(device), copies_on(device)
        sizes = places_outside(tape, registers)
        self._outside = pinned(sizes, device)
        self.num_bytes = sum(sizes.values())
        self._begun: dict[Place | None, Run] = {}

    def step(self, events: Sequence[Move]) -> Run:
        """Return what does moves."""
        what, begun = events[0][0].what, self._begun
        places = [event.place for event, _ in events]
        if what in ("stored", "fetched"):

            def finish() -> None:
                for place in places:
                    begun.pop(place)()

            return finish
        pairs = [(self._outside[outside_of(event)], bytes_of(slot)) for event, slot in events]
        begin = (self._out if what == "store" else self._back).begin
        pairs = pairs if what == "store" else [(slot, outside) for outside, slot in pairs]

        def move() -> None:
            for place, (target, source) in zip(places, pairs, strict=True):
                begun[place] = begin(target, source)

        return move


class StreamCopies:
    """Copies between a GPU and pinned memory of its host, on a stream of their own.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Run:
        """Begin a copy, after all that has begun; return what lets all that follows wait for it."""
        done = self.enqueue(target, source)
        return lambda: torch.cuda.current_stream(self._device).wait_event(done)

    def enqueue(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin a copy, after all that has begun; return the event of its end."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._stream.record_event()


class PlainCopies:
    """Copies in the memory of the host, done at once."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Run:
        """Copy; there is nothing to wait for then."""
        target.copy_(source)
        return lambda: None


def copies_on(device: torch.device) -> StreamCopies | PlainCopies:
    """Return what copies between a device and the memory of its host."""
    return PlainCopies() if device.type == "cpu" else StreamCopies(device)


def pinned(sizes: Mapping[Any, int], device: torch.device) -> dict[Any, torch.Tensor]:
    """Return bytes in the memory of the host by name, which a GPU can copy while it computes.

    Raises:
        IrcError: ``offload-storage``.
    """
    is_pinned = device.type != "cpu"
    try:
        return {
            name: torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
            for name, size in sizes.items()
        }
    except RuntimeError as error:  # as torch says that memory is short
        raise IrcError(
            "offload-storage",
            f"the host has too little memory for {sum(sizes.values())} bytes of saved activations",
            because=str(error).partition("\n")[0],
            help="choose offload='disk', fewer micro-batches, or fewer ranks on a host",
        ) from error
