"""The user's own training loop on several processes: irc's layouts against torch's.

    python -m tests.benchmarks.training [--quick] [--json FILE]
        [--processes 2,4] [--layouts ddp,fsdp,tp]
    python -m tests.benchmarks.training --values [--quick] [--json FILE [--resume]]
        [--processes 2,4] [--models A,B] [--plans A,B] [--ways loop,step] [--dtypes A,B]

A row is a layout on a number of gloo processes with one thread each. The same loop (forward,
backward, AdamW) trains a GPT under torch's contender (DistributedDataParallel, fully_shard, DTensor
tensor parallelism) and under ``irc.compile(layout=...)``, in the same processes. Ten steps of both
are held against eager training on one process; then blocks of steps are timed in pairs, torch's
with gloo's threads as torch leaves them (``irc.runtime.network_threads``), and a figure is torch's
time over irc's, the median of five. Under ddp and fsdp torch's ranks get their samples alone, irc's
the whole batch, as each wants it. The last line has what Python takes for each action of a step's
plan (:func:`python_per_action`).

``--values`` times nothing. It trains seven models under eleven plans (``training_models``,
``training_plans``), in a loop and by ``irc.compile_step``, in float32 and float64, and holds twenty
losses and the gradients of the first step against eager training on one process. In bfloat16 200
losses are held against float32's, as a share of how far a tenth run of eager bfloat16 may be, by
the nine ways of adding up a batch that are run (``training_models.next_at_most``). A line says,
too, what share of the parameters, and of their bytes in states, a rank holds. With ``--json`` cells
are written as they come, and ``--resume`` goes on there.

Targets (issue 22): losses equal one process to 2e-6 in float32, gradients to 1e-5 in norm, and both
to 1e-11 in float64, in bfloat16 no farther from float32 than eager bfloat16; never below 0.97 of
DDP's speed, against FSDP2 at least 1.3, against tensor parallelism 1.25 at hidden 128 and 1.08 at
hidden 384.
"""

# pyright: basic
from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import Tensor, nn

from irc.cluster.cpus import usable_cpus
from irc.runtime.network_threads import NAME, defer_network_threads
from tests.benchmarks.training_models import MODELS
from tests.benchmarks.training_plans import DTYPES, PLANS, WAYS, cases
from tests.benchmarks.training_values import measure, verdict
from tests.models.gpt import GPT, GPTConfig

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ("ddp", "fsdp", "tp")
LEAST = {("ddp", 128): 0.97, ("ddp", 384): 0.97, ("fsdp", 128): 1.3, ("fsdp", 384): 1.3,
         ("tp", 128): 1.25, ("tp", 384): 1.08}  # fmt: skip
CLOSE = 2e-6
LAYERS, BATCH, TOKENS, VOCABULARY = 4, 8, 64, 256
CHECKED, STEPS, PAIRS = 10, 5, 5


def model(hidden: int) -> GPT:
    """Return a GPT that gives its loss, the same everywhere."""
    torch.manual_seed(0)
    return GPT(GPTConfig(layers=LAYERS, hidden=hidden, heads=4, vocab=VOCABULARY, block=TOKENS))


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return tokens and targets, the same on every rank."""
    draw = torch.Generator().manual_seed(number)
    return tuple(torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=draw) for _ in "xy")  # type: ignore[return-value]


class Loop:
    """A training loop around a module."""

    def __init__(self, module: Any, *, shares: bool) -> None:
        self.module, self.shares = module, shares
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4)
        self.number = 0

    def step(self) -> Tensor:
        """Train on the next batch; return the loss that this rank sees."""
        inputs: Sequence[Tensor] = batch(self.number)
        self.number += 1
        if self.shares:
            inputs = [each.chunk(dist.get_world_size())[dist.get_rank()] for each in inputs]
        loss = self.module(*inputs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def losses(self, count: int) -> list[float]:
        """Return the losses of some steps, of the whole batch."""
        losses: list[float] = []
        for _ in range(count):
            loss = self.step()
            if self.shares:
                dist.all_reduce(loss)
                loss /= dist.get_world_size()
            losses.append(loss.item())
        return losses

    def seconds(self, count: int) -> float:
        """Return the time of a step."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        dist.barrier()
        return (time.perf_counter() - start) / count


def ddp(module: nn.Module) -> Loop:
    """Each rank has the whole model and its own samples."""
    return Loop(nn.parallel.DistributedDataParallel(module), shares=True)


