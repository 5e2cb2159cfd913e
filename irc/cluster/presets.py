"""Clusters by name, with the source of each number.

Peaks are vendors' figures for dense arithmetic times what good kernels reach of them: 0.7 of peak
FLOP/s and of bandwidth (the factor that AutoParallel uses, `cost_models/compute_estimation.py`).
TF32 is off unless asked, so float32 is the plain rate. Link speeds are what collectives reach of
them on large messages; latencies are those of NCCL's own model. Each was held against published
curves: tests/cost/test_published.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from irc.cluster import interference_tables as tables
from irc.cluster.device import Device
from irc.cluster.interference import NO_INTERFERENCE, Interference
from irc.cluster.links import Link, Protocol
from irc.cluster.topology import Cluster

REACHED = 0.7
PORT_REACHED = 0.8  # of a port between nodes, or to the host: pinned copies over PCIe 4, 25 GB/s
GPU_LAUNCH_S = 7e-6  # AutoParallel's floor for one kernel
GB = 10**9
MAX_NODES = 1 << 16
# One way, x16. Between the host and a die of an MI250X go 36 GB/s (Frontier User Guide).
PCIE_4, PCIE_5, HOST_FABRIC = 32, 64, 36
# Copies of all GPUs of a node at a time, where several share a port: 6.2 GB/s each on nodes of
# eight A100 40GB or V100, 4.4 of eight L4 (Mist's profiles).
SHARED_PCIE_3, L4_PCIE = 6.2 / PORT_REACHED, 4.4 / PORT_REACHED
# What is written: a drive of PCIe 4 (Samsung PM9A3 data sheet, 3.84 TB: 4.1 GB/s), as a DGX A100
# 640GB or DGX H100 has for each GPU. A node of Frontier has two of 2 GB/s for its eight dies.
U2_DISK, FRONTIER_DISK = 4.1, 0.5


def _gpu(
    name: str,
    *,
    tensor_tflops: float,
    f32_tflops: float,
    f64_tflops: float,
    tb_per_s: float,
    gb: int,
    host_gb_per_s: float,
    disk_gb_per_s: float = U2_DISK,
    has_bf16: bool = True,
    interference: Interference = NO_INTERFERENCE,
) -> Device:
    bf16_tflops = tensor_tflops if has_bf16 else f32_tflops
    peaks = {"bf16": bf16_tflops, "f16": tensor_tflops, "f32": f32_tflops, "f64": f64_tflops}
    return Device(
        name,
        {dtype: tflops * 1e12 * REACHED for dtype, tflops in peaks.items()},
        tb_per_s * 1e12 * REACHED,
        gb * GB,
        GPU_LAUNCH_S,
        host_bytes_per_s=host_gb_per_s * GB * PORT_REACHED,
        disk_bytes_per_s=disk_gb_per_s * GB * REACHED,
        interference=interference,
    )


# NVIDIA A100 80GB SXM data sheet: 312 TF bf16, 19.5 TF f32 and f64 (tensor core), 2039 GB/s.
A100 = _gpu(
    "A100-80GB-SXM", tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=2.039, gb=80,
    host_gb_per_s=PCIE_4, interference=tables.A100,
)  # fmt: skip
# NVIDIA A100 40GB SXM data sheet: the same at 1555 GB/s.
A100_40 = _gpu(
    "A100-40GB-SXM", tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=1.555, gb=40,
    host_gb_per_s=SHARED_PCIE_3, interference=tables.A100,
)  # fmt: skip
# NVIDIA V100 SXM2 data sheet: 125 TF f16, no bf16, 15.7 TF f32, 7.8 TF f64, 900 GB/s.
V100 = _gpu(
    "V100-32GB-SXM2", tensor_tflops=125, f32_tflops=15.7, f64_tflops=7.8, tb_per_s=0.9, gb=32,
    host_gb_per_s=SHARED_PCIE_3, has_bf16=False, interference=tables.V100,
)  # fmt: skip
# NVIDIA L4 data sheet: 121 TF bf16 dense, 30.3 TF f32, a 64th of it f64, 300 GB/s. At 72 W large
# products reach 58 TF (Mist's profile).
L4 = _gpu(
    "L4-24GB", tensor_tflops=58 / REACHED, f32_tflops=30.3, f64_tflops=0.47, tb_per_s=0.3, gb=24,
    host_gb_per_s=L4_PCIE, interference=tables.L4,
)  # fmt: skip
# NVIDIA H100 SXM data sheet: 989 TF bf16 dense, 67 TF f32 and f64 (tensor core), 3.35 TB/s.
H100 = _gpu(
    "H100-80GB-SXM", tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=3.35, gb=80,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# NVIDIA H200 SXM data sheet: an H100 with 141 GB at 4.8 TB/s.
H200 = _gpu(
    "H200-141GB-SXM", tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=4.8, gb=141,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# NVIDIA HGX B200 data sheet, an eighth of it: 2250 TF bf16 dense, 75 TF f32 and 37 TF f64, 180 GB
# at 7.7 TB/s.
B200 = _gpu(
    "B200-180GB", tensor_tflops=2250, f32_tflops=75, f64_tflops=37, tb_per_s=7.7, gb=180,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# AMD MI250X data sheet, halved: each of its two dies is a device. 383 TF bf16, 47.9 TF f32 and f64
# (vector), 3.2 TB/s, 128 GB.
MI250X = _gpu(
    "MI250X-GCD", tensor_tflops=191.5, f32_tflops=23.95, f64_tflops=23.95, tb_per_s=1.6, gb=64,
    host_gb_per_s=HOST_FABRIC, disk_gb_per_s=FRONTIER_DISK,
)  # fmt: skip
# AMD MI300X data sheet: 1307 TF bf16 dense, 163.4 TF f32 and f64 (matrix), 5.3 TB/s, 192 GB.
MI300X = _gpu(
    "MI300X", tensor_tflops=1307, f32_tflops=163.4, f64_tflops=163.4, tb_per_s=5.3, gb=192,
    host_gb_per_s=PCIE_5,
)  # fmt: skip

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
