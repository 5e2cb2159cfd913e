"""The spine's speed: GPT (6 layers, hidden 384, batch 4, 256 tokens), float32, one CPU device.

Targets (exit status 1 when one is missed):
  cold compile by irc.compile             at most 1/10 of torch.compile's
  cold compile by torch.compile(backend="irc")  at most 1/5 of torch.compile's
  one call of irc.compile's module        no slower than torch.compile's (ratio at most 1.00)

Imports are made before the clock starts. Each contender has its own process and empty caches; the
others are stopped while one runs. Calls are timed in rounds, one block of each contender per round,
and ratios are taken round by round; the table shows medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.contenders import Contender

NAMES = ("eager", "inductor", "irc.compile", "irc backend")
TARGETS = {
    ("irc.compile", "cold"): 0.1,
    ("irc backend", "cold"): 0.2,
    ("irc.compile", "call"): 1.0,
}


def measure(*, cold_runs: int, rounds: int, calls: int) -> dict[str, dict[str, list[float]]]:
    """Return cold seconds, errors and call seconds (one median per round) of each contender."""
    figures: dict[str, dict[str, list[float]]] = {
        name: {"cold": [], "error": [], "call": []} for name in NAMES
    }
    for run in range(cold_runs):
        contenders = [Contender(name, "gpt") for name in NAMES]
        try:
            for contender in contenders:
                answer = contender.ask("cold")
                figures[contender.name]["cold"].append(answer["seconds"])
                figures[contender.name]["error"].append(answer["error"])
            for _ in range(rounds if run == cold_runs - 1 else 0):
                for contender in contenders:
                    figures[contender.name]["call"].append(median(contender.ask(f"block {calls}")))
        finally:
            for contender in contenders:
                contender.close()
    return figures


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one cold run, few rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    measured = (
        measure(cold_runs=1, rounds=5, calls=3)
        if args.quick
        else measure(cold_runs=3, rounds=15, calls=7)
    )
    print(f"{'contender':<14}{'cold s':>9}{'ratio':>8}{'call ms':>10}{'ratio':>8}{'error':>10}")
    ratios: dict[tuple[str, str], float] = {}
    for name in NAMES:
        for kind in ("cold", "call"):
            pairs = zip(measured[name][kind], measured["inductor"][kind], strict=True)
            ratios[name, kind] = median(a / b for a, b in pairs)
        print(
            f"{name:<14}{median(measured[name]['cold']):>9.2f}{ratios[name, 'cold']:>8.3f}"
            f"{median(measured[name]['call']) * 1e3:>10.1f}{ratios[name, 'call']:>8.3f}"
            f"{max(measured[name]['error']):>10.1e}"
        )
    if args.json:
        Path(args.json).write_text(
            json.dumps({"cores": os.cpu_count(), "figures": measured}, indent=1)
        )
    missed = [
        f"{n} {k} {ratios[n, k]:.3f} > {t}" for (n, k), t in TARGETS.items() if ratios[n, k] > t
    ]
    missed += [f"{n} is wrong" for n in NAMES if max(measured[n]["error"]) > 1e-4]
    figures = ", ".join(f"{n} {k} {ratios[n, k]:.3f} (target {t})" for (n, k), t in TARGETS.items())
    print(f"spine: {figures}: {'MISSED ' + '; '.join(missed) if missed else 'all met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
