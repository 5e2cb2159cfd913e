"""What a node's own description says: its GPUs, what joins them, and its ports to other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from irc.errors import IrcError


@dataclass(frozen=True)
class Node:
    """A node of GPUs.

    Attributes:
        source: what described it, for messages and comments.
        gpus: how many.
        kind: a key of `irc.cluster.presets.KINDS`; empty where the description does not name it.
        switched: NVLinks that each GPU has to switches; 0: none.
        wires: NVLinks between two GPUs, by their numbers, the smaller one first.
        pcie_bytes_per_s: of the slowest GPU's slot, one way; 0 where it is not said.
        ports: bytes per second of each port to other nodes, one way; None where it is not said.
    """

    source: str
    gpus: int
    kind: str = ""
    switched: int = 0
    wires: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    pcie_bytes_per_s: float = 0.0
    ports: tuple[float | None, ...] = ()


def unreadable(source: str, problem: str, remedy: str = "") -> IrcError:
    """Return the error of a description that cannot be read."""
    return IrcError("cluster-import", f"cannot read {source}: {problem}", help=remedy)
