"""Published measurements that prices are held against; each file names its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from irc.cluster.interference_fit import Point
from irc.cluster.load import find_cluster
from irc.cost.collectives import collective_s
from irc.dialects.placement import Mesh

HERE = Path(__file__).parent
COLLECTIVES: list[dict[str, Any]] = json.loads((HERE / "published_collectives.json").read_text())
INTERFERENCE: list[dict[str, Any]] = json.loads((HERE / "published_interference.json").read_text())[
    "rows"
]


def ratios(row: dict[str, Any], least_bytes: int = 0) -> list[float]:
    """Predicted over measured, for each size from ``least_bytes`` on."""
    mesh = Mesh.of({"all": row["ranks"]})
    cluster = find_cluster(row["cluster"])
    link, copy = cluster.axis_link(mesh, "all"), cluster.device.bytes_per_s
    return [
        collective_s(row["op"], link, size, copy) / (us * 1e-6)
        for size, us in row["bytes_us"]
        if size >= least_bytes
    ]


def together(device: str) -> list[Point]:
    """Points of two kinds of work and more at a time, of all groups of ranks of a device.

    What each takes alone is what a point of it alone, and of the same group, says.
    """
    rows = (row for row in INTERFERENCE if row["device"].startswith(device))
    return [point for row in rows for point in _points(row)]


def _points(row: dict[str, Any]) -> list[Point]:
    kinds = ("compute", "link" if row["nodes"] == 1 else "nic", "h2d", "d2h")
    named = [
        ({kind: size for kind, size in zip(kinds, sizes, strict=True) if size}, ms / 1e3)
        for *sizes, ms in row["points"]
    ]
    alone = {tuple(sizes.items()): seconds for sizes, seconds in named if len(sizes) == 1}
    points: list[Point] = []
    for sizes, seconds in named:
        known = {kind: alone.get(((kind, size),), 0.0) for kind, size in sizes.items()}
        if len(sizes) > 1 and all(known.values()):
            points.append(Point(known, seconds))
    return points
