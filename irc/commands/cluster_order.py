"""`irc cluster order`: which rank runs on which device, where wires or devices differ."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from irc.errors import IrcError

if TYPE_CHECKING:
    from irc.cluster.topology import Cluster
    from irc.dialects.placement import Mesh

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "B": 1.0, "": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only `irc cluster order` takes."""
    parser.add_argument(
        "--traffic",
        metavar="AXIS=BYTES,..",
        help="order: what a rank sends to its neighbour on each axis in a step, as in"
        " tensor=8GB,pipe=100MB; pipe is a line, other axes are rings (default: all the same)",
    )


@dataclass(frozen=True)
class Ordered:
    """The best order of a cluster's devices for a mesh.

    Attributes:
        devices: the device of each rank.
        seconds: that the traffic of a step takes so.
        unordered_s: the same in the order of devices.
        cluster: in that order.
        name: of the cluster before.
    """

    devices: tuple[int, ...]
    seconds: float
    unordered_s: float
    cluster: Cluster
    name: str

    def __str__(self) -> str:
        return (
            f"ranks 0 to {len(self.devices) - 1} on devices {', '.join(map(str, self.devices))}\n"
            f"traffic of a step {self.seconds * 1e3:.4g} ms, {self.unordered_s * 1e3:.4g} ms in the"
            " order of devices"
        )

    @property
    def note(self) -> str:
        """What stands on top of its file."""
        devices = ", ".join(map(str, self.devices))
        return f"Rank by rank, the devices {devices} of {self.name}: irc cluster order."


def order(args: argparse.Namespace) -> Ordered:
    """Return the best order of a cluster's devices.

    Raises:
        IrcError: ``option-value``; ``mesh-mismatch`` for a mesh of more ranks than devices.
    """
    from irc.cluster.load import find_cluster
    from irc.cluster.rank_order import OrderCost, best_order, in_order, require_graph
    from irc.sharding.mesh import parse_mesh

    if args.name is None or not args.mesh:
        raise IrcError(
            "option-value",
            "irc cluster order wants a cluster and --mesh",
            help="irc cluster order lab.toml --mesh pipe=2,tensor=4 --traffic tensor=8GB,pipe=1GB",
        )
    mesh, cluster = parse_mesh(args.mesh), find_cluster(args.name)
    graph = require_graph(cluster)
    cluster.fit(mesh)
    cost = OrderCost(graph, mesh, _traffic(args.traffic, mesh))
    chosen = best_order(cost)
    before, after = cost.of(range(mesh.num_ranks))[0], cost.of(chosen)[0]
    return Ordered(tuple(chosen), after, before, in_order(cluster, chosen), cluster.name)


def _traffic(text: str | None, mesh: Mesh) -> Mapping[str, float]:
    if text is None:
        return dict.fromkeys(mesh.names, 1e9)
    sent_bytes: dict[str, float] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        unit = next(u for u in UNITS if size.endswith(u))
        try:
            number = float(size.removesuffix(unit)) * UNITS[unit]
        except ValueError:
            number = -1.0
        if axis not in mesh.names or not 0.0 <= number < float("inf"):
            raise IrcError(
                "option-value",
                f"--traffic {part.strip()} cannot be",
                because=f"it is AXIS=BYTES, an axis of {mesh} and a number with kB, MB, GB or TB",
                help="--traffic tensor=8GB,pipe=100MB",
            )
        sent_bytes[axis] = number
    return sent_bytes
