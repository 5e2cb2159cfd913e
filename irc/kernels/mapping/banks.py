"""Bank conflicts of shared memory: how many turns one access of a warp takes, exactly.

Shared memory has 32 banks of 4 bytes; word ``w`` is in bank ``w % 32``. A turn serves one word of
each bank; lanes that want the same word share it. Accesses of 8 bytes a lane are done in halves of
the warp, of 16 bytes in quarters, each a phase of its own (CUDA C++ programming guide, "Shared
memory"; Jia et al., arXiv:1804.06826, section 3.4). ``ldmatrix`` reads eight rows of 16 bytes a
phase, so it is an access of 16 bytes whose lanes name the rows.

>>> [turns([lane * width for lane in range(32)], width).count for width in (4, 8)]
[1, 2]
>>> turns([lane * 128 for lane in range(32)], 16)
Turns(phases=(8, 8, 8, 8))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from irc.dialects.mapping import TaskMapping

BANKS = 32
WORD = 4
"""Bytes of a bank."""


@dataclass(frozen=True)
class Turns:
    """The turns of each phase of an access; 1 each is free of conflicts."""

    phases: tuple[int, ...]

    @property
    def count(self) -> int:
        """All turns."""
        return sum(self.phases)

    @property
    def is_free(self) -> bool:
        """True where no lane waits for another one's word."""
        return all(phase <= 1 for phase in self.phases)


def phases(addresses: Sequence[int | None], width: int) -> list[list[int]]:
    """Part the lanes of an access into phases, as lists of byte addresses.

    Args:
        addresses: of each lane in bytes, None for a lane that is masked.
        width: bytes of each lane: 1, 2, 4, 8 or 16.

    Raises:
        ValueError: for another width, and for an address that is no multiple of it.
    """
    if width not in (1, 2, 4, 8, 16):
        raise ValueError(f"a lane accesses 1, 2, 4, 8 or 16 bytes, not {width}")
    for lane, address in enumerate(addresses):
        if address is not None and address % width:
            raise ValueError(f"lane {lane} accesses {width} bytes at {address}: not aligned")
    lanes = BANKS * WORD // max(width, WORD)
    parts = [addresses[at : at + lanes] for at in range(0, len(addresses), lanes)]
    return [[a for a in part if a is not None] for part in parts]


def turns(addresses: Sequence[int | None], width: int) -> Turns:
    """Count the turns of an access.

    Args:
        addresses: of each lane in bytes, None for a lane that is masked.
        width: bytes of each lane: 1, 2, 4, 8 or 16.
    """
    return Turns(tuple(max(map(len, _banks(part, width)), default=0)
                       for part in phases(addresses, width)))  # fmt: skip


def _banks(part: Sequence[int], width: int) -> list[set[int]]:
    """The words that one phase wants of each bank."""
    wanted: list[set[int]] = [set() for _ in range(BANKS)]
    for address in part:
        for word in range(address // WORD, (address + width - 1) // WORD + 1):
            wanted[word % BANKS].add(word)
    return wanted


def verify_free(addresses: Sequence[int | None], width: int, name: str = "the access") -> None:
    """Prove that an access has no bank conflicts.

    Raises:
        ValueError: with the first bank of which two words are wanted, and the lanes that want them.
    """
    for number, part in enumerate(phases(addresses, width)):
        for bank, words in enumerate(_banks(part, width)):
            if len(words) < 2:
                continue
            one, other = sorted(words)[:2]
            lanes = [_lane_of(addresses, width, word) for word in (one, other)]
            raise ValueError(
                f"{name} wants {len(words)} words of bank {bank} in phase {number}: bytes"
                f" {one * WORD} (lane {lanes[0]}) and {other * WORD} (lane {lanes[1]})"
            )


def _lane_of(addresses: Sequence[int | None], width: int, word: int) -> int:
    return next(
        lane
        for lane, address in enumerate(addresses)
        if address is not None and address // WORD <= word <= (address + width - 1) // WORD
    )


def warp_accesses(
    mapping: TaskMapping, place: Callable[[Sequence[int]], int], item_bytes: int, warp: int = 0
) -> list[list[int | None]]:
    """Return the byte addresses of a warp at each step of a mapping of lanes to elements.

    Args:
        mapping: workers are threads, tasks elements (or vectors) of a tile.
        place: where an element lies, counted in items: a layout.
        item_bytes: bytes from one place to the next.
        warp: which warp of the mapping.
    """
    lanes = range(warp * BANKS, min((warp + 1) * BANKS, mapping.num_workers))
    lists = [mapping.tasks(lane) for lane in lanes]
    return [[place(task) * item_bytes for task in step] for step in zip(*lists, strict=True)]
