"""One rank of one contender of the pipelines benchmark: answers commands in JSON.

``python tests/benchmarks/pipeline_worker.py WAY MODEL SCHEDULE MESH MICRO_BATCHES``; rank and world
come from the environment. Commands: ``check`` (ten steps against one process, irc
only), ``time N`` (N steps: median seconds), ``memory``.
"""

# pyright: basic
from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn

from tests.benchmarks.contenders import answer
from tests.benchmarks.pipeline_models import batch, cuts, loss, model

SAMPLES = 4
"""Of a micro-batch."""
STEPS = 10
RATE = 1e-3

Step = Callable[[], float]


def stage_text(count: int, stages: int) -> str:
    """Return the stages as irc takes them."""
    parts = (f"layers.{r.start}-layers.{r.stop - 1}" for r in cuts(count, stages))
    return "; ".join(parts)


def irc_step(name: str, schedule: str, mesh: str, micro: int, dtype: torch.dtype) -> Any:
    """Return irc's step, and its batch."""
    import irc
    from irc.programs.schedules import schedule_for
    from irc.sharding.mesh import parse_mesh

    module = model(name, dtype)
    whole = parse_mesh(mesh)
    stages = len(schedule_for(schedule, whole.size("pipe"), micro).paths[0])
    made = irc.compile_step(
        module,
        loss=loss,
        optimizer={"kind": "adamw", "lr": RATE},
        mesh=mesh,
        micro_batches=micro,
        schedule=schedule,
        stages=stage_text(len(module.layers), stages),
        pins=PINS if len(whole.axes) > 1 else "",
    )
    return made, [_cast(x, dtype) for x in batch(name, SAMPLES * micro)]


PINS = "cut* = [data = S(0)]; gradient.cut* = [data = S(0)]"


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def eager_losses(name: str, micro: int, dtype: torch.dtype) -> list[float]:
    """Return the losses of eager training on one process, micro-batch after micro-batch."""
    module = model(name, dtype)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    x, target = (_cast(v, dtype) for v in batch(name, SAMPLES * micro))
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for own, wanted in zip(x.chunk(micro), target.chunk(micro), strict=True):
            value = loss(module(own), wanted) / micro
            value.backward()
            total += value.item()
        optimizer.step()
        losses.append(total)
    return losses


def torch_step(name: str, schedule: str, micro: int, *, compiled: bool) -> Step:
    """Return a step of torch.distributed.pipelining with the same stages and schedule."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining import schedules as known

    from irc.programs.schedules import schedule_for
    from irc.schedule.csv_table import write_csv

    rank, world = dist.get_rank(), dist.get_world_size()
    whole = schedule_for(schedule, world, micro)
    module = model(name)
    count = len(whole.paths[0])
    ranges = cuts(len(module.layers), count)
    own = sorted({a.stage for a in whole.ranks[rank] for a in a.flat})
    stages, parameters = [], []
    for number in own:
        part: nn.Module = _Part([module.layers[i] for i in ranges[number]])
        parameters += list(part.parameters())
        if compiled:
            part = torch.compile(part)
        stages.append(PipelineStage(part, number, count, torch.device("cpu")))
    optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)
    plain = {"gpipe": known.ScheduleGPipe, "1f1b": known.Schedule1F1B}
    if schedule in plain:
        runner: Any = plain[schedule](stages[0], micro, loss_fn=loss)
    else:
        runner = known._PipelineScheduleRuntime(stages, micro, loss_fn=loss)
        with TemporaryDirectory() as folder:
            table = Path(folder, "schedule.csv")
            table.write_text(write_csv(whole), encoding="utf-8")
            runner._load_csv(str(table))
    x, target = batch(name, SAMPLES * micro)
    place = whole.rank_of

    def step() -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given = (x,) if place[0] == rank else ()
        has_loss = place[count - 1] == rank
        runner.step(*given, **({"target": target, "losses": losses} if has_loss else {}))
        optimizer.step()
        # As irc gives it to every rank.
        total = torch.stack(losses).mean() if has_loss else torch.zeros(())
        dist.broadcast(total, place[count - 1])
        return float(total)

    return step


class _Part(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *values: torch.Tensor) -> Any:
        for layer in self.layers:
            values = layer(*values)
            values = values if isinstance(values, tuple) else (values,)
        return values if len(values) > 1 else values[0]


def check(name: str, schedule: str, mesh: str, micro: int, first: list[float]) -> dict[str, float]:
    """Return how far losses are from one process's, in both precisions; the first rank compares.

    ``first`` are the losses of the first steps in float32.
    """
    step, given = irc_step(name, schedule, mesh, micro, torch.float64)
    own = {torch.float64: [float(step(*given)) for _ in range(STEPS)], torch.float32: first}
    if os.environ["RANK"] != "0":
        return {}
    gaps: dict[str, float] = {}
    for dtype, losses in own.items():
        expected = eager_losses(name, micro, dtype)
        apart = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
        gaps[str(dtype).removeprefix("torch.")] = max(apart)
    return gaps


def memory(step: Step, held: dict[str, int]) -> dict[str, float]:
    """Return what torch's allocator takes in a step beside what was allocated before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    total, peak = 0, 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]  # it ran
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    planned = held["registers"] + held["arena"]
    return {"planned": planned, "beside": peak}


def main(way: str, name: str, schedule: str, mesh: str, micro_text: str) -> None:
    """Answer commands until they end."""
    micro = int(micro_text)
    torch.set_num_threads(1)
    held: Any = None
    first: list[float] = []
    if way == "irc":
        made, given = irc_step(name, schedule, mesh, micro, torch.float32)

        def step() -> float:
            return float(made(*given))

        first = [step() for _ in range(STEPS)]
        held = made
    else:
        store = dist.FileStore(os.environ["IRC_STORE"], int(os.environ["WORLD_SIZE"]))
        dist.init_process_group(
            "gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            store=store,
        )
        step = torch_step(name, schedule, micro, compiled=way == "inductor")
        for _ in range(3):
            step()
    answer("ready")
    for line in sys.stdin:
        command, *words = line.split()
        if command == "time":
            seconds: list[float] = []
            for _ in range(int(words[0])):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            answer(median(seconds))
        elif command == "check":
            answer(check(name, schedule, mesh, micro, first))
        else:
            answer(memory(step, held.memory_bytes()))


if __name__ == "__main__":
    main(*sys.argv[1:])
