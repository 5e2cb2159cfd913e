"""The planning problem as data: nodes that choose, nets that join what they chose.

A node (an op, an argument, a result of a block) chooses one of its options. A net is one value: its
producer's option says how the value lies, each reader's option how it wants it, and the difference
is paid as boxing, by a tree that the readers share (`irc.sharding.trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from irc.dialects.placement import Placement
from irc.sharding.boxing import LocalShape
from irc.sharding.trees import Tree, Trees

if TYPE_CHECKING:
    from irc.search.liveness import Liveness, Moment


@dataclass(frozen=True)
class Node:
    """Something that chooses one option.

    Attributes:
        name: for messages; unique.
        seconds: the cost of each option, once.
        count: how often the node runs: the calls of its block.
    """

    name: str
    seconds: tuple[float, ...]
    count: int = 1


@dataclass(frozen=True, eq=False)
class Port:
    """Where a node meets a net: the placement that each of the node's options has there.

    Ports are equal where they are the same object.
    """

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
    """Nodes, nets, and how many bytes a device may hold.

    Attributes:
        nodes: what chooses.
        nets: values that join them.
        memory_bytes: what a device may hold at any moment; None: as much as it takes.
        stored_bytes: what it may hold all the time, of parameters, states and other loaded values.
        liveness: what is held when.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    nets: list[Net] = field(default_factory=list[Net])
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    liveness: Liveness | None = None

    def add_node(self, node: Node) -> int:
        """Add a node and return its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add_net(self, net: Net) -> int | None:
        """Add a net, or once more one that is there, and return its index.

        A reader twice counts once, and a net whose readers all are its producer not at all.
        """
        sinks = tuple(dict.fromkeys(sink for sink in net.sinks if sink is not net.source))
        if not sinks:
            return None
        key = net.shape, net.dtype, net.source, sinks
        index = self._places.setdefault(key, len(self.nets))
        if index == len(self.nets):
            self.nets.append(Net(*key, net.count))
        else:
            self.nets[index] = Net(*key, self.nets[index].count + net.count)
        return index

    def __post_init__(self) -> None:
        self._places: dict[tuple[LocalShape, str, Port, tuple[Port, ...]], int] = {}

    def tree(self, net: Net, choice: Choice, trees: Trees) -> Tree | None:
        """Return the boxings of one net under a choice; None where they do not exist."""
        source = net.source.placements[choice[net.source.node]]
        targets = [sink.placements[choice[sink.node]] for sink in net.sinks]
        return trees.tree(net.shape, net.dtype, source, targets)

    def seconds(self, choice: Choice, trees: Trees) -> float | None:
        """Return the cost of a choice; None where a boxing or the memory forbids it."""
        if self.short_at(choice, trees) is not None:
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

    def num_bytes(self, choice: Choice, trees: Trees) -> int:
        """Return the bytes that a device holds under a choice when it holds most."""
        return self.liveness.worst(choice, trees)[0] if self.liveness else 0

    def short_at(self, choice: Choice, trees: Trees) -> Moment | None:
        """Return the moment that needs most, where that is more than a device has.

        The empty moment stands for all the time: what is loaded is too much.
        """
        if self.liveness is None:
            return None
        if self.stored_bytes is not None and self.liveness.stored(choice) > self.stored_bytes:
            return ()
        if self.memory_bytes is None:
            return None
        held, moment = self.liveness.worst(choice, trees)
        return moment if held > self.memory_bytes else None
