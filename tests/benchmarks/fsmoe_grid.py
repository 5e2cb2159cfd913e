"""FSMoE's grid of layers, and its clusters (Pan et al., ASPLOS 2025, arXiv:2501.10714).

The paper compares systems on 1458 configured layers: all of samples, capacity factor, tokens of a
sample, heads, width, inner dim over width, and kind of expert, 3 x 3 x 3 x 3 x 3 x 3 x 2. Its
abstract states their number. The authors' code (xpan413/FSMoE, tools/optim.py at 4d4cf36) has times
of attention for samples of 256, 512 and 1024 tokens, ``topk * capacity_factor = 2.4``, the volumes
of each exchange, and the fitted lines of a cluster whose nodes have 8 GPUs, which are copied below.
The table of the paper itself was not at hand: the other values of the axes, and the second
cluster, are written down from memory of it, and only their number could be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from irc.cluster.device import Device
from irc.cluster.links import Collective, Fit, Link
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from tests.passes.expert_programs import Layer

SAMPLES = (1, 2, 4)
CAPACITIES = (1.2, 2.4, 1.0)
"""Tokens that an expert takes, over the mean: rows grow by it; the last drops and pads none."""
HEADS = (8, 16, 32)
"""Of attention, which is no part of a layer of experts: each layer counts once for each."""
WIDTHS = (1024, 2048, 4096)
RATIOS = (2, 3, 4)
GATED = (False, True)
"""Two matrices an expert, or three as in Mixtral."""
CHOICES = 2
NUM_LAYERS = 1458
PIECES = 16
"""Tokens of a rank are rounded up to a multiple, so that all degrees divide them."""


class Testbed(NamedTuple):
    """A cluster, with an expert a node.

    Attributes:
        cluster: the machines.
        nodes, gpus: how many, and how many each has.
        lengths: tokens of a sample that the layers are configured with.
    """

    cluster: Cluster
    nodes: int
    gpus: int
    lengths: tuple[int, ...]

    def placed(self, layer: Layer, *, copies: bool) -> tuple[Layer, str, Mesh]:
        """Return the layer of one group of ranks, their mesh, and the mesh of all GPUs.

        Args:
            layer: of all GPUs.
            copies: each GPU of a node holds the node's expert, and sends its own tokens; else they
                share its inner dim, and all compute all tokens.
        """
        if copies:
            whole = Mesh.parse(f"expert={self.nodes},data={self.gpus}")
            own = layer._replace(tokens=layer.tokens // self.gpus)
            return own, f"expert={self.nodes}", whole
        mesh = f"expert={self.nodes},tensor={self.gpus}"
        return layer, mesh, Mesh.parse(mesh)


def _fit(fixed_s: float, s_per_byte: float, ranks: int) -> Fit:
    """Return the figures whose line is ``fixed + bytes * slope`` of the whole buffer of a rank."""
    return Fit(fixed_s, 0.0, (ranks - 1) / ranks / s_per_byte)


def _inside(gpus: int, gather: tuple[float, float], scatter: tuple[float, float]) -> Link:
    fits: dict[Collective, Fit] = {
        "all_gather": _fit(*gather, gpus),
        "reduce_scatter": _fit(*scatter, gpus),
    }
    return Link(gpus, 5e-6, (gpus - 1) / gpus / gather[1], gather[0], fits=fits)


def _between(nodes: int, gpus: int, line: tuple[float, float]) -> Link:
    fits: dict[Collective, Fit] = {"all_to_all": _fit(*line, nodes)}
    speed = (nodes - 1) / nodes / line[1]
    return Link(nodes * gpus, 5e-6, speed, line[0], tree=True, fits=fits)


# Seconds, and seconds a byte of float32, of FSMoE's lines (milliseconds and elements there); a
# multiplication and addition takes 5.68e-14 s. Its fixed time of experts, 0.59 ms, is left out: a
# kernel's launch is what it takes here.
ALL_TO_ALL = 2.3515350484e-4, 1.8543323833e-9 / 4
ALL_GATHER = 5.49e-5, 6.72388e-10 / 4
REDUCE_SCATTER = 6.88e-5, 6.70433e-10 / 4
FLOPS = 2 / 5.6847387697e-14

# RTX A6000: 768 GB/s, 48 GB. RTX 2080 Ti: 13.4 Tflop/s, 616 GB/s, 11 GB, PCIe 3.0 of 16 lanes, and
# 100 Gbit/s a node (data sheets), of which nine tenths are reached; latencies as of the first.
A6000 = Device("RTX-A6000", {"f32": FLOPS}, 0.9 * 768e9, 48 * 10**9, 5e-6)
TI_2080 = Device("RTX-2080Ti", {"f32": 0.9 * 13.4e12}, 0.9 * 616e9, 11 * 10**9, 5e-6)
OVER_PCIE = 1 / (0.9 * 12e9 / 2)
OVER_NODE = 1 / (0.9 * 12.5e9 / 4)

TESTBEDS = {
    "A": Testbed(
        Cluster(
            "6x8xA6000",
            A6000,
            (_inside(8, ALL_GATHER, REDUCE_SCATTER), _between(6, 8, ALL_TO_ALL)),
        ),
        6,
        8,
        (512, 1024, 2048),
    ),
    "B": Testbed(
        Cluster(
            "8x4xRTX2080Ti",
            TI_2080,
            (
                _inside(4, (ALL_GATHER[0], OVER_PCIE), (REDUCE_SCATTER[0], OVER_PCIE)),
                _between(8, 4, (ALL_TO_ALL[0], OVER_NODE)),
            ),
        ),
        8,
        4,
        (256, 512, 1024),
    ),
}


def layers(testbed: Testbed) -> Iterator[Layer]:
    """Yield the 1458 layers of a cluster, in order, those that differ in heads one by one."""
    for samples, capacity, length, _, width, ratio, gated in product(
        SAMPLES, CAPACITIES, testbed.lengths, HEADS, WIDTHS, RATIOS, GATED
    ):
        least = testbed.gpus * PIECES
        node = -(-round(samples * length * capacity) // least) * least
        yield Layer(node * testbed.nodes, width, ratio * width, testbed.nodes, CHOICES, gated=gated)
