"""What ranks of a plan hold, and whether a machine has the memory for all of them at once."""

from __future__ import annotations

from irc.cluster.host import free_bytes
from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.simulate.parts import held_at

PROCESS_BYTES = 160 << 20
"""What a rank has of its own before it reads a plan: 159 MiB (smaps_rollup), with PyTorch 2.13."""


def needed_bytes(plan: LoadedPlan | PartsPlan, rank: int) -> dict[str, int]:
    """Return what a rank of a plan is predicted to hold, by kind."""
    if isinstance(plan, LoadedPlan):
        return _of_plan(plan.plan)
    place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
    held = held_at(plan, place)
    registers = sum(count * size for count, size in held.registers.values())
    sizes = {"weights": held.weights, "registers": registers, "arena": held.arena}
    return {kind: int(size) for kind, size in sizes.items()}


def _of_plan(plan: Plan) -> dict[str, int]:
    buffers = plan.buffers
    passed = [b.size_bytes for b in buffers if b.storage in ("input", "output")]
    sizes = {
        "weights": sum(buffers[index].size_bytes for index in plan.weights),
        "prepared": plan.prepared_bytes,
        "arena": plan.arena_bytes,
        "passed": sum(passed),
    }
    return {kind: size for kind, size in sizes.items() if size}


def check_all_ranks(plan: LoadedPlan | PartsPlan) -> None:
    """Refuse a run whose ranks do not fit into this machine's free memory, before any starts.

    The system would end one of them in the middle of the run, or another program. Only kernels for
    CPUs are counted: GPUs have memory of their own, and say themselves that it is short.

    Raises:
        IrcError: ``memory-exceeded``, with what the ranks take.
    """
    backend = plan.backend if isinstance(plan, PartsPlan) else plan.plan.backend
    if backend != "cpu":
        return
    if isinstance(plan, LoadedPlan) and plan.sized is not None:
        return  # its sizes are those of the call: irc.runtime.inputs counts them
    if isinstance(plan, PartsPlan):
        places = [(len(ranks), ranks[0]) for ranks in plan.ranks]
    else:
        places = [(plan.plan.device_mesh.num_ranks, 0)]
    own = PROCESS_BYTES if sum(count for count, _ in places) > 1 else 0  # one runs in this process
    held = [(count, own + sum(needed_bytes(plan, rank).values())) for count, rank in places]
    needed, free = sum(count * size for count, size in held), free_bytes()
    if needed > free:
        raise IrcError(
            "memory-exceeded",
            f"the ranks take {needed / 2**30:.3g} GiB, and this machine has {free / 2**30:.3g} GiB "
            "free",
            because=[f"{count} of them: {size / 2**30:.3g} GiB each" for count, size in held[:8]],
            help="irc run PLAN --comm fake --rank 0 rehearses one of them alone; --layers 1 cuts "
            "the model",
        )
