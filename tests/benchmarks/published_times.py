"""Published runs whose stages' times are published as well: what the simulator makes of these.

Nothing is priced here but messages between stages of one host: a row gives the seconds of each
stage's forward and backward pass, and of its slice of the vocabulary where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh, Placement
from irc.schedule.named import generate
from irc.schedule.timeline import Times
from irc.schedule.vocabulary import with_vocabulary
from irc.sharding.between import Channel, Side
from irc.simulate.boundaries import transfer_of
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.schedule import simulate_schedule
from tests.benchmarks.published_runs import Row, step_s

ALGORITHMS = {"vocab-1 (2 barriers)": 1, "vocab-2 (1 barrier)": 2}
LOGITS_PART = 1 / 3
"""Of a vocabulary's passes, the products of the logits; the rest are those of both gradients."""
SCHEDULES = {"1F1B": "1f1b", "ZB-H1": "zb-h1", "ZB-1p": "zb-h1", "ZB-2p": "zb-h2"}
"""By what a row says; automatic schedules as those drawn by hand of the same memory."""


def given_times(row: Row) -> tuple[float, float] | None:
    """Return the simulated and the measured seconds of a step; None where a row has no times."""
    extra = row.get("extra", {})
    if row["kind"] != "training" or "value" not in row:
        return None
    if "per_stage_fwd_us" in extra and extra["vocab_method"] != "interlaced":
        return _of_stages(row, extra), step_s(row)
    if "T_F_ms" in extra and extra["schedule"] in SCHEDULES:
        return _of_equal_stages(row, extra), step_s(row)
    stages = extra.get("stage_measured", {})
    if row["source"] == "aceso_mist" and len(stages) == row["pp"] and "dp" in row:
        return _of_sums(row, stages), step_s(row)
    return None


def _of_stages(row: Row, extra: Row) -> float:
    """Return the step of stages of their own times, with or without slices of a vocabulary."""
    forward, backward = (
        [us * 1e-6 for us in extra[f"per_stage_{name}_us"]] for name in ("fwd", "bwd")
    )
    schedule = generate("1f1b", ranks=row["pp"], micro_batches=extra["microbatches"])
    passes = [us * 1e-6 for us in extra.get("per_stage_vocab_pass_us", [0.0] * row["pp"])]
    if algorithm := ALGORITHMS.get(extra["vocab_method"]):
        logits = max(passes) * LOGITS_PART
        # The kinds I and W of a plain backward are its halves.
        halves = [seconds / 2 for seconds in backward]
        times = Times(forward, halves, halves, backward, 0.0, logits, max(passes) - logits)
        schedule = with_vocabulary(schedule, algorithm, times)
    stages = [
        StageCosts({"F": f, "B": b, "S": v * LOGITS_PART, "T": v * (1 - LOGITS_PART)})
        for f, b, v in zip(forward, backward, passes, strict=True)
    ]
    return simulate_schedule(schedule, Costs(stages, _message(row))).seconds


def _message(row: Row) -> Transfer:
    """Return what a micro-batch takes from one device of a node to the next."""
    shape = row["microbatch"] * row["model"]["seq"], row["model"]["hidden"]
    one, placed = Mesh(()), Placement.replicated(())
    channel = Channel(shape, "bf16", *(Side(placed, one, (rank,)) for rank in (0, 1)))
    return transfer_of(channel, find_cluster("8xA100"))


def _of_equal_stages(row: Row, extra: Row) -> float:
    """Return the step of equal stages, whose backward is in two parts."""
    f, i, w, sent = (extra[f"T_{name}_ms"] * 1e-3 for name in ("F", "B", "W", "comm"))
    name = SCHEDULES[extra["schedule"]]
    schedule = generate(name, ranks=row["pp"], micro_batches=extra["microbatches"])
    times = Times((f,), (i,), (w,), (i + w,), sent)
    return simulate_schedule(schedule, Costs.of(times, row["pp"])).seconds


def _of_sums(row: Row, stages: Mapping[str, Row]) -> float:
    """Return the step of stages whose times of all micro-batches were added up."""
    count = row["global_batch"] // row["microbatch"]
    schedule = generate("1f1b", ranks=row["pp"], micro_batches=count)
    own: Sequence[StageCosts] = [
        StageCosts(
            {"F": stage["fwd_ms"] / count * 1e-3, "B": stage["bwd_ms"] / count * 1e-3},
            update_seconds=stage.get("opt_ms", 0.0) * 1e-3,
        )
        for _, stage in sorted(stages.items(), key=lambda item: int(item[0]))
    ]
    return simulate_schedule(schedule, Costs(own)).seconds
