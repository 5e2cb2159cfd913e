"""`irc cluster order`: which rank runs on which device, where wires or devices differ."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from irc.errors import IrcError

if TYPE_CHECKING:
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


def order(args: argparse.Namespace) -> str:
    """Print the best order of a cluster's devices, and return the cluster in it as TOML.

    Raises:
        IrcError: ``option-value``; ``mesh-mismatch`` for a mesh of more ranks than devices.
    """
    from irc.cluster.load import find_cluster
    from irc.cluster.rank_order import OrderCost, best_order, in_order, require_graph
    from irc.cluster.text import to_toml
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
    devices = ", ".join(map(str, chosen))
    print(f"ranks 0 to {mesh.num_ranks - 1} on devices {devices}")
    print(f"traffic of a step {after * 1e3:.4g} ms, {before * 1e3:.4g} ms in the order of devices")
    note = f"Rank by rank, the devices {devices} of {cluster.name}: irc cluster order."
    return to_toml(in_order(cluster, chosen), (note,))


def _traffic(text: str | None, mesh: Mesh) -> Mapping[str, float]:
    if text is None:
        return dict.fromkeys(mesh.names, 1e9)
    found: dict[str, float] = {}
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
        found[axis] = number
    return found
