"""How long `irc plan` searches everything: a training step of Llama 3 on many GPUs.

Targets (exit status 1 when one is missed), for two cores; a time is the wall clock of everything
after the imports of torch and transformers: the model on the meta device, capture, prices from
pieces of the model, and the whole plans of the best few:
  8B on 64 GPUs                                       at most 20 s
  70B on 1,024 GPUs                                   at most 45 s
  405B on 16,384 GPUs                                 at most 90 s
  memory of each process (ru_maxrss)                  below 2 GB
  8B's width with 126 layers against 4                at most 1.3 times the time
  prices from pieces against whole plans              at most 5 % off

Parameters are bf16, optimiser states float32, devices H100 in nodes of eight. Every case has a
process of its own. ``priced`` counts configurations that were put together from pieces of the
model, ``planned`` those that were planned whole, ``off`` is the largest error of a price.
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

from tests.benchmarks.planning import SIZES  # noqa: E402 - found by the path above

GB = 1e9
MAX_GB = 2.0
MAX_GROWTH = 1.3
MAX_OFF = 0.05


@dataclass(frozen=True)
class Case:
    """A search: a model, a batch, and GPUs."""

    name: str
    model: str
    layers: int
    sequences: int
    length: int
    cluster: str
    devices: int
    target_s: float = inf


CASES = (
    Case("8B", "8B", 32, 64, 4096, "8x8xH100", 64, 20.0),
    Case("4 layers", "8B", 4, 64, 4096, "8x8xH100", 64),
    Case("126 layers", "8B", 126, 64, 4096, "8x8xH100", 64),
    Case("70B", "70B", 80, 128, 8192, "128x8xH100", 1024, 45.0),
    Case("405B", "405B", 126, 1024, 8192, "2048x8xH100", 16384, 90.0),
)
QUICK = ("8B",)


def run_case(case: Case) -> dict[str, Any]:
    """Search one case in this process and return its figures."""
    start = time.perf_counter()
    import torch
    import transformers

    from irc.calls.plan_search import Asked
    from irc.frontends.torch.huggingface import LanguageLoss
    from irc.searched import searched_module

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
    module = LanguageLoss(model)
    outcome, _ = searched_module(
        module,
        (ids, ids.clone()),
        None,
        Asked(case.devices),
        cluster=case.cluster,
        optimizer="adamw",
    )
    end = time.perf_counter()
    planned = [each for each in outcome.judged if each.verdict and not each.is_priced]
    best = outcome.best.verdict
    assert best is not None
    off = [
        abs(each.priced_s / each.verdict.step_s - 1)
        for each in planned
        if each.priced_s and each.verdict
    ]
    return {
        "import_s": imported - start,
        "total_s": end - imported,
        "cpu_s": time.process_time(),
        "rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB,
        "considered": outcome.considered,
        "priced": len(outcome.priced) + len(off),
        "planned": len(planned),
        "off": max(off, default=0.0),
        "best": str(outcome.best.configuration),
        "step_s": best.step_s,
        "held_gb": best.num_bytes / GB,
    }


def _in_process(case: Case) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8B alone")
    parser.add_argument("--only", metavar="NAME", help="one case")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(Case(**json.loads(args.case)))))
        return 0
    print(
        f"{'case':<12}{'GPUs':>7}{'total s':>9}{'limit':>7}{'CPU s':>7}{'GB':>6}{'formula':>9}"
        f"{'priced':>8}{'planned':>9}{'off':>7}{'step s':>9}{'held GB':>9}  best"
    )
    figures: dict[str, dict[str, Any]] = {}
    for case in CASES:
        if case.name not in (QUICK if args.quick else [args.only or case.name]):
            continue
        f = figures[case.name] = _in_process(case)
        limit = f"{case.target_s:.0f}" if isfinite(case.target_s) else ""
        print(
            f"{case.name:<12}{case.devices:>7}{f['total_s']:>9.1f}{limit:>7}{f['cpu_s']:>7.1f}"
            f"{f['rss_gb']:>6.2f}{f['considered']:>9}{f['priced']:>8}{f['planned']:>9}"
            f"{f['off']:>7.1%}{f['step_s']:>9.3f}{f['held_gb']:>9.1f}  {f['best']}",
            flush=True,
        )
    missed = _missed(figures)
    if args.json:
        data = {"cores": os.cpu_count(), "missed": missed, "figures": figures}
        Path(args.json).write_text(json.dumps(data, indent=1))
    shown = ", ".join(f"{name} {f['total_s']:.1f} s" for name, f in figures.items())
    print(f"whole search: {shown}: {'MISSED ' + '; '.join(missed) if missed else 'all met'}")
    return 1 if missed else 0


def _missed(figures: dict[str, dict[str, Any]]) -> list[str]:
    missed: list[str] = []
    for case in CASES:
        if (f := figures.get(case.name)) is None:
            continue
        if f["total_s"] > case.target_s:
            missed.append(f"{case.name} {f['total_s']:.1f} s > {case.target_s:.0f} s")
        if f["rss_gb"] >= MAX_GB:
            missed.append(f"{case.name} {f['rss_gb']:.2f} GB >= {MAX_GB:.0f} GB")
        if f["off"] > MAX_OFF:
            missed.append(f"{case.name} prices {f['off']:.1%} off > {MAX_OFF:.0%}")
    ends = [figures.get(f"{layers} layers") for layers in (126, 4)]
    if ends[0] and ends[1] and (growth := ends[0]["total_s"] / ends[1]["total_s"]) > MAX_GROWTH:
        missed.append(f"growth {growth:.2f} > {MAX_GROWTH}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
