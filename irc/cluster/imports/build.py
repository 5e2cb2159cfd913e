"""A cluster from the descriptions of a node and of the switches between nodes.

Counts and wires are the descriptions'; what a wire reaches is not in them: it is the preset's of
the same kind of GPU, in proportion to the number of links or the speed of the ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from irc.cluster.gpus import PORT_REACHED
from irc.cluster.graph import Edge, Graph
from irc.cluster.imports.nccl import is_topology, read_topology
from irc.cluster.imports.node import Node, unreadable
from irc.cluster.imports.nvidia_smi import is_matrix, read_matrix
from irc.cluster.imports.slurm import is_switches, read_switches
from irc.cluster.links import Link
from irc.cluster.load import MAX_BYTES, MAX_WIRED
from irc.cluster.presets import KINDS, Kind
from irc.cluster.topology import Cluster
from irc.errors import IrcError, did_you_mean

NVLINKS: Mapping[str, int] = {
    "V100": 6, "A100-40": 12, "A100": 12, "A100-40-HDR": 12, "A100-OPA": 12, "H100": 18, "H200": 18,
    "B200": 18,
}  # fmt: skip
"""NVLinks of a GPU of a kind, as in the data sheets: what the preset's bandwidth is of."""
PCIE_REACHED = 0.8
"""Of a slot, between two GPUs; as of a port between nodes."""
PCIE_LATENCY_S = 2.5e-6
"""Of one step over a host's bridges; between nodes the presets have 2.7."""


@dataclass(frozen=True)
class Imported:
    """A cluster, and what is not the descriptions' in it.

    Attributes:
        cluster: what was described.
        notes: one line each, for the top of its file.
    """

    cluster: Cluster
    notes: tuple[str, ...]


def import_cluster(
    files: Sequence[str], *, kind: str = "", nodes: int | None = None, name: str = "imported"
) -> Imported:
    """Return the cluster that files describe.

    Args:
        files: one of a node (the text of ``nvidia-smi topo -m``, or NCCL's topology), and perhaps
            Slurm's ``topology.conf``, in any order.
        kind: of the GPUs, a key of `irc.cluster.presets.KINDS`; by default the node's file says it.
        nodes: how many there are; by default as many as the switches have, or one.
        name: of the cluster.

    Raises:
        IrcError: ``cluster-import``, ``file-missing``; ``cluster-unknown`` for a kind that there is
            not.
    """
    node: Node | None = None
    groups: tuple[int, ...] = ()
    for file in files:
        text = _text(file)
        if is_switches(text):
            if groups:
                raise unreadable(file, "another file describes the switches already")
            groups = read_switches(text)
        elif is_topology(text) or is_matrix(text):
            if node is not None:
                raise unreadable(file, "another file describes the node already")
            node = read_topology(text) if is_topology(text) else read_matrix(text)
        else:
            raise unreadable(
                f"'{file}'",
                "it is none of what is known",
                "known are: the text of nvidia-smi topo -m, the XML of NCCL_TOPO_DUMP_FILE, and "
                "Slurm's topology.conf",
            )
    if node is None:
        raise unreadable(", ".join(files), "no file describes a node", "nvidia-smi topo -m does")
    return _build(node, groups, _kind_of(node, kind), nodes, name)


def _kind_of(node: Node, kind: str) -> str:
    if kind and kind not in KINDS:
        raise IrcError(
            "cluster-unknown", f"no kind of GPU '{kind}'", help=did_you_mean(kind, KINDS)
        )
    if not kind and not node.kind:
        raise unreadable(
            node.source,
            "it does not say what the GPUs are, or they are of no kind that is known",
            f"--kind names it: {', '.join(KINDS)}",
        )
    return kind or node.kind


def _build(
    node: Node, groups: tuple[int, ...], kind: str, nodes: int | None, name: str
) -> Imported:
    preset, notes = KINDS[kind], [f"From {node.source}; {node.gpus} GPUs of kind {kind}."]
    if groups and nodes not in (None, groups[-1]):
        raise unreadable("the descriptions", f"the switches have {groups[-1]} nodes, not {nodes}")
    count = nodes or (groups[-1] if groups else 1)
    between = _between(node, preset, notes)
    if node.wires:
        if len(groups) > 1:
            notes.append("Levels of switches are left out: wired nodes hang on one network.")
        graph = _graph(node, preset, kind, between, count, notes)
        return Imported(Cluster(name, preset.device, graph=graph), tuple(notes))
    inside = _inside(node, preset, kind, notes)
    levels = [size for size in groups if size > 1] or ([count] if count > 1 else [])
    if len(levels) > 1:
        notes.append("Levels between nodes have one speed: topology.conf has none of its own.")
    links = [replace(between, devices=size * node.gpus) for size in levels]
    links = [*inside, *links] or [replace(between, devices=1)]
    try:
        return Imported(Cluster(name, preset.device, tuple(links)), tuple(notes))
    except ValueError as error:
        raise unreadable("the descriptions", str(error)) from error


