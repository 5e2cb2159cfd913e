"""Reads the topology that NCCL writes where ``NCCL_TOPO_DUMP_FILE`` names a file.

It is a tree of processors, PCIe bridges and devices; ``<nvlink target= count= tclass=>`` stands in
a GPU for its links to one target (class 0x068000 is a bridge, an NVSwitch), and ``<net speed=>``
for a port, in Mbit/s. RCCL writes the same, with ``<xgmi>``, of which the kinds here need nothing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from irc.cluster.imports.node import Node, unreadable

SOURCE = "NCCL's topology"
HELP = "NCCL_TOPO_DUMP_FILE=node.xml makes NCCL write it at the first collective"
SWITCH = "0x068000"
KIND_OF_DEVICE = {
    "0x1db1": "V100", "0x1db5": "V100", "0x20b0": "A100-40", "0x20b2": "A100", "0x27b8": "L4",
    "0x2330": "H100", "0x2335": "H200", "0x2901": "B200",
}  # fmt: skip
"""PCI ids of NVIDIA (vendor 0x10de), from the list that Linux's hwdata ships."""
PCIE_CODED = 128 / 130
"""The part of PCIe's transfers that are bits of a packet, from the third generation on."""


@dataclass(frozen=True)
class _Gpu:
    number: int
    bus: str
    device: str
    pcie_bytes_per_s: float
    links: tuple[tuple[str, int, str], ...]


def is_topology(text: str) -> bool:
    """Whether a text looks like such a file."""
    return re.match(r"\s*(<\?xml[^>]*>\s*)?<system\b", text) is not None


def read_topology(text: str) -> Node:
    """Return the node that a file describes.

    Raises:
        IrcError: ``cluster-import``.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise unreadable(SOURCE, str(error), HELP) from error
    try:
        gpus = sorted(_gpus(root, None), key=lambda gpu: gpu.number)
        ports = {
            (net.get("guid", ""), net.get("name", ""), net.get("port", "")): _mbits(net)
            for net in root.iter("net")
        }
    except ValueError as error:
        raise unreadable(SOURCE, str(error), HELP) from error
    if not gpus:
        raise unreadable(SOURCE, "no GPU is in it", HELP)
    devices = {gpu.device for gpu in gpus}
    if len(devices) > 1:
        raise unreadable(SOURCE, f"its GPUs differ: {', '.join(sorted(devices))}", HELP)
    numbers = {gpu.bus.lower(): number for number, gpu in enumerate(gpus)}
    wires: dict[tuple[int, int], int] = {}
    switched: set[int] = set()
    for number, gpu in enumerate(gpus):
        switched.add(sum(count for _, count, kind in gpu.links if kind == SWITCH))
        for target, count, _ in gpu.links:
            if (other := numbers.get(target.lower(), -1)) > number:
                wires[number, other] = count
    return Node(
        SOURCE,
        len(gpus),
        KIND_OF_DEVICE.get(gpus[0].device, ""),
        min(switched),
        {} if min(switched) else wires,
        min(gpu.pcie_bytes_per_s for gpu in gpus),
        tuple(speed for speed in ports.values() if speed),
    )


def _gpus(element: ET.Element, pci: ET.Element | None) -> Iterator[_Gpu]:
    for child in element:
        if child.tag == "gpu" and pci is not None:
            links = tuple(
                (link.get("target", ""), int(link.get("count", "1")), link.get("tclass", ""))
                for link in child.iter("nvlink")
            )
            number = int(child.get("dev", "0"))
            yield _Gpu(number, pci.get("busid", ""), pci.get("device", ""), _pcie(pci), links)
        yield from _gpus(child, child if child.tag == "pci" else pci)


def _pcie(pci: ET.Element) -> float:
    """Return a slot's bytes per second one way: ``link_speed="16.0 GT/s PCIe" link_width="16"``."""
    speed = re.match(r"[0-9.]+", pci.get("link_speed", ""))
    width = pci.get("link_width", "")
    if speed is None or not width.isdigit():
        return 0.0
    return float(speed[0]) * 1e9 / 8 * int(width) * PCIE_CODED


def _mbits(net: ET.Element) -> float:
    return float(net.get("speed", "0")) * 1e6 / 8
