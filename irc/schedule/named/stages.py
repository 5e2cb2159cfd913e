"""How many stages a rank has, and which: looped (r, p + r, ...) or as a V (r, 2p - 1 - r)."""

from __future__ import annotations

from irc.errors import IrcError


def one_stage_each(name: str, chunks: int) -> None:
    """Refuse more than one stage a rank.

    Raises:
        IrcError: ``schedule-size``.
    """
    if chunks not in (0, 1):
        raise IrcError(
            "schedule-size", f"schedule '{name}' has one stage a rank, not {chunks}",
            help="interleaved:2 and breadth-first:2 have several",
        )  # fmt: skip


def two_stages_each(name: str, chunks: int) -> None:
    """Refuse anything but two stages a rank.

    Raises:
        IrcError: ``schedule-size``.
    """
    if chunks not in (0, 2):
        raise IrcError("schedule-size", f"schedule '{name}' has two stages a rank, not {chunks}")


def v_stages(rank: int, ranks: int) -> tuple[int, int]:
    """Return the two stages of a rank where the second half of the model comes back.

    >>> [v_stages(rank, 3) for rank in range(3)]
    [(0, 5), (1, 4), (2, 3)]
    """
    return rank, 2 * ranks - 1 - rank
