"""What the simulator says of plans: the verdicts of a search."""

from __future__ import annotations

from irc.cluster.topology import Cluster
from irc.plan.held import held_bytes
from irc.plan.parts import MICRO_BATCH_KINDS, SMALLER_KINDS, PartsPlan
from irc.plan.schema import Plan
from irc.search.judge import Verdict
from irc.simulate.parts import all_held, contention_of, predict_step
from irc.simulate.plan import Contention, predict
from irc.simulate.schedule import Simulation


def verdict_of(plan: Plan, cluster: Cluster) -> Verdict:
    """Return what the simulator says of a plan of one program."""
    contention = Contention.of(cluster, plan.device_mesh)
    prediction = predict(plan, contention=contention)
    busy = prediction.timeline.busy(prediction.actions).get("compute", 0.0)
    return Verdict(
        prediction.seconds, held_bytes(plan), exposed_s=max(0.0, prediction.seconds - busy)
    )


def verdict_of_parts(
    plan: PartsPlan, cluster: Cluster, simulated: Simulation | None = None
) -> Verdict:
    """Return what the simulator says of a plan of several programs.

    Args:
        plan: of several programs.
        cluster: whose devices are the ranks, in order.
        simulated: its step there, where that is known already.
    """
    simulation = predict_step(plan, cluster) if simulated is None else simulated
    contention, exposed = contention_of(plan, cluster), list[float]()
    for place in range(len(plan.ranks)):
        total = 0.0
        for part in plan.parts_at(place).values():
            for kind, loaded in plan.parts[part].items():
                own = predict(loaded.plan, contention=contention)
                bare = own.seconds - own.timeline.busy(own.actions).get("compute", 0.0)
                often = plan.num_micro_batches if kind in MICRO_BATCH_KINDS else 1
                total += max(0.0, bare) * (often if kind not in SMALLER_KINDS else 0)
        exposed.append(total)
    places = range(len(plan.ranks))
    bubbles = [max(0.0, simulation.bubble(rank)) for rank in places]
    held = max(each.num_bytes() for each in all_held(plan))
    return Verdict(
        simulation.seconds, held, sum(bubbles) / len(bubbles), sum(exposed) / len(exposed)
    )
