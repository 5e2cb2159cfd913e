"""GPUs by name, with the source of each number.

Peaks are vendors' figures for dense arithmetic times what large products of a library reach of
them under load (see `Reach`); what smaller ones reach follows from their shape (irc.cost.kernels).
TF32 is off unless asked, so float32 is the plain rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.cluster import interference_tables as tables
from irc.cluster.device import Device
from irc.cluster.interference import NO_INTERFERENCE, Interference

DISK_REACHED = 0.7
PORT_REACHED = 0.8  # of a port between nodes, or to the host: pinned copies over PCIe 4, 25 GB/s
GPU_LAUNCH_S = 7e-6  # AutoParallel's floor for one kernel
GB = 10**9
# One way, x16. Between the host and a die of an MI250X go 36 GB/s (Frontier User Guide).
PCIE_4, PCIE_5, HOST_FABRIC = 32, 64, 36
# Copies of all GPUs of a node at a time, where several share a port: 6.2 GB/s each on nodes of
# eight A100 40GB or V100, 4.4 of eight L4 (Mist's profiles).
SHARED_PCIE_3, L4_PCIE = 6.2 / PORT_REACHED, 4.4 / PORT_REACHED
# What is written: a drive of PCIe 4 (Samsung PM9A3 data sheet, 3.84 TB: 4.1 GB/s), as a DGX A100
# 640GB or DGX H100 has for each GPU. A node of Frontier has two of 2 GB/s for its eight dies.
U2_DISK, FRONTIER_DISK = 4.1, 0.5


@dataclass(frozen=True)
class Reach:
    """What kernels reach of a GPU.

    Attributes:
        units: multiprocessors (AMD: compute units).
        products: the part of the peak on tensor cores that a large product reaches, in half
            precision and under load. The maximum over shapes ("MAMF") is a tenth more.
        attention, backward: of that, what flash attention 2 reaches, and its gradients: of its
            products and exponentials.
        plain: the part of the other peaks that a large product reaches.
        memory: the part of the bandwidth that copies and products of one row reach.
    """

    units: int
    products: float
    attention: float
    backward: float
    plain: float = 0.9
    memory: float = 0.8


def _gpu(
    name: str,
    reach: Reach,
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
    half, single, double = (
        tflops * 1e12 * part
        for tflops, part in (
            (tensor_tflops, reach.products), (f32_tflops, reach.plain), (f64_tflops, reach.plain),
        )
    )  # fmt: skip
    return Device(
        name,
        {"bf16": half if has_bf16 else single, "f16": half, "f32": single, "f64": double},
        tb_per_s * 1e12 * reach.memory,
        gb * GB,
        GPU_LAUNCH_S,
        host_bytes_per_s=host_gb_per_s * GB * PORT_REACHED,
        disk_bytes_per_s=disk_gb_per_s * GB * DISK_REACHED,
        interference=interference,
        units=reach.units,
        attention=reach.attention,
        attention_backward=reach.backward,
        stated_flops={
            **({"bf16": tensor_tflops * 1e12} if has_bf16 else {}),
            "f16": tensor_tflops * 1e12,
            "f32": f32_tflops * 1e12,
            "f64": f64_tflops * 1e12,
        },
    )


# Large products. A100: 0.76 of the peak in serving profiles (Vidur, arXiv:2405.05465), 0.87 as the
# maximum of all shapes ("MAMF", stas00/ml-engineering, compute/accelerator); its 40 GB kind 0.9 at
# 50,000 rows, V100 0.84, L4 0.48 at 72 W (Mist's profiles). H100: 0.73 (Vidur), at most 0.80. B200
# and MI300X: nine tenths of their maxima, 0.776 and 0.514. MI250X: not known, taken as 0.7.
# Plain units: 18.9 of 19.5 TF/s in float32 on an A100 (Yinghan-Li/YHs_Sample, issue 4); L4 at 72 W
# less. Memory: products of one row on A100 and H100 (Vidur), the others as their generation.
# Attention: flash attention 2 on H100 and B200, Triton's tutorial on A100, fitted to half of the
# points of tests/cost/published_kernels.json; L4 as the A100; V100 and AMD's are guesses below it.
OF_A100 = Reach(108, 0.78, 1.0, 0.75)
OF_A100_40 = Reach(108, 0.88, 0.88, 0.66)
OF_V100 = Reach(80, 0.84, 0.6, 0.5)
OF_L4 = Reach(58, 0.48, 1.0, 0.75, plain=0.7)
OF_H100 = Reach(132, 0.75, 0.66, 0.49, memory=0.87)
OF_B200 = Reach(148, 0.72, 0.32, 0.255, memory=0.87)
OF_MI250X = Reach(110, 0.7, 0.5, 0.35)
OF_MI300X = Reach(304, 0.47, 0.5, 0.35)

# NVIDIA A100 80GB SXM data sheet: 312 TF bf16, 19.5 TF f32 and f64 (tensor core), 2039 GB/s.
A100 = _gpu(
    "A100-80GB-SXM", OF_A100,
    tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=2.039, gb=80,
    host_gb_per_s=PCIE_4, interference=tables.A100,
)  # fmt: skip
# NVIDIA A100 40GB SXM data sheet: the same at 1555 GB/s.
A100_40 = _gpu(
    "A100-40GB-SXM", OF_A100_40,
    tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=1.555, gb=40,
    host_gb_per_s=SHARED_PCIE_3, interference=tables.A100,
)  # fmt: skip
# The same chip within the same 400 W: where products follow each other for seconds, as in training,
# it reaches what its 80 GB kind does. Those of Mist's profiles were short and alone.
A100_40_LOADED = _gpu(
    "A100-40GB-SXM", OF_A100,
    tensor_tflops=312, f32_tflops=19.5, f64_tflops=19.5, tb_per_s=1.555, gb=40,
    host_gb_per_s=PCIE_4, interference=tables.A100,
)  # fmt: skip
# NVIDIA V100 SXM2 data sheet: 125 TF f16, no bf16, 15.7 TF f32, 7.8 TF f64, 900 GB/s.
V100 = _gpu(
    "V100-32GB-SXM2", OF_V100,
    tensor_tflops=125, f32_tflops=15.7, f64_tflops=7.8, tb_per_s=0.9, gb=32,
    host_gb_per_s=SHARED_PCIE_3, has_bf16=False, interference=tables.V100,
)  # fmt: skip
# NVIDIA L4 data sheet: 121 TF bf16 dense, 30.3 TF f32, a 64th of it f64, 300 GB/s.
L4 = _gpu(
    "L4-24GB", OF_L4,
    tensor_tflops=121, f32_tflops=30.3, f64_tflops=0.47, tb_per_s=0.3, gb=24,
    host_gb_per_s=L4_PCIE, interference=tables.L4,
)  # fmt: skip
# NVIDIA H100 SXM data sheet: 989 TF bf16 dense, 67 TF f32 and f64 (tensor core), 3.35 TB/s.
H100 = _gpu(
    "H100-80GB-SXM", OF_H100,
    tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=3.35, gb=80,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# NVIDIA H200 SXM data sheet: an H100 with 141 GB at 4.8 TB/s.
H200 = _gpu(
    "H200-141GB-SXM", OF_H100,
    tensor_tflops=989, f32_tflops=67, f64_tflops=67, tb_per_s=4.8, gb=141,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# NVIDIA HGX B200 data sheet, an eighth of it: 2250 TF bf16 dense, 75 TF f32 and 37 TF f64, 180 GB
# at 7.7 TB/s.
B200 = _gpu(
    "B200-180GB", OF_B200,
    tensor_tflops=2250, f32_tflops=75, f64_tflops=37, tb_per_s=7.7, gb=180,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
# AMD MI250X data sheet, halved: each of its two dies is a device. 383 TF bf16, 47.9 TF f32 and f64
# (vector), 3.2 TB/s, 128 GB.
MI250X = _gpu(
    "MI250X-GCD", OF_MI250X,
    tensor_tflops=191.5, f32_tflops=23.95, f64_tflops=23.95, tb_per_s=1.6, gb=64,
    host_gb_per_s=HOST_FABRIC, disk_gb_per_s=FRONTIER_DISK,
)  # fmt: skip
# AMD MI300X data sheet: 1307 TF bf16 dense, 163.4 TF f32 and f64 (matrix), 5.3 TB/s, 192 GB.
MI300X = _gpu(
    "MI300X", OF_MI300X,
    tensor_tflops=1307, f32_tflops=163.4, f64_tflops=163.4, tb_per_s=5.3, gb=192,
    host_gb_per_s=PCIE_5,
)  # fmt: skip
