"""Published measurements that prices are held against; each file names its source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from irc.cluster.device import Device
from irc.cluster.interference_fit import Point
from irc.cluster.load import find_cluster
from irc.cost.collectives import collective_s
from irc.cost.kernels import shape_work
from irc.cost.roofline import roofline_s
from irc.dialects.placement import Mesh
from irc.ops.shapes import Attention, Product

HERE = Path(__file__).parent
COLLECTIVES: list[dict[str, Any]] = json.loads((HERE / "published_collectives.json").read_text())
INTERFERENCE: list[dict[str, Any]] = json.loads((HERE / "published_interference.json").read_text())[
    "rows"
]
Work: TypeAlias = Callable[[Device, Product | Attention], float]
KERNELS: dict[str, list[dict[str, Any]]] = json.loads((HERE / "published_kernels.json").read_text())
GEMM_CLUSTERS = {"a100-sxm4-40gb": "8xA100-40", "l4": "8xL4", "v100-sxm2-32gb": "8xV100"}
"""Whose products were measured alone in the table of what runs at a time."""


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


def kernel_ratios(*, shaped: bool = True) -> dict[str, list[float]]:
    """Predicted over measured of products, attention and layers; every other one is held out.

    Args:
        shaped: with the shapes of products and attention, and causal masks; otherwise all
            arithmetic runs at the peak.
    """
    work = shape_work if shaped else _plain_work
    attention = [
        ((row["cluster"], kind), _attention_s(work, row["cluster"], point) / (us * 1e-6))
        for row in KERNELS["attention"]
        for *point, us in row["points"]
        for kind in point[4:]
    ]
    return {
        "products": [
            _product_s(work, name, p, dtype) / seconds for name, p, dtype, seconds in _products()
        ],
        # Those of one device and direction together, so that half of each is held out.
        "attention": [ratio for _, ratio in sorted(attention, key=lambda pair: pair[0])],
        "layers": [_layer_s(work, row) / (row["us"] * 1e-6) for row in KERNELS["layers"]],
    }


def _products() -> Iterator[tuple[str, Product, str, float]]:
    for row in KERNELS["products"]:
        for *sizes, us in row["points"]:
            yield row["cluster"], Product(*sizes), row["dtype"], us * 1e-6
    # Those that ran alone in the table of what runs at a time; groups of ranks repeat them.
    alone = {
        (GEMM_CLUSTERS[row["device"]], rows): ms
        for row in INTERFERENCE
        if row["device"] in GEMM_CLUSTERS and row["nodes"] == 1
        for rows, *others, ms in row["points"]
        if rows and not any(others)
    }
    for (name, rows), ms in alone.items():
        yield name, Product(1, rows, 4096, 4096), "f16", ms * 1e-3


def _layer_s(work: Work, row: dict[str, Any]) -> float:
    name, dtype = row["cluster"], row["dtype"]
    cluster = find_cluster(name)
    device = cluster.device
    products = ((count, Product(*sizes)) for count, *sizes in row["products"])
    seconds = sum(count * _product_s(work, name, p, dtype) for count, p in products)
    seconds += sum(_attention_s(work, name, point) for point in row["attention"])
    seconds += row["bytes"] / device.bytes_per_s + row["kernels"] * device.launch_s
    for count, ranks, num_bytes in row["all_reduce"]:
        link = cluster.axis_link(Mesh.of({"t": ranks}), "t")
        seconds += count * collective_s("all_reduce", link, num_bytes, device.bytes_per_s)
    return seconds


def _product_s(work: Work, name: str, p: Product, dtype: str) -> float:
    device = find_cluster(name).device
    moved = 2 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    return roofline_s(device, flops=work(device, p), num_bytes=moved, dtype=dtype)


def _attention_s(work: Work, name: str, point: list[Any]) -> float:
    heads, rows, features, causal, kind = point
    device, backward = find_cluster(name).device, kind == "backward"
    products = (10 if backward else 4) * features
    shape = Attention(heads, rows, rows, products, causal, backward=backward)
    moved = (8 if backward else 4) * 2 * heads * rows * features
    return roofline_s(device, flops=work(device, shape), num_bytes=moved, dtype="f16")


def _plain_work(device: Device, shape: Product | Attention) -> float:
    if isinstance(shape, Product):
        return 2 * shape.batch * shape.m * shape.n * shape.k
    return shape.heads * shape.rows * shape.keys * shape.products