def fsdp(module: Any) -> Loop:
    """Each rank stores a part of each parameter; a layer is gathered at once."""
    from torch.distributed.fsdp import fully_shard

    for layer in module.layers:
        fully_shard(layer)
    return Loop(fully_shard(module), shares=True)


def tp(module: Any) -> Loop:
    """Columns of the first matrix of a pair, rows of the second; vocabularies in parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    # q, k and v are one matrix here, whose columns are whole before they are cut into three.
    plan |= {
        "attention.qkv": ColwiseParallel(output_layouts=Replicate()),
        "attention.out": RowwiseParallel(input_layouts=Replicate()),
    }
    for layer in module.layers:
        parallelize_module(layer, mesh, plan)
    return Loop(module, shares=False)


CONTENDERS: dict[str, Callable[[Any], Loop]] = {"ddp": ddp, "fsdp": fsdp, "tp": tp}


def compiled(module: Any, layout: str) -> Loop:
    """The same loop, with one line changed."""
    import irc

    axis = "tensor" if layout == "tp" else "data"
    mesh = f"{axis}={dist.get_world_size()}"
    return Loop(irc.compile(module, mesh=mesh, layout=layout), shares=False)


def free_network_threads() -> None:
    """Give gloo's threads what torch alone leaves them: the usual policy, and all processors."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == NAME:
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(int(task.name), usable_cpus())


def timed(name: str, loop: Loop) -> float:
    """Return the time of a step, with the threads of the communication as that side has them."""
    if name != "torch":
        defer_network_threads()
    elif sys.platform == "linux":
        free_network_threads()
    return loop.seconds(STEPS)


def row(layout: str, hidden: int, pairs: int) -> dict[str, Any]:
    """Measure one layout in these processes."""
    plain = model(hidden)
    sides = {"torch": CONTENDERS[layout](copy.deepcopy(plain))}
    start = time.perf_counter()
    sides["irc"] = compiled(copy.deepcopy(plain), layout)
    wanted = Loop(plain, shares=False).losses(CHECKED)
    figures: dict[str, Any] = {"layout": layout, "hidden": hidden, "ranks": dist.get_world_size()}
    for name, loop in sides.items():
        losses = loop.losses(CHECKED)
        figures[f"{name} gap"] = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
    figures["checked in s"] = time.perf_counter() - start
    if pairs:
        blocks = [{name: timed(name, loop) for name, loop in sides.items()} for _ in range(pairs)]
        figures |= {f"{name} s": median(each[name] for each in blocks) for name in sides}
        figures["ratio"] = median(each["torch"] / each["irc"] for each in blocks)
    return figures


def work(layouts: Sequence[str], hidden: Sequence[int], pairs: int) -> None:
    """Run as one of the processes; the first one prints a row a line."""
    from irc.runtime.processes import place_of, start_processes

    torch.set_num_threads(1)
    start_processes(*place_of(os.environ), timeout_s=1800)
    for layout in layouts:
        for size in hidden:
            figures = row(layout, size, pairs)
            if dist.get_rank() == 0:
                print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def rows_on(ranks: int, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Start processes and yield what the first one measures."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.training", "--work", *words],
                cwd=ROOT,
                env={
                    **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                    "IRC_STORE": str(Path(folder, "store")),
                    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                },
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for line in started[0].stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"the processes ended with {codes}")


def python_per_action(layout: str) -> tuple[float, int]:
    """Return what an action of a step's plan takes from Python, in seconds, and how many it has.

    The plan runs with kernels that are empty and collectives that are done at once, so that what is
    left is the interpreter's: the calls, and what it keeps of them; not what the library that
    moves a message takes.
    """
    import irc
    from irc.plan.load import LoadedPlan, load_plan
    from irc.runtime.inputs import inputs_for
    from irc.runtime.segments import load_segments
    from irc.runtime.torch_driver import TorchDriver
    from irc.runtime.weights import load_weights

    class Absent:
        def start(self, *_: object) -> Callable[[], None]:
            return lambda: None

    def empty(loaded: LoadedPlan, calls: Sequence[Sequence[Any]], threads: int) -> Any:
        return load_segments(loaded, [[] for _ in calls], threads)

    axis = "tensor" if layout == "tp" else "data"
    with tempfile.TemporaryDirectory() as folder:
        irc.export_plan(model(128), batch(0), optimizer="adamw", mesh=f"{axis}=2", layout=layout,
                        cluster="this-host", out=Path(folder, "plan"))  # fmt: skip
        loaded = load_plan(Path(folder, "plan"))
        driver = TorchDriver(load_weights(loaded, 0), communicator=Absent(), load=empty)
        run = driver.bind(loaded)
        inputs = inputs_for(loaded, None, 0)
        seconds = [timeit(lambda: run(*inputs), number=1) for _ in range(100)]
    return median(seconds) / len(loaded.plan.actions), len(loaded.plan.actions)


