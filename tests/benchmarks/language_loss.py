"""A step whose loss is over a large vocabulary: time and peak memory, with and without logits.

    python tests/benchmarks/language_loss.py                 # all cases and ways, a process each
    python tests/benchmarks/language_loss.py --case head --way streamed

Ways: torch eagerly; irc with all logits made (``logits``); irc by blocks of rows (``streamed``,
what it does by itself). Peak memory is that of the process (VmHWM) less what it held before the
first step: model and batch. ``arena`` is what the plan says of its own memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WAYS = ("eager", "logits", "streamed")
THREADS = 2
VOCABULARY, WIDTH, BATCH = 50257, 768, 4
Step = Callable[[], Any]


def head(dtype: str, tokens: int) -> tuple[Any, tuple[Any, Any]]:
    """A layer, the head of GPT-2, and the loss."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, h: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = self.head(self.inner(h)).view(-1, VOCABULARY)
            return F.cross_entropy(logits.float(), labels.view(-1))

    kind: torch.dtype = getattr(torch, dtype)
    h = torch.randn(BATCH, tokens, WIDTH).to(kind)
    return Head().to(kind), (h, torch.randint(0, VOCABULARY, (BATCH, tokens)))


def gpt2(dtype: str, tokens: int) -> tuple[Any, tuple[Any, Any]]:
    """One layer of GPT-2, its tied embedding, and the loss."""
    import torch

    from tests.models.gpt import GPT, GPTConfig

    sizes = {"layers": 1, "hidden": WIDTH, "heads": 12, "vocab": VOCABULARY, "block": tokens}
    ids = torch.randint(0, VOCABULARY, (BATCH, tokens))
    return GPT(GPTConfig(**sizes)).to(getattr(torch, dtype)), (ids, ids.roll(-1, 1))


CASES: dict[str, Callable[[str, int], tuple[Any, tuple[Any, Any]]]] = {"head": head, "gpt2": gpt2}


def step_of(way: str, model: Any, batch: tuple[Any, Any]) -> tuple[Step, Callable[[], int]]:
    """Return a step of plain gradient descent, and what tells its plan's bytes."""
    import torch

    import irc
    from irc.kernels import linear_loss

    if way == "eager":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def eagerly() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return eagerly, lambda: 0
    if way == "logits":
        linear_loss.MIN_BYTES = 1 << 60
    step = irc.compile_step(model, optimizer="sgd")
    return lambda: step(*batch, lr=1e-3), lambda: step.plan.plan.arena_bytes if step.plan else 0


def work(case: str, way: str, dtype: str, tokens: int, steps: int) -> dict[str, Any]:
    """Make some steps in this process and return the figures."""
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model, batch = CASES[case](dtype, tokens)
    before = _status("VmRSS")
    step, arena = step_of(way, model, batch)
    losses, times = [float(step())], list[float]()
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(float(step()))
        times.append(time.perf_counter() - start)
    figures = {"ms": median(times) * 1e3, "peak": _status("VmHWM") - before}
    return {"case": case, "way": way, **figures, "arena": arena() >> 20, "loss": losses[-1]}


def _status(key: str) -> int:
    """Return a line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tokens", type=int, default=1024, help="of each of 4 sequences")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(
            json.dumps(
                work(options.case[0], options.way[0], options.dtype, options.tokens, options.steps)
            )
        )
        return
    print(f"{options.dtype}, {BATCH * options.tokens} rows, {VOCABULARY} classes, width {WIDTH}")
    print("case   way         ms a step  peak MiB  arena MiB      loss")
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    for case in options.case or CASES:
        for way in options.way or WAYS:
            command = [sys.executable, __file__, "--worker", "--case", case, "--way", way]
            command += [
                "--dtype",
                options.dtype,
                "--steps",
                str(options.steps),
                "--tokens",
                str(options.tokens),
            ]
            answer = subprocess.run(command, env=environment, check=True, capture_output=True)
            row = json.loads(answer.stdout.splitlines()[-1])
            print(f"{case:6} {way:10} {row['ms']:10.0f} {row['peak']:9} {row['arena']:10} "
                  f"{row['loss']:9.5f}")  # fmt: skip


if __name__ == "__main__":
    main()