def _inside(node: Node, preset: Kind, kind: str, notes: list[str]) -> list[Link]:
    """Return the levels inside a node of alike links."""
    if node.gpus == 1:
        return []
    usual = preset.inside[-1]
    if node.switched:
        if kind not in NVLINKS:
            raise unreadable(node.source, f"NVLinks join the GPUs, and {kind} has none")
        known = NVLINKS[kind]
        notes.append(f"{node.switched} NVLinks of a GPU to switches, of the {known} that it has.")
        part = node.switched / known
        return [
            replace(
                usual,
                devices=node.gpus,
                bytes_per_s=usual.bytes_per_s * part,
                in_switch_bytes_per_s=usual.in_switch_bytes_per_s * part,
            )
        ]
    if kind not in NVLINKS:
        return [*preset.inside[:-1], replace(usual, devices=node.gpus)]
    if node.pcie_bytes_per_s:
        notes.append(f"GPUs are joined by PCIe, of which they reach {PCIE_REACHED:.0%}.")
        reached = node.pcie_bytes_per_s * PCIE_REACHED
        return [Link(node.gpus, PCIE_LATENCY_S, reached, usual.launch_s)]
    raise unreadable(
        node.source,
        "the GPUs are joined by PCIe, and it does not say how fast that is",
        "NCCL's topology does: NCCL_TOPO_DUMP_FILE=node.xml",
    )


def _between(node: Node, preset: Kind, notes: list[str]) -> Link:
    """Return the level between nodes; what the ports send is divided among the GPUs."""
    known = [speed for speed in node.ports if speed is not None]
    if not known:
        if node.ports:
            notes.append(
                f"{len(node.ports)} network cards, as fast as the preset's: no speed there."
            )
        return preset.between
    together = sum(known) * PORT_REACHED
    notes.append(
        f"{len(known)} ports, {sum(known) / 1e9:g} GB/s in all, of which {PORT_REACHED:.0%}."
    )
    fewer = len(known) < node.gpus
    return replace(
        preset.between,
        bytes_per_s=together / node.gpus,
        shared_bytes_per_s=together if fewer else 0.0,
    )


def _graph(
    node: Node, preset: Kind, kind: str, between: Link, count: int, notes: list[str]
) -> Graph:
    """Return the wires of nodes whose GPUs are wired to each other; a switch joins the nodes."""
    if kind not in NVLINKS:
        raise unreadable(node.source, f"NVLinks join the GPUs, and {kind} has none")
    if count * node.gpus > MAX_WIRED:
        raise unreadable(node.source, f"a cluster of single wires has at most {MAX_WIRED} devices")
    link = preset.inside[-1]
    one = link.bytes_per_s / NVLINKS[kind]
    pcie = node.pcie_bytes_per_s * PCIE_REACHED
    notes.append(f"Wires of {one / 1e9:.3g} GB/s for each NVLink between two GPUs.")
    edges: list[Edge] = []
    for number in range(count):
        first = number * node.gpus
        edges += [
            Edge((first + a, first + b), link.latency_s, links * one)
            for (a, b), links in sorted(node.wires.items())
        ]
        if pcie:
            edges += [
                Edge((first + gpu, f"host{number}"), PCIE_LATENCY_S / 2, pcie)
                for gpu in range(node.gpus)
            ]
        if count > 1:
            edges += [
                Edge((first + gpu, "network"), between.latency_s / 2, between.bytes_per_s)
                for gpu in range(node.gpus)
            ]
    try:
        return Graph(tuple(edges), link.launch_s)
    except ValueError as error:
        raise unreadable(
            node.source, str(error), "NCCL's topology names PCIe's speed, which joins the others"
        ) from error


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise unreadable(f"'{file}'", f"it is larger than {MAX_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{file}': {error.strerror}") from error
    except ValueError as error:
        raise unreadable(f"'{file}'", f"it is no text: {error}") from error
