"""Quantised models on one CPU device, 2 threads: irc against its own float32 and ONNX Runtime.

Targets (exit status 1 when one is missed):
  llama-decode  weights of 4 bits at least 2.5 times as fast as irc's float32
  resnet50      static int8 (QDQ, u8 images, i8 weights by channel) no slower than ONNX Runtime
  mobilenet     alike: MobileNetV2, depthwise convolutions
  resnext       alike: ResNeXt-50 (32x4d), convolutions in groups
  bert          dynamic int8 no slower than ONNX Runtime

The int8 models are exported with torch.onnx and quantised with onnxruntime.quantization; ONNX
Runtime runs with all optimisations. "error" is that of the first output against the float32 module
in eager mode, the rounding of weights and activations included. Below a decode is
its error against the float32 model run in float64 (whole: what rounding the weights costs), and
against the same integer weights run in float64 (arithmetic). Each contender has a process of its
own; the others are stopped while one runs. Calls are timed in rounds; the table has medians.
Seconds of "cold" include quantising, and for the int8 models the export.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.contenders import Contender

DECODE = "llama-decode"
ROWS = {
    DECODE: ("irc.compile", "irc int8 weights", "irc int4 weights"),
    "resnet50": ("onnxruntime static int8", "irc static int8"),
    "mobilenet": ("onnxruntime static int8", "irc static int8"),
    "resnext": ("onnxruntime static int8", "irc static int8"),
    "bert": ("onnxruntime dynamic int8", "irc dynamic int8"),
}
"""Contenders of each model, the one that is held against first."""
TARGETS = {DECODE: 2.5, "resnet50": 1.0, "mobilenet": 1.0, "resnext": 1.0, "bert": 1.0}


def measure(model: str, *, rounds: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Return the figures of each contender of a model."""
    running: dict[str, Contender] = {}
    figures: dict[str, dict[str, Any]] = {}
    try:
        for name in ROWS[model]:
            running[name] = contender = Contender(name, model)
            exact = model == DECODE
            if exact:
                contender.ask("float64")
            figures[name] = {**contender.ask("cold"), "calls": []}
            if exact:
                figures[name]["float64"] = contender.ask("float64")
        for _ in range(rounds):
            for name, contender in running.items():
                once = median(contender.ask("block 3"))
                calls = max(1, min(2000, int(seconds / once)))
                figures[name]["calls"].append(median(contender.ask(f"block {calls}")))
    finally:
        for contender in running.values():
            contender.close()
    return figures


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="decode alone, few rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--models", metavar="A,B", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each contender")
    args = parser.parse_args()
    chosen = args.models.split(",") if args.models else [DECODE] if args.quick else [*ROWS]
    print(f"{'model':<14}{'contender':<28}{'cold s':>8}{'call ms':>10}{'speed':>8}{'error':>10}")
    every: dict[str, Any] = {}
    missed: list[str] = []
    for model in chosen:
        rounds, seconds = (3, 0.2) if args.quick else (args.rounds, 0.5)
        every[model] = figures = measure(model, rounds=rounds, seconds=seconds)
        base = median(figures[ROWS[model][0]]["calls"])
        for name, row in figures.items():
            call = median(row["calls"])
            row["speed"] = base / call
            print(
                f"{model:<14}{name:<28}{row['seconds']:>8.2f}{call * 1e3:>10.3f}"
                f"{row['speed']:>8.2f}{row['error']:>10.1e}"
            )
            if "float64" in row:
                errors = (f"{kind} {value:.1e}" for kind, value in row["float64"].items())
                print(f"{'':<14}error against float64: {', '.join(errors)}")
        reached = figures[ROWS[model][-1]]["speed"]
        if reached < TARGETS[model]:
            missed.append(f"{model} {reached:.2f} < {TARGETS[model]}")
    if args.json:
        Path(args.json).write_text(json.dumps(every, indent=1))
    speeds = ", ".join(
        f"{model} {every[model][ROWS[model][-1]]['speed']:.2f} (target {TARGETS[model]})"
        for model in chosen
    )
    print(f"quantized: {speeds}: " + (f"MISSED {'; '.join(missed)}" if missed else "all met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
