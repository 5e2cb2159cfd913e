"""Overlap on links as slow as a cluster's: what a step takes with and without each pass.

    python -m tests.benchmarks.slow_links [--quick] [--json FILE]

A step of a GPT of eight layers runs on 2 and on 4 gloo processes of this machine, over links on
which collectives take as long as a cluster file says (``irc run --links``). "compute" is
the step of the same plan whose collectives take what they take here, "link" what the plan says that
its link carries, and "over" the step in parts of the longer of the two; "predicted" is the same of
the simulated step. A row without a pass has ``--pass no-NAME``. Stages of a pipeline send each
other values: there, "compute" has the bubbles of the schedule, and the row without ``filler`` has
the schedule 1f1b, whose backward leaves no weight gradients to compute while values are on their
way; the row with it has the order that a search finds by the plan's own times (--schedule search).
"experts" are layers of a mixture, whose tokens travel to the ranks of their experts and back.

Of a pipeline "floor" is what no order of one stage a rank goes below, in the same parts, and it is
above the target on four ranks. With forwards of F on a rank, gradients of I and W, messages of T,
m micro-batches and an update U, rank r begins when r forwards and messages are behind it, and then
has all its work:
    step >= r (F + T) + m (F + I + W) + U
Compute alone has r F + m (F + I + W) + U, so that the fill of a link costs r T: with F = 4.1, I =
4.7, W = 4.2, U = 3.8 and T = 8.3 ms on two ranks 126 of 118 ms, 1.07; on four ranks 151 of 126,
1.20. A device has one port, which messages from both neighbours share: the first one reaches an
inner rank r after (r - 1) (F + T) + F, then 2 m of them arrive one after the other, the last of
them a gradient, which still has to go on to rank 0:
    step >= (r - 1) (F + T) + F + 2 m T + I + r (T + I) + W + U
On four ranks that is 186 of 126 ms, 1.48, whatever the order. Processes here have a link to each
neighbour, and no port that these share, so that measured steps of four ranks may lie below it.

The cluster's devices are as fast as this machine is with the plan of the layout, and its links in
proportion: else what the planner hides behind compute would not be hidden here.
``--quick`` has two of the layouts, of four layers, on 2 processes, once.

Targets (issue 23): over at most 1.1 where all passes are on, and no pass makes a step longer by
more than 3 %.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import irc
from irc.cluster.load import find_cluster
from irc.plan.load import load_plan
from irc.plan.parts_files import load_parts
from irc.plan.schema import Start
from irc.runtime.launch import run_plan
from irc.simulate.parts import predict_step, priced
from irc.simulate.plan import predict
from irc.simulate.priced import Priced
from irc.simulate.schedule import Simulation
from tests.models.gpt import GPT, GPTConfig
from tests.models.mixture import Mixture, travelling

LIMIT, WORSE = 1.1, 1.03
RUNS, MICRO_BATCHES = 3, 8
FILLER = "filler"
"""Weight gradients that a pipeline's rank computes while values are on their way: a schedule."""
CLUSTER = """
name = "lab"

[device]
name = "core"
peak_tflops = {{ f32 = {tflops} }}
memory_gb = 8
memory_gb_per_s = {memory}
launch_us = {launch}

[[link]]
devices = 4
gb_per_s = {speed}
latency_us = {latency}
launch_us = {begin}
"""
TFLOPS, MEMORY, LAUNCH, BEGIN = 0.07, 8.0, 5.0, 10.0
"""Of a core, GB/s of its memory, and microseconds of a kernel and of a collective."""


def cluster_text(speed: float, latency: float, fast: float) -> str:
    """Return a cluster whose devices and links are so many times as fast as the usual ones."""
    return CLUSTER.format(
        tflops=TFLOPS * fast, memory=MEMORY * fast, launch=LAUNCH / fast, speed=speed * fast,
        latency=latency / fast, begin=BEGIN / fast,
    )  # fmt: skip


FREE_LINK = """[[link]]
devices = 4
gb_per_s = 1e6
latency_us = 0
launch_us = 0
"""


