"""Clusters by name, with the source of each number.

Peaks are vendors' figures for dense arithmetic times what good kernels reach of them: 0.7 of peak
FLOP/s and of bandwidth (the factor that AutoParallel uses, `cost_models/compute_estimation.py`) and
0.8 of a link's bandwidth (NCCL's bus bandwidth on large messages: 360 of 450 GB/s on an H100 node).
The collective latencies are those of its NCCL model: 0.6 us a step over NVLink, 2.7 us between
nodes, on top of 6.6 us a call. TF32 is off unless asked, so float32 is the plain rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from irc.cluster.topology import Cluster, Device, Link

REACHED = 0.7
LINK_REACHED = 0.8
GPU_LAUNCH_S = 7e-6  # AutoParallel's floor for one kernel
GB = 10**9


def _gpu(
    name: str,
    *,
    tensor_tflops: float,
    f32_tflops: float,
    f64_tflops: float,
    tb_per_s: float,
    gb: int,
) -> Device:
    peaks = {"bf16": tensor_tflops, "f16": tensor_tflops, "f32": f32_tflops, "f64": f64_tflops}
    return Device(
        name,
        {dtype: tflops * 1e12 * REACHED for dtype, tflops in peaks.items()},
        tb_per_s * 1e12 * REACHED,
        gb * GB,
        GPU_LAUNCH_S,
    )


# NVIDIA A100 80GB SXM data sheet: 312 TF bf16, 19.5 TF f32 and f64 (tensor core), 2039 GB/s.
A100 = _gpu(
    "A100-80GB-SXM", tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=2.039, gb=80
)
# NVIDIA H100 SXM data sheet: 989 TF bf16 dense, 67 TF f32 and f64 (tensor core), 3.35 TB/s.
H100 = _gpu("H100-80GB-SXM", tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=3.35, gb=80)
# NVIDIA H200 SXM data sheet: an H100 with 141 GB at 4.8 TB/s.
H200 = _gpu("H200-141GB-SXM", tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=4.8, gb=141)

# NVLink 3 and 4: 600 and 900 GB/s a GPU in both directions together, so half of it one way.
NVLINK_3 = Link(8, 0.6e-6, 300e9 * LINK_REACHED, 6.6e-6)
NVLINK_4 = Link(8, 0.6e-6, 450e9 * LINK_REACHED, 6.6e-6)
HDR_200 = 25e9  # one 200 Gbit/s port a GPU (DGX A100)
NDR_400 = 50e9  # one 400 Gbit/s port a GPU (DGX H100)


def _nodes(name: str, device: Device, inside: Link, port: float, nodes: int) -> Cluster:
    if nodes == 1:
        return Cluster(name, device, (inside,))
    between = Link(inside.devices * nodes, 2.7e-6, port * LINK_REACHED, 6.6e-6)
    return Cluster(name, device, (inside, between))


# Measured on two Zen 4 cores at hand with one torch thread a rank: matmul of 768 x 768 reached 92
# GF/s in # float32 and 48 in float64; copying 64 MiB moved 28 GB/s (read and written) for one core;
# a small torch op # took 1.3 us. Gloo between two processes: all-reduce of 64 B 0.39 ms, of 4 MiB
# 3.0 ms (2.8 GB/s a rank on # paper, 1.4 GB/s each way).
HOST = Device(
    "host-core",
    {"f32": 92e9, "f64": 48e9, "bf16": 92e9, "f16": 92e9},
    28e9,
    8 * GB,
    1.5e-6,
    cores=2,
)
GLOO = Link(2, 50e-6, 1.4e9, 250e-6)

# fmt: off
PRESETS: Mapping[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        Cluster("this-host", HOST, (GLOO,)),
        _nodes("8xA100",   A100, NVLINK_3, HDR_200, 1),
        _nodes("2x8xA100", A100, NVLINK_3, HDR_200, 2),
        _nodes("4x8xA100", A100, NVLINK_3, HDR_200, 4),
        _nodes("8xH100",   H100, NVLINK_4, NDR_400, 1),
        _nodes("2x8xH100", H100, NVLINK_4, NDR_400, 2),
        _nodes("8x8xH100", H100, NVLINK_4, NDR_400, 8),
        _nodes("8xH200",   H200, NVLINK_4, NDR_400, 1),
        _nodes("2x8xH200", H200, NVLINK_4, NDR_400, 2),
        # Made up for demonstrations: so slow at arithmetic that models of a few kilobytes are worth
        # sharding.
        Cluster(
            "demo-gpus",
            Device("demo", {"f32": 1e9, "f64": 1e9, "bf16": 2e9, "f16": 2e9}, 1e9, 4 * GB, 1e-7),
            (Link(4, 1e-7, 4e8, 2e-7), Link(64, 4e-7, 1e8, 4e-7)),
        ),
    )
}  # fmt: skip
# fmt: on
