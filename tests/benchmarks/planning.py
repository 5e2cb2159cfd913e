"""How long planning takes: one training step of Llama 3 (forward, backward, AdamW) on many GPUs.

Targets (exit status 1 when one is missed), for two cores; a time is the wall clock of everything
after the imports of torch and transformers: capture of Hugging Face's LlamaForCausalLM on meta
tensors, derivative, optimiser, search, and writing the placements:
  8B on 64 GPUs, mesh data=8,tensor=8                 at most 10 s
  8B on 64 GPUs, all meshes                           at most 30 s
  70B on 1,024 and 405B on 16,384 GPUs, all meshes    at most 60 s
  memory of each process (ru_maxrss)                  below 2 GB
  8B's width with 126 layers against 4, one mesh      less than 2 times the time

Parameters are bf16, optimiser states float32. Every case has a process of its own. ``tried`` counts
the meshes of 1 to 3 axes that were planned, ``bound`` those that ended at a bound or hold no plan,
``cut`` those that the search left out, by the rules of `irc.search.meshes`. Nothing is recomputed,
so batches are chosen whose activations fit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

GB = 1e9
MAX_GB = 2.0
MAX_GROWTH = 2.0


@dataclass(frozen=True)
class Size:
    """The sizes of one Llama 3 (arXiv:2407.21783, table 3)."""

    hidden: int
    ffn: int
    layers: int
    heads: int


SIZES = {
    "8B": Size(4096, 14336, 32, 32),
    "70B": Size(8192, 28672, 80, 64),
    "405B": Size(16384, 53248, 126, 128),
}


@dataclass(frozen=True)
class Case:
    """One planning problem: a model, a batch, GPUs, and one mesh or none (all are searched)."""

    name: str
    model: str
    layers: int
    sequences: int
    length: int
    cluster: str
    devices: int
    mesh: str = ""
    target_s: float = inf


CASES = (
    Case("8B one mesh", "8B", 32, 64, 4096, "8x8xH100", 64, "data=8,tensor=8", 10.0),
    Case("4 layers", "8B", 4, 8, 8192, "8x8xH100", 64, "data=8,tensor=8"),
    Case("32 layers", "8B", 32, 8, 8192, "8x8xH100", 64, "data=8,tensor=8"),
    Case("126 layers", "8B", 126, 8, 8192, "8x8xH100", 64, "data=8,tensor=8"),
    Case("8B all meshes", "8B", 32, 64, 4096, "8x8xH100", 64, target_s=30.0),
    Case("70B all meshes", "70B", 80, 128, 8192, "128x8xH100", 1024, target_s=60.0),
    Case("405B all meshes", "405B", 126, 1024, 8192, "2048x8xH100", 16384, target_s=60.0),
)
QUICK = ("8B one mesh", "4 layers", "126 layers")


def run_case(case: Case) -> dict[str, Any]:
    """Plan one case in this process and return its figures."""
    start = time.perf_counter()
    import torch
    import transformers

    size = SIZES[case.model]
    config = transformers.LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=case.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        use_cache=False,
    )
    imported = time.perf_counter()
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        ids = torch.zeros((case.sequences, case.length), dtype=torch.int64)
    program = _training_step(model, ids)
    captured = time.perf_counter()
    figures = _plan(program, case)
    end = time.perf_counter()
    return {
        "import_s": imported - start,
        "capture_s": captured - imported,
        "search_s": end - captured,
        "total_s": end - imported,
        "cpu_s": time.process_time(),
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB,
        **figures,
    }


def _training_step(model: Any, ids: Any) -> Any:
    from torch import nn

    from irc.frontends.torch.capture import capture
    from irc.train import training_program

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, labels: Any) -> Any:
            return self.model(ids, labels=labels, use_cache=False).loss

    return training_program(capture(Loss(), (ids, ids)).program, optimizer="adamw").module


def _plan(module: Any, case: Case) -> dict[str, Any]:
    from irc.calls.best_meshes import rank_meshes
    from irc.dialects.text import context
    from irc.passes.auto_shard import AutoShardPass
    from irc.passes.canonicalize import CanonicalizePass
    from irc.pipeline import Options
    from irc.search.write import write_placements
    from irc.simulate.choice import step_seconds

    if case.mesh:
        CanonicalizePass().apply(context(), module)
        AutoShardPass(mesh=case.mesh, cluster=case.cluster, inputs="any").apply(context(), module)
        report = json.loads(module.attributes["irc.plan_cost"].data)
        return {
            "mesh": case.mesh,
            "step_s": report["objective_s"],
            "gap": report["gap"],
            "held_gb": report["bytes_held"] / GB,
            "tried": 1,
            "bound": 0,
            "cut": 0,
        }
    ranking = rank_meshes(module, Options(cluster=case.cluster), case.devices, "any")
    plan, boxing = ranking.plan, ranking.cost.boxing
    step_s = step_seconds(plan)
    write_placements(module, plan.graph, plan.solution.choice, plan.trees, boxing)
    planned = [t for t in ranking.tried if isfinite(t.seconds)]
    bound = [t for t in ranking.tried if not isfinite(t.seconds) and t.is_tried]
    return {
        "mesh": str(ranking.cost.mesh),
        "step_s": step_s,
        "gap": plan.solution.gap,
        "held_gb": plan.solution.num_bytes / GB,
        "tried": len(planned),
        "bound": len(bound),
        "cut": len(ranking.tried) - len(planned) - len(bound),
    }


def _in_process(case: Case) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one mesh of 8B, 4 and 126 layers")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(Case(**json.loads(args.case)))))
        return 0
    print(
        f"{'case':<17}{'GPUs':>7}{'import':>8}{'capture':>9}{'search':>8}{'total s':>9}{'limit':>7}"
        f"{'CPU s':>7}{'GB':>6}{'tried':>7}{'bound':>7}{'cut':>5}{'step s':>8}{'gap':>8}  mesh"
    )
    figures: dict[str, dict[str, Any]] = {}
    for case in CASES:
        if not args.quick or case.name in QUICK:
            f = figures[case.name] = _in_process(case)
            limit = f"{case.target_s:.0f}" if isfinite(case.target_s) else ""
            print(
                f"{case.name:<17}{case.devices:>7}{f['import_s']:>8.1f}{f['capture_s']:>9.1f}"
                f"{f['search_s']:>8.1f}{f['total_s']:>9.1f}{limit:>7}{f['cpu_s']:>7.1f}"
                f"{f['rss_gb']:>6.2f}{f['tried']:>7}{f['bound']:>7}{f['cut']:>5}"
                f"{f['step_s']:>8.3f}{f['gap']:>8.2%}  {f['mesh']}",
                flush=True,
            )
    growth = figures["126 layers"]["total_s"] / figures["4 layers"]["total_s"]
    if args.json:
        data = {"cores": os.cpu_count(), "growth": growth, "figures": figures}
        Path(args.json).write_text(json.dumps(data, indent=1))
    missed = _missed(figures, growth)
    shown = ", ".join(f"{name} {f['total_s']:.1f} s" for name, f in figures.items())
    verdict = "MISSED " + "; ".join(missed) if missed else "all met"
    print(f"planning: {shown}, growth {growth:.2f} (limit {MAX_GROWTH}): {verdict}")
    return 1 if missed else 0


def _missed(figures: dict[str, dict[str, Any]], growth: float) -> list[str]:
    missed: list[str] = []
    for case in CASES:
        if (f := figures.get(case.name)) is None:
            continue
        if f["total_s"] > case.target_s:
            missed.append(f"{case.name} {f['total_s']:.1f} s > {case.target_s:.0f} s")
        if f["rss_gb"] >= MAX_GB:
            missed.append(f"{case.name} {f['rss_gb']:.2f} GB >= {MAX_GB:.0f} GB")
    if growth >= MAX_GROWTH:
        missed.append(f"growth {growth:.2f} >= {MAX_GROWTH}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