class Case(NamedTuple):
    """A layout on a link, and the passes that hide it."""

    name: str
    layout: str
    speed: float
    latency: int
    passes: tuple[str, ...]


CASES = (
    Case("ddp, slow", "ddp", 0.2, 100, ("order", "hoist-collectives")),
    Case("ddp, far", "ddp", 2.0, 1500, ("order", "bucket-collectives")),
    Case("fsdp, slow", "fsdp", 0.3, 100, ("order",)),
    Case("tp+sp, slow", "tp+sp", 0.3, 100, ("order", "chunk-collectives")),
    Case("tp, slow", "tp", 0.3, 100, ("order", "slice-batch")),
    Case("experts, slow", "experts", 0.05, 100, ("order", "chunk-experts")),
    Case("pipe, slow", "pipe", 0.01, 100, (FILLER,)),
)
QUICK = ("tp, slow", "pipe, slow")


def export(
    case: Case, ranks: int, without: Sequence[str], folder: Path, layers: int, fast: float
) -> None:
    """Write a plan of a step, for a cluster so many times as fast as the usual one."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=layers, hidden=256, heads=4, vocab=512, block=64))
    tokens = torch.randint(0, 512, (16, 64))
    cluster = folder.with_suffix(".toml")
    cluster.write_text(cluster_text(case.speed, case.latency, fast))
    common = {"optimizer": "adamw", "cluster": str(cluster), "out": folder}
    if case.layout == "pipe":
        irc.export_plan(model, (tokens, tokens), mesh=f"pipe={ranks}", micro_batches=MICRO_BATCHES,
                        schedule="1f1b" if FILLER in without else "search", **common)  # fmt: skip
        return
    passes = [f"no-{name}" for name in without]
    if case.layout == "experts":
        mixture, rows = Mixture(layers // 2, width=256, inner=512, count=8), torch.randn(2048, 256)
        pins = travelling(mixture, rows, optimizer="adamw")
        irc.export_plan(mixture, (rows,), mesh=f"expert={ranks}", pins=pins, passes=passes,
                        **common)  # fmt: skip
        return
    axis = "tensor" if case.layout.startswith("tp") else "data"
    irc.export_plan(model, (tokens, tokens), mesh=f"{axis}={ranks}", layout=case.layout,
                    passes=passes, **common)  # fmt: skip


class Predicted(NamedTuple):
    """Seconds of a step: on the busiest link, of compute alone, and of both as they overlap.

    Of stages also what no order goes below.
    """

    link: float
    compute: float
    step: float
    floor: float = 0.0


def of_program(path: Path) -> Predicted:
    """Return what a plan of one program predicts."""
    plan = load_plan(path).plan
    run = predict(plan)
    link = sum(a.seconds or 0.0 for a in plan.actions if isinstance(a, Start))
    busy = sum(a.seconds for a in run.actions if a.stream == "compute")
    return Predicted(link, busy, run.timeline.seconds)


def of_stages(path: Path) -> Predicted:
    """Return what a plan of stages predicts; compute is the step over links that take no time."""
    plan = load_parts(path)
    cluster = path.with_suffix(".toml")
    quick = path.with_suffix(".quick.toml")
    text = cluster.read_text()
    quick.write_text(text[: text.index("[[link]]")] + FREE_LINK)
    with_links, without = (predict_step(plan, find_cluster(str(f))) for f in (cluster, quick))
    floor = _floor(priced(plan, find_cluster(str(cluster))), plan.num_micro_batches)
    return Predicted(_busiest(with_links), without.seconds, with_links.seconds, floor)


def _floor(step: Priced, count: int) -> float:
    """Return seconds that no order of one stage a rank goes below (above)."""
    stages = step.costs.stages
    ranks = range(len(stages))
    work = [count * sum(map(own.of, "FIW" if "I" in own.seconds else "FB")) for own in stages]
    ends = [own.reduce_seconds + own.update_seconds for own in stages]
    ways = {(r.producer, r.consumer): step.ways(r.name, r.producer, r.consumer)
            for r in step.wiring.routes}  # fmt: skip
    takes = {ends: way.seconds + way.latency_s for ends, way in ways.items()}
    fill = [sum(stages[s].of("F") + takes[s, s + 1] for s in range(rank)) for rank in ranks]
    floors = [fill[rank] + work[rank] + ends[rank] for rank in ranks]
    if step.device is not None:
        for rank in ranks[1:-1]:
            first = fill[rank] - takes[rank - 1, rank]
            port = count * (ways[rank - 1, rank].seconds + ways[rank + 1, rank].seconds)
            back = sum(takes[s + 1, s] + stages[s].of("I") for s in range(rank))
            last = stages[0].of("W") + ends[0]
            floors.append(first + port + stages[rank].of("I") + back + last)
    return max(floors)


def _busiest(run: Simulation) -> float:
    """Return the seconds of the link that is busy for longest."""
    busy: dict[str, float] = {}
    for action in run.actions:
        if action.stream.startswith("link"):
            busy[action.stream] = busy.get(action.stream, 0.0) + action.seconds
    return max(busy.values(), default=0.0)


def times_as_fast(case: Case, ranks: int, folder: Path, layers: int) -> float:
    """Return how many times as fast as the usual core this machine is with a layout's plan."""
    path = folder / "-".join([case.name.replace(", ", "-"), str(ranks), "usual"])
    export(case, ranks, (), path, layers, 1.0)
    return predicted(case, path).compute / max(run_plan(path, compare=False).seconds)


