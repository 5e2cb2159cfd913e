"""Find a cluster by name, or read one from a TOML file.

A complete file, in which every key that is commented out is optional:

.. code-block:: toml

    name = "lab"

    [device]                # or [[device]] for each kind, with count = N
    name = "A6000"
    peak_tflops = { f32 = 38.0, bf16 = 110.0 }   # what good kernels reach
    memory_gb = 48
    memory_gb_per_s = 600
    # launch_us = 7         # the least time of a kernel
    # cores = 2             # ranks are processes that share a host: its cores
    # host_gb_per_s = 25    # to and from pinned memory of the host: prices offload="host"
    # disk_gb_per_s = 3     # of a disk, while all devices of a node use theirs: offload="disk"
    # price_per_hour = 2.5  # of one device, in your money: what `irc plan` counts steps in
    # units = 84            # multiprocessors: products are priced in tiles that these share
    # attention = { forward = 0.9, backward = 0.7 }  # with units: parts of the peak it reaches
    # interference = [      # what runs at a time: how many times as long each takes as alone
    #     { compute = 1.1, link = 1.3 },         # kinds: compute, link, nic, d2h, h2d
    # ]

    [[link]]                # a level, innermost first: here the node
    devices = 4             # devices in one group of this level
    gb_per_s = 20           # one way, per device, while all devices send
    latency_us = 1          # of one step of a collective
    # launch_us = 7         # of a collective, whatever its size
    # peer_gb_per_s = 5     # to one other device, where each pair has wires of its own
    # in_switch_gb_per_s = 15                # where switches reduce by themselves (NVLink SHARP)
    # emulated = ["all_to_all"]              # collectives that the runtime lacks there
    # protocols = [                          # ways of sending that the library chooses from
    #     { name = "LL", latency_us = 1, launch_us = 7, part = 0.25 },
    #     { name = "Simple", latency_us = 4, launch_us = 9, part = 1.0 },
    # ]
    # [link.fits.all_reduce]                 # as `irc cluster calibrate` measured it
    # launch_us = 9
    # latency_us = 2
    # gb_per_s = 18
    # cores = 2             # of the host: where ranks share one, steps take as many times as long

    [[link]]                # the next level: four nodes, which share one network card each
    devices = 16
    gb_per_s = 12
    latency_us = 3
    shared_gb_per_s = 24    # what the devices of one node send together
    # tree = true           # it is between nodes: the library may run trees over it, and what it
                            # carries is `nic` in interference (default: not on level 0)

    [launch]                # changes no price: what `irc launch` says to launchers
    # partition = "gpu"     # of Slurm; account and time likewise
    # account = "lab"
    # time = "2:00:00"
    # image = "registry/irc:1"  # of the container, for Kubeflow, SkyPilot and TorchX
    # hosts = "node1,node2"     # for ssh

Instead of levels, a full graph of wires between devices (0, 1, ...) and switches (names):

.. code-block:: toml

    [graph]
    launch_us = 7
    # emulated = ["all_to_all"]

    [[edge]]
    between = [0, "switch"]
    gb_per_s = 20
    latency_us = 1

Every figure is positive and finite; every price of a plan comes from them, so none is guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from irc.cluster.cache import CALIBRATED, cache_root, read_text
from irc.cluster.device import Device, slowest
from irc.cluster.fields import Fields, invalid
from irc.cluster.gpus import GB
from irc.cluster.graph import Edge, Graph, Node
from irc.cluster.host import memory_bytes, num_cores
from irc.cluster.interference import Interference
from irc.cluster.launching import FORMS, Launching
from irc.cluster.links import COLLECTIVES, Collective, Fit, Link, Protocol
from irc.cluster.presets import KINDS, PRESETS, node_cluster
from irc.cluster.rank_order import in_order, require_graph
from irc.cluster.topology import Cluster
from irc.errors import IrcError, did_you_mean

MAX_BYTES = 1 << 20
MAX_DOTS = 16
"""Parts of a key: tomllib keeps each prefix of a key that dots divide."""
TEXTS = re.compile(
    r'"""[\s\S]*?"""|' r"'''[\s\S]*?'''|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'|#[^\n]*"
)
"""Strings and comments, in which a dot divides nothing."""
MAX_DEVICES = 1 << 24
MAX_UNITS = 1 << 16
MAX_WIRED = 4096
"""Devices of a graph, where every path is looked up."""

THIS_HOST = "this-host"
"""The machine at hand: its prediction is held against what is measured."""


OF_KINDS = re.compile(r"(.+)@([0-9]{1,4}(?:\+[0-9]{1,4})*)")
"""A cluster of which some kinds of devices count, by their numbers: ``lab.toml@0+2``."""


IN_ORDER = re.compile(r"(.+)@\[([0-9]{1,4}(?:,[0-9]{1,4})*)\]")
"""A cluster whose devices ranks have in another order: ``lab.toml@[3,1,2,0]``."""


def in_order_of(name: str, order: Sequence[int]) -> str:
    """Return the name of a cluster as ranks see it, of which each is on a device of its own choice.

    >>> in_order_of("lab.toml", [3, 1, 2, 0])
    'lab.toml@[3,1,2,0]'
    """
    return f"{name}@[{','.join(map(str, order))}]"


def _ordered(name: str, order: Sequence[int]) -> Cluster:
    """Return a cluster with its devices in an order.

    Raises:
        IrcError: ``cluster-unknown`` for devices that it has not, or twice the same one.
    """
    cluster = find_cluster(name)
    known = require_graph(cluster).num_devices
    if len(set(order)) < len(order) or max(order) >= known:
        raise IrcError(
            "cluster-unknown",
            f"cluster '{name}' has no devices in the order {', '.join(map(str, order))}",
            because=f"it has {known}, counted from 0, each of which is one rank's",
        )
    return in_order(cluster, order)


def of_kinds(name: str, kinds: Sequence[int]) -> str:
    """Return the name of a cluster as some kinds of its unequal devices see it.

    >>> of_kinds("lab.toml", [0, 2])
    'lab.toml@0+2'
    """
    return f"{name}@{'+'.join(map(str, kinds))}"


def of_all_kinds(name: str) -> str:
    """Return the name of the whole cluster.

    >>> of_all_kinds("lab.toml@0+2"), of_all_kinds("8xH100")
    ('lab.toml', '8xH100')
    """
    chosen = OF_KINDS.fullmatch(name)
    return name if chosen is None else chosen[1]


def find_cluster(name: str) -> Cluster:
    """Return the cluster of a name, or the one that a ``.toml`` file describes.

    A name is a preset's, or nodes x devices x kind, such as ``64x8xH100``. ``this-host`` is what
    `irc cluster calibrate` measured on this machine, and until it has run, a preset. Behind ``@``
    stand the kinds of unequal devices that count (:func:`of_kinds`): all run at the slowest; or in
    brackets, rank by rank, devices of a graph (:func:`in_order_of`).

    Raises:
        IrcError: ``cluster-unknown``, ``cluster-invalid`` or ``file-missing``; ``option-value`` for
            an order of devices that are alike.
    """
    if name == THIS_HOST:
        text = read_text(CALIBRATED)
        host = PRESETS[name]
        if text is not None:
            calibrated = parse_cluster(text, str(cache_root() / CALIBRATED))
            # What was measured before disks were is as good for the rest.
            speed = calibrated.device.disk_bytes_per_s or host.device.disk_bytes_per_s
            return replace(calibrated, device=replace(calibrated.device, disk_bytes_per_s=speed))
        here = replace(host.device, cores=num_cores(), memory_bytes=memory_bytes())
        return replace(host, device=here)
    if name in PRESETS:
        return PRESETS[name]
    if (chosen := OF_KINDS.fullmatch(name)) is not None:
        kinds = [int(kind) for kind in chosen[2].split("+")]
        return find_cluster(chosen[1]).of_kinds(kinds)
    if (ordered := IN_ORDER.fullmatch(name)) is not None:
        return _ordered(ordered[1], [int(device) for device in ordered[2].split(",")])
    if (cluster := node_cluster(name)) is not None:
        return cluster
    if not name.endswith(".toml"):
        known = [*PRESETS, *(f"8x{kind}" for kind in KINDS)]
        raise IrcError(
            "cluster-unknown",
            f"no cluster '{name}'",
            help=did_you_mean(name, known) or "irc cluster show lists the presets",
        )
    return _read(Path(name))


def _read(path: Path) -> Cluster:
    try:
        if path.exists() and not path.is_file():
            raise invalid(str(path), "it is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise IrcError("file-missing", f"cannot read '{path}': {error}") from error
    if len(data) > MAX_BYTES:
        raise invalid(str(path), f"it is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(str(path), f"it is not UTF-8: {error.reason}") from error
    return parse_cluster(text, str(path))


def parse_cluster(text: str, where: str = "<text>") -> Cluster:
    """Read a cluster from TOML.

    Raises:
        IrcError: ``cluster-invalid`` with the key that is missing or wrong.
    """
    if any(part.count(".") >= MAX_DOTS for part in re.split(r"[=,{}\[\]\n]", TEXTS.sub("", text))):
        raise invalid(where, f"a key of over {MAX_DOTS} parts")
    try:
        return _cluster(Fields(tomllib.loads(text), ""), Path(where).stem)
    except RecursionError:
        problem = "tables or arrays are nested too deeply"
    except (ValueError, OverflowError) as error:
        problem = str(error)
    raise invalid(where, problem)


def _cluster(top: Fields, stem: str) -> Cluster:
    top.only("name", "device", "link", "graph", "edge", "launch")
    name = top.text("name", stem)
    kinds = [_kind(Fields(table, "device.")) for table in top.tables("device")]
    if not kinds:
        raise ValueError("key 'device' is missing")
    links = tuple(_link(Fields(table, "link."), i) for i, table in enumerate(top.tables("link")))
    graph = _graph(top) if "edge" in top or "graph" in top else None
    device = slowest([device for device, _ in kinds])
    unequal = tuple((d, n or 1) for d, n in kinds) if len(kinds) > 1 or kinds[0][1] else ()
    asked = Fields(top.table("launch", {}), "launch.")
    asked.only(*FORMS)
    launching = Launching(**{key: asked.text(key) for key in asked})
    return Cluster(name, device, links, unequal, graph, launching)


def _kind(table: Fields) -> tuple[Device, int]:
    table.only(
        *("name", "peak_tflops", "memory_gb", "memory_gb_per_s", "launch_us", "cores", "count"),
        *("host_gb_per_s", "disk_gb_per_s", "interference", "units", "attention"),
        "price_per_hour",
    )
    tflops = Fields(table.table("peak_tflops"), "peak_tflops.")
    peaks = {dtype: tflops.number(dtype) * 1e12 for dtype in tflops}
    if "f32" not in peaks:
        raise ValueError("key 'peak_tflops.f32' is missing")
    attention = _attention(table)
    device = Device(
        table.text("name"),
        peaks,
        table.number("memory_gb_per_s") * GB,
        int(table.number("memory_gb") * GB),
        table.number("launch_us", 0.0) / 1e6,
        table.whole("cores", 0, MAX_DEVICES),
        table.number("host_gb_per_s", 0.0) * GB,
        table.number("disk_gb_per_s", 0.0) * GB,
        _interference(table),
        table.whole("units", 0, MAX_UNITS),
        *attention,
        table.number("price_per_hour", 0.0),
    )
    return device, table.whole("count", 0, MAX_DEVICES)


def _attention(device: Fields) -> tuple[float, float]:
    parts = Fields(device.table("attention", {}), "device.attention.")
    parts.only("forward", "backward")
    if "attention" in device and "units" not in device:
        raise ValueError("key 'device.units' is missing; without it attention reaches the peak")
    for key in parts:
        if (part := parts.number(key)) > 1:
            raise ValueError(f"device.attention.{key} is {part}; it is a part of the peak")
    return parts.number("forward", 1.0), parts.number("backward", 1.0)


def _interference(device: Fields) -> Interference:
    rows = [Fields(row, "device.interference.") for row in device.tables("interference")]
    return Interference.of([{kind: row.number(kind) for kind in row} for row in rows])


def _link(table: Fields, level: int) -> Link:
    table.only(
        *("devices", "gb_per_s", "latency_us", "launch_us", "emulated", "protocols", "tree"),
        *("shared_gb_per_s", "peer_gb_per_s", "in_switch_gb_per_s", "fits"),
    )
    fits = Fields(table.table("fits", {}), "link.fits.")
    fits.only(*COLLECTIVES)
    return Link(
        table.whole("devices", None, MAX_DEVICES),
        table.number("latency_us", zero=True) / 1e6,
        table.number("gb_per_s") * GB,
        table.number("launch_us", 0.0) / 1e6,
        _emulated(table),
        tuple(_protocol(Fields(p, "link.protocols.")) for p in table.tables("protocols")),
        table.flag("tree", level > 0),
        table.number("shared_gb_per_s", 0.0) * GB,
        table.number("peer_gb_per_s", 0.0) * GB,
        table.number("in_switch_gb_per_s", 0.0) * GB,
        {cast("Collective", kind): _fit(Fields(fits.table(kind), f"{kind}.")) for kind in fits},
    )


def _protocol(table: Fields) -> Protocol:
    table.only("name", "latency_us", "launch_us", "part")
    part = table.number("part", 1.0)
    if part > 1:
        raise ValueError(f"link.protocols.part is {part}; it is a part of the link's bandwidth")
    return Protocol(
        table.text("name"),
        table.number("latency_us", zero=True) / 1e6,
        table.number("launch_us", 0.0) / 1e6,
        part,
    )


def _fit(table: Fields) -> Fit:
    table.only("launch_us", "latency_us", "gb_per_s", "cores")
    return Fit(
        table.number("launch_us", 0.0) / 1e6,
        table.number("latency_us", 0.0) / 1e6,
        table.number("gb_per_s") * GB,
        table.whole("cores", 0, MAX_DEVICES),
    )


def _emulated(table: Fields) -> frozenset[Collective]:
    named: Sequence[Any] = table.array("emulated")
    if unknown := sorted(str(n) for n in named if n not in ("all_to_all", "reduce_scatter")):
        raise ValueError(f"cannot emulate {unknown}; collectives: {', '.join(COLLECTIVES)}")
    return frozenset(cast("Sequence[Collective]", named))


def _graph(top: Fields) -> Graph:
    graph = Fields(top.table("graph", {}), "graph.")
    graph.only("launch_us", "emulated")
    edges = tuple(_edge(Fields(table, "edge.")) for table in top.tables("edge"))
    device_graph = Graph(edges, graph.number("launch_us", 0.0) / 1e6, _emulated(graph))
    if device_graph.num_devices > MAX_WIRED:
        raise ValueError(f"a graph has at most {MAX_WIRED} devices; state levels of links")
    return device_graph


def _edge(table: Fields) -> Edge:
    table.only("between", "gb_per_s", "latency_us")
    ends = [end for end in table.array("between") if isinstance(end, (int, str))]
    if len(ends) != 2 or ends[0] == ends[1] or any(_is_no_node(end) for end in ends):
        raise ValueError("edge.between is two devices (0, 1, ...) or names of switches")
    return Edge(
        (ends[0], ends[1]),
        table.number("latency_us", zero=True) / 1e6,
        table.number("gb_per_s") * GB,
    )


def _is_no_node(end: Node) -> bool:
    return isinstance(end, bool) or (isinstance(end, int) and not 0 <= end < MAX_WIRED)


def example() -> str:
    """Return the complete file of this module's docstring, as text.

    >>> parse_cluster(example()).num_devices
    16
    """
    block = (__doc__ or "").partition(".. code-block:: toml\n")[2].partition("Instead of")[0]
    return "\n".join(line.removeprefix("    ") for line in block.strip("\n").splitlines())
