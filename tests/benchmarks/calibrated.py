"""Steps of training on this machine, predicted after calibration and measured.

    python -m tests.benchmarks.calibrated [--quick] [--json FILE]

The machine is measured once as ``irc cluster calibrate`` does. Then for each of 16 plans, two
models by four layouts on 2 and on 4 gloo processes: ``irc compile --train`` for ``this-host``,
``irc tune PLAN``, the compilation once more with what was tuned, ``irc simulate`` and ``irc run``.
"measured" is the median over RUNS runs of the slowest rank's step. ``--quick`` has two layouts of
one model, on 2 processes.

Targets (issue 23): each prediction within 10 % of what is measured, and for each model and number
of processes the layouts in the measured order, but for those measured within 5 % of each other.
"""

# pyright: basic
from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

import irc
from irc.cluster.load import find_cluster
from irc.plan.load import load_plan
from irc.runtime.launch import run_plan
from irc.simulate.plan import Contention, predict
from irc.tune.plan import tune_plan
from tests.models.gpt import GPT, GPTConfig

LIMIT, ALIKE = 0.1, 0.05
RUNS = 3
LAYOUTS = {
    "ddp": ("data", "ddp"), "fsdp": ("data", "fsdp"), "tp": ("tensor", "tp"),
    "tp+sp": ("tensor", "tp+sp"),
}  # fmt: skip
"""The axis of the mesh, and the name of the layout."""


class Llama(nn.Module):
    """The loss of transformers' Llama."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=4, vocab_size=1024, use_cache=False, max_position_embeddings=128,
        )  # fmt: skip
        self.net = transformers.LlamaForCausalLM(config)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.net(ids).logits.flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels.flatten())


def _gpt() -> nn.Module:
    return GPT(GPTConfig(layers=4, hidden=256, heads=4, vocab=512, block=64))


MODELS = {"gpt": (_gpt, 512, (16, 64)), "llama": (Llama, 1024, (8, 128))}
"""How a model is built, its vocabulary, and the shape of its tokens."""


def export(model: str, layout: str, ranks: int, path: Path) -> None:
    """Write a plan of a step for this machine."""
    torch.manual_seed(0)
    make, vocabulary, shape = MODELS[model]
    tokens = torch.randint(0, vocabulary, shape)
    axis, name = LAYOUTS[layout]
    irc.export_plan(
        make(), (tokens, tokens), optimizer="adamw", mesh=f"{axis}={ranks}", layout=name,
        cluster="this-host", out=path,
    )  # fmt: skip


def row(model: str, layout: str, ranks: int, folder: Path) -> dict[str, Any]:
    """Return the figures of a plan."""
    path = folder / f"{model}-{layout}-{ranks}"
    export(model, layout, ranks, path.with_suffix(".untuned"))
    tune_plan(load_plan(path.with_suffix(".untuned")))
    export(model, layout, ranks, path)
    plan = load_plan(path).plan
    cluster = find_cluster("this-host")
    predicted = predict(plan, contention=Contention.of(cluster, plan.device_mesh)).seconds
    step = median(max(run_plan(path, compare=False).seconds) for _ in range(RUNS))
    return {"model": model, "layout": layout, "ranks": ranks, "predicted": predicted, "step": step}


def swapped(rows: list[dict[str, Any]]) -> int:
    """Return how many pairs of layouts, apart when measured, are predicted the other way round."""
    return sum(
        abs(a["step"] / b["step"] - 1) > ALIKE
        and (a["step"] < b["step"]) != (a["predicted"] < b["predicted"])
        for a, b in itertools.combinations(rows, 2)
        if (a["model"], a["ranks"]) == (b["model"], b["ranks"])
    )


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = ["gpt"] if args.quick else [*MODELS]
    layouts = ["ddp", "tp+sp"] if args.quick else [*LAYOUTS]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What is measured here is not left to whoever uses this machine.
        os.environ["IRC_CACHE_DIR"] = str(folder / "cache")
        calibrate(quick=args.quick)
        print("model   ranks  layout  predicted ms  measured ms    off")
        for ranks in (2,) if args.quick else (2, 4):
            for model, layout in itertools.product(models, layouts):
                each = row(model, layout, ranks, folder)
                rows.append(each)
                print(f"{model:<8}{ranks:>5}  {layout:<6}{each['predicted'] * 1e3:>14.1f}"
                      f"{each['step'] * 1e3:>13.1f}{each['predicted'] / each['step'] - 1:>+7.1%}",
                      flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    errors = sorted(abs(each["predicted"] / each["step"] - 1) for each in rows)
    others = swapped(rows)
    met = errors[-1] <= LIMIT and not others
    print(f"{sum(e <= LIMIT for e in errors)} of {len(rows)} within {LIMIT:.0%}, median "
          f"{median(errors):.1%}, worst {errors[-1]:.1%}, {others} pairs out of order: "
          f"{'all met' if met else 'MISSED'}")  # fmt: skip
    return not met


def calibrate(*, quick: bool) -> None:
    """Do what ``irc cluster calibrate`` does."""
    from irc.cli import main as irc_main

    status = irc_main(["cluster", "calibrate", *(["--quick"] if quick else [])])
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    sys.exit(main())
