"""One rank of one contender of the pipelines benchmark: answers commands in JSON.

Rank and world come from the environment. Commands, each a list of JSON on a line:

* ``build WAY STEP MODEL SCHEDULE MESH MICRO_BATCHES`` makes and warms a step to be timed, and gives
  its losses; ``time STEP N`` gives the median seconds of N of them, ``drop`` lets go of them;
* ``values`` gives irc's losses in float64, and what its allocator took;
* ``eager MODEL MICRO_BATCHES DTYPE`` gives the losses of one process.
"""

# pyright: basic
from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn

from tests.benchmarks.pipeline_models import batch, cuts, loss, model

SAMPLES = 4
"""Of a micro-batch. What is timed is in float32; in float64 losses alone are compared, of less."""
STEPS = 10
WARM = 2
RATE = 3e-5
"""At 1e-3 ten steps of AdamW make much of a rounding: eager training of the ResNet is 7e-4 from
that in float64, and 1e-4 from itself where it adds its micro-batches up in another order. At this
rate it is 1e-7 from float64, so that 2e-6 says something of a pipeline."""

Step = Callable[[], float]


def stage_text(count: int, stages: int) -> str:
    """Return the stages as irc takes them."""
    parts = (f"layers.{r.start}-layers.{r.stop - 1}" for r in cuts(count, stages))
    return "; ".join(parts)


def irc_step(name: str, schedule: str, mesh: str, micro: int, dtype: str) -> Any:
    """Return irc's step, and its batch."""
    import irc
    from irc.programs.schedules import schedule_for
    from irc.sharding.mesh import parse_mesh

    module = model(name, getattr(torch, dtype))
    whole = parse_mesh(mesh)
    stages = len(schedule_for(schedule, whole.size("pipe"), micro).paths[0])
    step = irc.compile_step(
        module,
        loss=loss,
        optimizer={"kind": "adamw", "lr": RATE},
        mesh=mesh,
        micro_batches=micro,
        schedule=schedule,
        stages=stage_text(len(module.layers), stages),
        pins=PINS if "data" in whole.names else "",
    )
    return step, _batch(name, micro, dtype)


PINS = "cut* = [data = S(0)]; gradient.cut* = [data = S(0)]"


