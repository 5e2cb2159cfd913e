"""The planning problem as data: nodes that choose, nets that join what they chose.

A node (an op, an argument, a result of a block) chooses one of its options. A net is one value: its
producer's option says how the value lies, each reader's option how it wants it, and the difference
is paid as boxing, by a tree that the readers share (`irc.sharding.trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from irc.dialects.placement import Placement
from irc.sharding.boxing import LocalShape
from irc.sharding.trees import Tree, Trees


@dataclass(frozen=True)
class Node:
    """Something that chooses one option.

    Attributes:
        name: for messages; unique.
        seconds: the cost of each option, once.
        count: how often the node runs: the calls of its block.
        num_bytes: the parameter bytes that a device holds under each option, all ``count``
        together;
            empty where it holds none.
    """

    name: str
    seconds: tuple[float, ...]
    count: int = 1
    num_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Port:
    """Where a node meets a net: the placement that each of the node's options has there."""

    node: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Net:
    """One value: who makes it and who reads it, ``count`` times."""

    shape: LocalShape
    dtype: str
    source: Port
    sinks: tuple[Port, ...]
    count: int = 1


Choice = Sequence[int]
"""The option of each node."""


@dataclass
class Problem:
    """Nodes, nets, and how many bytes of parameters a device may hold (None: any)."""

    nodes: list[Node] = field(default_factory=list[Node])
    nets: list[Net] = field(default_factory=list[Net])
    memory_bytes: int | None = None

    def add_node(self, node: Node) -> int:
        """Add a node and return its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add_net(self, net: Net) -> None:
        """Add a net; a reader twice counts once, and a net without readers not at all."""
        sinks = tuple(dict.fromkeys(net.sinks))
        if sinks:
            self.nets.append(replace(net, sinks=sinks))

    def merge_nets(self) -> None:
        """Make one net of those that join the same ports: a block called after itself."""
        merged: dict[Net, int] = {}
        for net in self.nets:
            key = replace(net, count=1)
            merged[key] = merged.get(key, 0) + net.count
        self.nets = [replace(net, count=count) for net, count in merged.items()]

    def tree(self, net: Net, choice: Choice, trees: Trees) -> Tree | None:
        """Return the boxings of one net under a choice; None where they do not exist."""
        source = net.source.placements[choice[net.source.node]]
        targets = [sink.placements[choice[sink.node]] for sink in net.sinks]
        return trees.tree(net.shape, net.dtype, source, targets)

    def seconds(self, choice: Choice, trees: Trees) -> float | None:
        """Return the cost of a choice; None where a boxing or the memory forbids it."""
        if self.memory_bytes is not None and self.num_bytes(choice) > self.memory_bytes:
            return None
        total = sum(
            node.count * node.seconds[option]
            for node, option in zip(self.nodes, choice, strict=True)
        )
        for net in self.nets:
            tree = self.tree(net, choice, trees)
            if tree is None:
                return None
            total += net.count * tree.seconds
        return total

    def num_bytes(self, choice: Choice) -> int:
        """Return the bytes of parameters that a device holds under a choice."""
        return sum(
            node.num_bytes[option]
            for node, option in zip(self.nodes, choice, strict=True)
            if node.num_bytes
        )
