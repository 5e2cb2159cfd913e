"""How long `irc.export_plan` takes for large training steps, folder and all, and in what memory.

    python -m tests.benchmarks.plan_folders [--quick] [--json FILE]

Each case has a process of its own; a time is the wall clock of the call, of capture, search,
kernels, texts and files, after the imports. irc's modules are byte-compiled before, as those of
what pip installs are. Targets:
  a GPT of 40 layers, 8 micro-batches, pipe=8,data=8,tensor=4 on 32x8xH100: 15 s (issue 21)
  a Llama of 8 billion parameters on the meta device, data=8,tensor=8 on 8x8xH100: below 4 GB
  (ru_maxrss; issue 22)
``--quick`` has the same cases.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from math import inf
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.contenders import byte_compile  # noqa: E402

CASES = {"GPT in 8 stages": (15.0, inf), "Llama 8B on meta": (inf, 4.0)}
"""By name, the most seconds and GB."""


def gpt() -> dict[str, Any]:
    """Return what the 40 layers are planned by."""
    import torch
    import torch.nn.functional as F

    from tests.benchmarks.pipeline_models import Chain, Embedding, Head, Layer

    torch.manual_seed(0)
    layers = [Embedding(256), *(Layer(256) for _ in range(40)), Head(256)]
    tokens = torch.randint(512, (512, 64))
    return {
        "module": Chain(layers),
        "args": (tokens, tokens.roll(1, 1)),
        "loss": lambda logits, targets: F.cross_entropy(logits, targets.flatten()),
        "mesh": "pipe=8,data=8,tensor=4",
        "cluster": "32x8xH100",
        "micro_batches": 8,
        "schedule": "1f1b",
    }


def llama() -> dict[str, Any]:
    """Return what the 8 billion parameters are planned by; no value of them is ever made."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=5e5,
        use_cache=False,
    )
    with torch.device("meta"):
        module = LlamaForCausalLM(config)
    ids = torch.zeros(8, 2048, dtype=torch.long)
    return {
        "module": module,
        "args": (),
        "kwargs": {"input_ids": ids, "labels": ids},
        "loss": "loss",
        "mesh": "data=8,tensor=8",
        "cluster": "8x8xH100",
        "recompute": "selective",
    }


def run_case(name: str) -> dict[str, float]:
    """Plan one case in this process, and return its figures."""
    import irc
    import irc.calls.pipelined
    import irc.exports

    options = gpt() if name == "GPT in 8 stages" else llama()
    module, args = options.pop("module"), options.pop("args")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        irc.export_plan(module, args, out=f"{folder}/plan", optimizer="adamw", **options)
        seconds = time.perf_counter() - start
        files = [f for f in Path(folder).rglob("*") if f.is_file()]
        size = sum(f.stat().st_size for f in files if f.suffix != ".safetensors")
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"seconds": seconds, "gb": held, "files": len(files), "mb": size / 1e6}


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same cases")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(args.case)))
        return 0
    print(f"{'case':<18}{'seconds':>9}{'limit':>7}{'GB':>7}{'limit':>7}{'files':>7}{'MB':>7}")
    figures: dict[str, dict[str, float]] = {}
    missed: list[str] = []
    byte_compile()
    for name, (seconds, held) in CASES.items():
        command = [sys.executable, __file__, "--case", name]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        f = figures[name] = json.loads(said.stdout.splitlines()[-1])
        limits = [f"{limit:.0f}" if limit < inf else "-" for limit in (seconds, held)]
        print(
            f"{name:<18}{f['seconds']:>9.1f}{limits[0]:>7}{f['gb']:>7.2f}{limits[1]:>7}"
            f"{f['files']:>7.0f}{f['mb']:>7.1f}",
            flush=True,
        )
        if f["seconds"] > seconds or f["gb"] > held:
            missed.append(name)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    shown = ", ".join(f"{n} {f['seconds']:.1f} s {f['gb']:.2f} GB" for n, f in figures.items())
    print(f"plan folders: {shown}: {'missed ' + ', '.join(missed) if missed else 'all met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