def _batch(name: str, micro: int, dtype: str) -> list[torch.Tensor]:
    small = dtype == "float64"
    values = batch(name, (SAMPLES // 2 if small else SAMPLES) * micro, small=small)
    return [x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in values]


def eager_losses(name: str, micro: int, dtype: str) -> list[float]:
    """Return the losses of eager training on one process, micro-batch after micro-batch."""
    module = model(name, getattr(torch, dtype))
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    x, target = _batch(name, micro, dtype)
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


class TorchSteps:
    """Steps of torch.distributed.pipelining; stages that Inductor compiled serve all schedules."""

    def __init__(self) -> None:
        store = dist.FileStore(os.environ["IRC_STORE"], int(os.environ["WORLD_SIZE"]))
        dist.init_process_group(
            "gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            store=store,
        )
        self._model = ""
        self._compiled: dict[tuple[int, int], nn.Module] = {}

    def step(self, name: str, schedule: str, micro: int, *, compiled: bool) -> Step:
        """Return a step with the same stages and schedule as irc's."""
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining import schedules as known

        from irc.programs.schedules import schedule_for
        from irc.schedule.csv_table import write_csv

        rank, world = dist.get_rank(), dist.get_world_size()
        whole = schedule_for(schedule, world, micro)
        count = len(whole.paths[0])
        own = sorted({a.stage for a in whole.ranks[rank] for a in a.flat})
        parts = self._parts(name, count, own, compiled=compiled)
        stages = [PipelineStage(parts[n], n, count, torch.device("cpu")) for n in own]
        parameters = [p for part in parts.values() for p in part.parameters()]
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
        x, target = _batch(name, micro, "float32")
        place = whole.rank_of

        def step() -> float:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            inputs = (x,) if place[0] == rank else ()
            has_loss = place[count - 1] == rank
            runner.step(*inputs, **({"target": target, "losses": losses} if has_loss else {}))
            optimizer.step()
            # As irc gives it to every rank.
            total = torch.stack(losses).mean() if has_loss else torch.zeros(())
            dist.broadcast(total, place[count - 1])
            return float(total)

        return step

    def _parts(
        self, name: str, count: int, own: list[int], *, compiled: bool
    ) -> dict[int, nn.Module]:
        if self._model != name:
            self._model, self._compiled = name, {}
            torch.compiler.reset()
        layers = model(name).layers
        ranges = cuts(len(layers), count)
        parts: dict[int, nn.Module] = {n: _Part([layers[i] for i in ranges[n]]) for n in own}
        if not compiled:
            return parts
        for number, part in parts.items():
            self._compiled.setdefault((count, number), torch.compile(part))
        return {number: self._compiled[count, number] for number in own}


class _Part(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *values: torch.Tensor) -> Any:
        for layer in self.layers:
            values = layer(*values)
            values = values if isinstance(values, tuple) else (values,)
        return values if len(values) > 1 else values[0]


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


class Captures:
    """What irc captured of a model, for all rows of it: planning begins at a copy."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Any, Any, tuple[str, ...]]] = {}

    def __call__(
        self, module: nn.Module, fn: Any, recipe: Any, args: Any, kwargs: Any, **more: Any
    ) -> tuple[Any, tuple[str, ...]]:
        """As ``irc.calls.step_plan.captured_step``."""
        from irc.calls.step_plan import captured_step
        from irc.program import Program

        kind = tuple((name, p.shape, p.dtype) for name, p in module.named_parameters())
        key = (kind, tuple((x.shape, x.dtype) for x in args), recipe.micro_batches, *more.values())
        if key not in self._known:
            captured, split = captured_step(module, fn, recipe, args, kwargs, **more)
            self._known[key] = captured, captured.program.module.clone(), split
        captured, text, split = self._known[key]
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        tensors = {name: own.get(name, value) for name, value in captured.program.tensors.items()}
        return replace(captured, program=Program(text.clone(), tensors)), split


class Worker:
    """What a rank holds between commands."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}
        self._row: tuple[Any, ...] = ()
        self._held: Any = None
        self._torch: TorchSteps | None = None
        self._captures: Captures | None = None

    def build(
        self, way: str, label: str, name: str, schedule: str, mesh: str, micro: int
    ) -> list[float]:
        """Make a step of what is timed and warm it; return the losses."""
        if way == "irc":
            self._share_captures()
            self._row = (name, schedule, mesh, micro)
            compiled, inputs = irc_step(*self._row, "float32")
            self._held, self._steps[label] = compiled, lambda: float(compiled(*inputs))
            return [self._steps[label]() for _ in range(STEPS)]
        self._torch = self._torch or TorchSteps()
        step = self._torch.step(name, schedule, micro, compiled=way == "inductor")
        self._steps[label] = step
        return [step() for _ in range(WARM)]

    def _share_captures(self) -> None:
        from irc.calls import step

        if self._captures is None:
            step.captured_step = self._captures = Captures()
            gc.freeze()  # what is imported stays

    def values(self) -> dict[str, Any]:
        """Return what allocator took in a step, and the losses of ten steps in float64."""
        taken = memory(self._steps["irc"], self._held.memory_bytes())
        step, inputs = irc_step(*self._row, "float64")
        return {**taken, "losses": [float(step(*inputs)) for _ in range(STEPS)]}

    def time(self, label: str, count: int) -> float:
        """Return the median seconds of some steps."""
        seconds: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            self._steps[label]()
            seconds.append(time.perf_counter() - start)
        return median(seconds)

    def eager(self, name: str, micro: int, dtype: str) -> list[float]:
        """Return the losses of eager training."""
        return eager_losses(name, micro, dtype)

    def drop(self) -> bool:
        """Let go of the steps of a row."""
        self._steps.clear()
        self._held = None
        gc.collect()
        return True


def main() -> None:
    """Answer commands until they end."""
    torch.set_num_threads(1)
    worker, answers, rank = Worker(), int(os.environ["ANSWERS"]), int(os.environ["RANK"])

    def say(value: Any) -> None:
        os.write(answers, (json.dumps([rank, value]) + "\n").encode())

    say("ready")
    for line in sys.stdin:
        command, *words = json.loads(line)
        try:
            say(getattr(worker, command)(*words))
        except Exception as error:  # the parent says which row it is
            say({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    main()