def missed(figures: dict[str, Any]) -> list[str]:
    """Return which targets a row misses."""
    wrong = ["losses"] if figures["irc gap"] > CLOSE else []
    is_slow = "ratio" in figures and figures["ratio"] < LEAST[figures["layout"], figures["hidden"]]
    return [*wrong, *(["speed"] if is_slow else [])]


def values(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> int:
    """Fill the table of values; return 1 where a target is missed."""
    if chosen.quick:
        chosen.models, chosen.plans, chosen.dtypes = "gpt", "zero3,tensor,pipe", "float64"
    if not all(word in ("2", "4") for word in chosen.processes.split(",")):
        parser.error("--processes: the table has cells for 2 and 4")
    words: list[list[str]] = []
    for option, known in (("models", MODELS), ("plans", PLANS), ("ways", WAYS), ("dtypes", DTYPES)):
        words.append(getattr(chosen, option).split(","))
        if unknown := set(words[-1]) - set(known):
            parser.error(f"--{option}: there is no {', '.join(sorted(unknown))}")
    wanted = list(cases([int(ranks) for ranks in chosen.processes.split(",")], *words))
    if not wanted:
        parser.error("no cell of the table is all of that")
    # Stopped processes outlive a parent that is ended without letting go of them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before: list[dict[str, Any]] = []
    if chosen.resume and chosen.json.exists():
        before = json.loads(chosen.json.read_text(encoding="utf-8"))
    return verdict(measure(wanted, before, chosen.json))


def main() -> int:
    """Measure all rows; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="two processes, hidden 128 and one pair; a few values"
    )
    parser.add_argument("--values", action="store_true", help="the table of values, no times")
    parser.add_argument("--json", type=Path, help="write rows there as they come")
    parser.add_argument("--resume", action="store_true", help="keep what FILE has of the values")
    parser.add_argument("--processes", default="2,4", help="how many processes")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="which layouts are timed")
    parser.add_argument("--hidden", default="128,384", help="which widths are timed")
    for word, known in {"models": MODELS, "plans": PLANS, "ways": WAYS, "dtypes": DTYPES}.items():
        parser.add_argument(f"--{word}", default=",".join(known), help=f"which {word} of values")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=PAIRS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.resume and not (chosen.values and chosen.json):
        parser.error("--resume goes on with the cells of --values --json FILE")
    if chosen.quick:
        chosen.processes, chosen.hidden, chosen.pairs = "2", "128", 1
    if chosen.values:
        return values(parser, chosen)
    if chosen.work:
        sizes = [int(size) for size in chosen.hidden.split(",")]
        work(chosen.layouts.split(","), sizes, chosen.pairs)
        return 0
    words = ["--layouts", chosen.layouts, "--hidden", chosen.hidden, "--pairs", str(chosen.pairs)]
    every: list[dict[str, Any]] = []
    for ranks in map(int, chosen.processes.split(",")):
        for figures in rows_on(ranks, words):
            every.append({**figures, "missed": missed(figures)})
            print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                            for k, v in every[-1].items()), flush=True)  # fmt: skip
            if chosen.json:
                chosen.json.write_text(json.dumps(every, indent=1) + "\n")
    told: list[str] = []
    for layout in chosen.layouts.split(","):
        seconds, count = python_per_action(layout)
        told.append(f"{layout} {seconds * 1e6:.1f} us ({count})")
    wrong = [f"{r['layout']} {r['hidden']} on {r['ranks']}" for r in every if r["missed"]]
    margin = min(r["ratio"] / LEAST[r["layout"], r["hidden"]] for r in every)
    print(f"training: at least {margin:.2f} of each aim; Python per action (of so many): "
          f"{', '.join(told)}: {f'missed {wrong}' if wrong else 'all met'}")  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
