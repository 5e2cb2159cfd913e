"""Clusters by name, with the source of each number.

The GPUs stand in `irc.cluster.gpus`. Link speeds are what collectives reach of them on large
messages; latencies are those of NCCL's own model. Each was held against published curves:
tests/cost/test_published.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from irc.cluster.device import Device
from irc.cluster.gpus import (
    A100,
    A100_40,
    A100_40_LOADED,
    B200,
    GB,
    H100,
    H200,
    L4,
    MI250X,
    MI300X,
    PORT_REACHED,
    V100,
)
from irc.cluster.links import Link, Protocol
from irc.cluster.topology import Cluster

MAX_NODES = 1 << 16

# NCCL's protocols: LL sends a flag with every word, LL128 with every 120 bytes, Simple none. Over
# NVLink 4 they were fitted to the curves of APEX+ (microsoft/apex_plus, profile/comm/H100-SXM-80GB
# and H200-SXM-141GB, of two releases of NCCL), over others they are what fits both together.
# Elsewhere they are those of NCCL's own model (`src/graph/tuning.cc`): base latencies of rings, and
# those of a step.
ON_NVLINK = (
    Protocol("LL", 0.81e-6, 6.4e-6, 0.42),
    Protocol("LL128", 0.81e-6, 15.5e-6, 0.86),
    Protocol("Simple", 0.6e-6, 45e-6),
)
ON_H100 = (
    Protocol("LL", 0.76e-6, 7.5e-6, 0.46),
    Protocol("LL128", 0.8e-6, 17e-6, 0.92),
    Protocol("Simple", 1e-6, 60e-6),
)
ON_H200 = (
    Protocol("LL", 0.6e-6, 6.5e-6, 0.43),
    Protocol("LL128", 0.4e-6, 15.8e-6, 0.815),
    Protocol("Simple", 2.6e-6, 60e-6),
)


def _protocols(ll_s: float, ll128_s: float, simple_s: float) -> tuple[Protocol, ...]:
    return (
        Protocol("LL", ll_s, 6.6e-6, 0.25),
        Protocol("LL128", ll128_s, 14e-6, 0.92),
        Protocol("Simple", simple_s, 8.4e-6),
    )


NVLINK = Link(8, 0.81e-6, 0.0, 6.4e-6, protocols=ON_NVLINK)
# NVLink 2: 150 GB/s one way. 126 GB/s of an all-gather's bus bandwidth at 2.9 GiB, and over PCIe
# between L4s 5.0, of two 3.2 (Mist's profiles).
NVLINK_2 = replace(NVLINK, bytes_per_s=126e9)
L4_LINK = replace(NVLINK, bytes_per_s=5e9, peer_bytes_per_s=3.2e9)
# NVLink 3: 300 GB/s one way. 235 GB/s of all-reduce bus bandwidth at 16 GiB: stas00/ml-engineering,
# network/benchmarks (8xA100 nccl-tests), and 230 at 1 GiB in Hetu-Galvatron's shipped profile.
NVLINK_3 = replace(NVLINK, bytes_per_s=230e9)
# NVLink 4: 450 GB/s one way. Rings reached 361 to 367 GB/s at 16 GiB on 8xH200, and the switches'
# own sums 482 (stas00/ml-engineering): 308 GB/s of n (1 + 1/p), which fits 5 to 8 ranks to 2 %; at
# 128 MiB APEX+ has 270. It is between them here.
NVLINK_4 = replace(NVLINK, bytes_per_s=362e9, in_switch_bytes_per_s=300e9, protocols=ON_H100)
NVLINK_H200 = replace(NVLINK_4, protocols=ON_H200)
# NVLink 5: 900 GB/s one way, of which it is taken to reach the part that NVLink 4 does: no
# published curve is held against it.
NVLINK_5 = replace(NVLINK, bytes_per_s=724e9, in_switch_bytes_per_s=616e9)
# Inside an MI250X, four Infinity Fabric links of 50 GB/s join the dies; collectives of two reached
# 114 GB/s. Between modules one or two links: rings of 8 dies reached 67 GB/s with two dies a
# module (nnScaler, resources/profile/mi200/comm/intra_{2,8}.json). A call took 90 us there.
IN_MODULE = Link(2, 1e-6, 114e9, 90e-6)
BETWEEN_MODULES = Link(8, 7e-6, 33.5e9, 90e-6)
# MI300X: a pair of 64 GB/s one way to each of seven others; two reached 47.7, eight 313 GB/s
# (stas00/ml-engineering, compute/accelerator).
FABRIC_3 = Link(
    8, 1e-6, 313e9, 10e-6, protocols=_protocols(1e-6, 1.9e-6, 4e-6), peer_bytes_per_s=47.7e9
)

HDR_200 = 25e9  # one 200 Gbit/s port a GPU (DGX A100)
NDR_400 = 50e9  # one 400 Gbit/s port a GPU (DGX H100, H200 and B200, MI300X nodes)
EFA_400 = 6.25e9  # four ports of 100 Gbit/s for eight GPUs (nodes of A100 40GB, of V100)
# Two GPUs behind each of four ports of 100 Gbit/s Omni-Path (Jean Zay). An all-reduce over four
# nodes reached 40.5 Gbit/s of bus bandwidth (bigscience-workshop/bigscience, experiments/bandwidth,
# all_reduce_bench-a100-n4); its log says that NCCL made one ring, which came into a node by one
# port and left it by another. So that is what a port reaches, of which ranks of several groups have
# all four: a collective of all ranks in one group takes four times as long as is said here.
OPA_REACHED = 40.49e9 / 8 / 2
VIRTUAL_100 = 1.56e9  # 100 Gbit/s for a virtual machine of eight L4
SLINGSHOT = 12.5e9  # four 200 Gbit/s ports for eight dies (Frontier)


def _network(port: float) -> Link:
    """Return the level between nodes, each device with a port."""
    return Link(
        8, 2.7e-6, port * PORT_REACHED, 6.6e-6, protocols=_protocols(2.7e-6, 4e-6, 14e-6), tree=True
    )


@dataclass(frozen=True)
class Kind:
    """What nodes are made of: the device, the levels inside a node, and the one between nodes."""

    device: Device
    inside: tuple[Link, ...]
    between: Link


KINDS: Mapping[str, Kind] = {
    "V100": Kind(V100, (NVLINK_2,), _network(EFA_400)),
    "L4": Kind(L4, (L4_LINK,), _network(VIRTUAL_100)),
    "A100-40": Kind(A100_40, (NVLINK_3,), _network(EFA_400)),
    "A100": Kind(A100, (NVLINK_3,), _network(HDR_200)),
    "A100-40-HDR": Kind(A100_40_LOADED, (NVLINK_3,), _network(HDR_200)),
    "A100-OPA": Kind(A100, (NVLINK_3,), _network(OPA_REACHED / PORT_REACHED)),
    "H100": Kind(H100, (NVLINK_4,), _network(NDR_400)),
    "H200": Kind(H200, (NVLINK_H200,), _network(NDR_400)),
    "B200": Kind(B200, (NVLINK_5,), _network(NDR_400)),
    "MI250X": Kind(MI250X, (IN_MODULE, BETWEEN_MODULES), _network(SLINGSHOT)),
    "MI300X": Kind(MI300X, (FABRIC_3,), _network(NDR_400)),
}

# Measured on two Zen 4 cores at hand: see `irc cluster calibrate`, which measures these figures
# where it runs. Matmul of 768 x 768 reached 92 GF/s a core in float32 and 48 in float64; copying
# 64 MiB moved 28 GB/s (read and written); a small torch op took 1.3 us. Gloo between two processes:
# all-reduce of 64 B 0.39 ms, of 4 MiB 3.0 ms (2.8 GB/s a rank on paper, 1.4 GB/s each way). A file
# of 64 MiB was written again, and read, at 3.4 to 4.8 GB/s: the system keeps it in its memory.
HOST = Device(
    "host-core",
    {"f32": 92e9, "f64": 48e9, "bf16": 92e9, "f16": 92e9},
    28e9,
    8 * GB,
    1.5e-6,
    cores=2,
    disk_bytes_per_s=3.4e9,
)
GLOO = Link(2, 50e-6, 1.4e9, 250e-6)

DEMO = Device(
    "demo", {"f32": 1e9, "f64": 1e9, "bf16": 2e9, "f16": 2e9}, 1e9, 4 * GB, 1e-7,
    host_bytes_per_s=2e8, disk_bytes_per_s=5e7,
)  # fmt: skip


def node_cluster(name: str) -> Cluster | None:
    """Return the cluster that a name such as ``64x8xH100`` states: nodes, devices a node, kind.

    The first number may be left out: one node. None where the name is not of this form.

    >>> cluster = node_cluster("64x8xH100")
    >>> cluster.num_devices, cluster.device.name
    (512, 'H100-80GB-SXM')
    >>> node_cluster("3x5xH100") is None  # no such nodes
    True
    """
    match = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?([1248])x([\w-]+)", name, re.ASCII)
    if match is None or match[3] not in KINDS:
        return None
    nodes, size, kind = int(match[1] or 1), int(match[2]), KINDS[match[3]]
    if nodes > MAX_NODES:
        return None
    links = [link for link in kind.inside if link.devices < size]
    if size > 1:
        links.append(replace(kind.inside[len(links)], devices=size))
    if nodes > 1 or not links:
        links.append(replace(kind.between, devices=size * nodes))
    return Cluster(name, kind.device, tuple(links))


def _named(*names: str) -> list[Cluster]:
    return [cluster for name in names if (cluster := node_cluster(name)) is not None]


PRESETS: Mapping[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        Cluster("this-host", HOST, (GLOO,)),
        *_named("8xV100", "8xL4", "8xA100-40", "2x8xA100-40"),
        *_named("8xA100", "2x8xA100", "4x8xA100"),
        *_named("8xH100", "2x8xH100", "8x8xH100"),
        *_named("8xH200", "2x8xH200"),
        *_named("8xB200", "2x8xB200"),
        *_named("8xMI250X", "16x8xMI250X", "8xMI300X", "2x8xMI300X"),
        # Made up for demonstrations: so slow at arithmetic that models of a few kilobytes are worth
        # sharding.
        Cluster("demo-gpus", DEMO, (Link(4, 1e-7, 4e8, 2e-7), Link(64, 4e-7, 1e8, 4e-7))),
    )
}
"""The clusters that are listed; any other number of nodes has a name as well."""
