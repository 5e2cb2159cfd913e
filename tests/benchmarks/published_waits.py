"""What the systems of published runs wait for where irc has something else to do meanwhile.

Megatron-LM waits for a message between stages before it goes on, and sends one on while it receives
one back (``p2p_communication.py``: requests are waited for, and the device is synchronised);
DeepSpeed's pipeline sends and receives one after the other (``runtime/pipe/p2p.py``, ``dist.send``
and ``dist.recv``). Until 2022 Megatron-LM summed the gradients of what a layer reads before it
multiplied those of its weights (``mpu/mappings.py``), and Megatron-DeepSpeed did so after.

BLOOM ran with ``CUDA_LAUNCH_BLOCKING=1`` on more than 20 nodes ("do not remove or the training will
hang", train/tr11-176B-ml): a kernel is launched once the one before has ended. Its BF16 optimiser
sums whole gradients of single precision (``_bf16_reduce_grads`` of DeepSpeed's pipeline), where irc
leaves each rank its part; that of parameters is gathered by both. Nothing is fitted to runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from irc.cluster.device import Device
from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.schedule.actions import Schedule
from irc.search.blocks import Passed, Piece
from irc.search.configurations import FULL
from irc.sharding.between import Channel, Side
from irc.simulate.boundaries import transfer_of
from tests.benchmarks.published_runs import Run
from tests.benchmarks.published_systems import SINGLE

ONE_AT_A_TIME = ("bloom",)
"""Sources whose stages send and receive one after the other: DeepSpeed's pipeline."""
BOTH_WAYS = ("sc21", "korthikanti22", "vocabpar24", "mist25")
"""Sources whose stages send and receive at a time: Megatron-LM's pipeline, which Mist has too."""
SUMS_FIRST = ("sc21", "bloom")
"""Sources that sum the gradients of a layer's input before they go on."""
BLOCKING_DEVICES = 160
"""With more, BLOOM's runs hung unless launches waited."""
LAUNCHES = {"F": 18, "B": 48}
"""Kernels of a layer of Megatron-LM, of its modules: norms, products with their biases, scores,
softmax, dropout, a copy of the heads, sums over ranks; and backward two for one, with a sum of each
of the twelve parameters' gradients."""
HOST_S = 9e-6
"""What Python and autograd take for one of them: a layer of such modules, of tiny tensors, forward,
again and backward, took 0.75 ms of a core of an EPYC, of which Jean Zay's nodes have some."""


def waiting(run: Run, layer: Piece, device: Device) -> Mapping[str, float]:
    """Return the seconds by which functions of a layer take longer, by name."""
    again = run.recompute == FULL
    launches = {"F": 0.0, "B": 0.0}
    if run.source in ONE_AT_A_TIME and run.devices > BLOCKING_DEVICES:
        # The host is told of the end, and prepares and sends the next: two ways instead of none.
        each = 2 * device.launch_s + HOST_S
        own = {kind: count * each for kind, count in LAUNCHES.items()}
        launches = {"F": own["F"], "B": own["B"] + again * own["F"]}
    sums = 0.0
    if run.source in SUMS_FIRST and run.tensor > 1:
        # Those of backward are as large as those of forward, which nothing runs beside.
        sums = max(0.0, layer.bare_s["F"] - layer.bare_s["B"])
    return {"F": launches["F"], "B": launches["B"] + sums}


def gathered_s(run: Run, mesh: Mesh, cluster: Cluster, parameters: float) -> float:
    """Return what whole sums of gradients take more than parts of them, for so many of a rank."""
    is_whole = run.source in ONE_AT_A_TIME and "reduce=float32" in run.precision
    if run.data == 1 or not is_whole:
        return 0.0
    cost = ClusterCost(cluster, mesh)
    return cost.collective_seconds("all_gather", SINGLE * parameters, "data")


def messages(
    run: Run, passed: Sequence[Passed], schedule: Schedule, mesh: Mesh, cluster: Cluster
) -> list[tuple[float, float]]:
    """Return for how long each stage waits for messages, after its forward and its backward pass.

    Between the two it exchanges with the stage after it, and then with the one before.

    Args:
        run: whose system says whether both ways are one after the other.
        passed: what a stage hands to the next.
        schedule: of the stages.
        mesh: of a stage.
        cluster: whose devices are the ranks, stage after stage.
    """
    ways = 2 if run.source in ONE_AT_A_TIME else 1 if run.source in BOTH_WAYS else 0
    size = mesh.num_ranks
    starts = [schedule.rank_of[stage] * size for stage in sorted(schedule.rank_of)]

    def seconds(each: Passed, first: int, other: int) -> float:
        sides = (Side(each.placement, mesh, range(r, r + size)) for r in (first, other))
        own = transfer_of(Channel(each.shape, each.dtype, *sides), cluster)
        return own.seconds + own.latency_s

    between = [
        ways * sum(seconds(each, *ends) for each in passed) if ways else 0.0
        for ends in pairwise(starts)
    ]
    return list(zip([*between, 0.0], [0.0, *between], strict=True))