def predicted(case: Case, path: Path) -> Predicted:
    """Return what a plan predicts."""
    return of_stages(path) if case.layout == "pipe" else of_program(path)


def row(
    case: Case, ranks: int, without: Sequence[str], folder: Path, fast: float, *, is_quick: bool
) -> dict[str, Any]:
    """Return the figures of a plan."""
    path = folder / "-".join([case.name.replace(", ", "-"), str(ranks), *without])
    export(case, ranks, without, path, 4 if is_quick else 8, fast)
    said = predicted(case, path)
    pairs = [
        [max(run_plan(path, compare=False, links=links).seconds) for links in (False, True)]
        for _ in range(1 if is_quick else RUNS)
    ]
    compute, step = (median(column) for column in zip(*pairs, strict=True))
    over = median(both[1] / max(both[0], said.link) for both in pairs)
    return {
        "case": case.name,
        "ranks": ranks,
        "without": "".join(without),
        "compute": compute,
        "link": said.link,
        "step": step,
        "over": over,
        "predicted": said.step / max(said.compute, said.link),
        "predicted_s": said.step,
        "floor": said.floor / max(said.compute, said.link),
    }


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        "case          ranks  without             compute ms  link ms  step ms  over  predicted"
        "  floor"
    )
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2,) if args.quick else (2, 4):
            for case in CASES:
                if args.quick and case.name not in QUICK:
                    continue
                # In a minute, only the pass that a layout is there for.
                passes = case.passes[-1:] if args.quick else case.passes
                fast = times_as_fast(case, ranks, Path(folder), 4 if args.quick else 8)
                for without in ((), *((name,) for name in passes)):
                    each = row(case, ranks, without, Path(folder), fast, is_quick=args.quick)
                    rows.append(each)
                    print(f"{each['case']:<13} {ranks:>5}  {each['without']:<18}"
                          f"{each['compute'] * 1e3:>12.1f}{each['link'] * 1e3:>9.1f}"
                          f"{each['step'] * 1e3:>9.1f}{each['over']:>6.2f}"
                          f"{each['predicted']:>11.2f}"
                          + (f"{each['floor']:>7.2f}" if each["floor"] else ""),
                          flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    longest = max(each["over"] for each in rows if not each["without"])
    whole = {(each["case"], each["ranks"]): each["step"] for each in rows if not each["without"]}
    worse = max(whole[each["case"], each["ranks"]] / each["step"] for each in rows)
    met = longest <= LIMIT and worse <= WORSE
    print(f"over {longest:.2f} ({LIMIT}), a pass costs {max(worse - 1, 0):.1%} at most (3%): "
          f"{'all met' if met else 'MISSED'}")  # fmt: skip
    return not met


if __name__ == "__main__":
    sys.exit(main())
