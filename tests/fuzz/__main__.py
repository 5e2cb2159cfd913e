"""``python -m tests.fuzz --seed S --count N --targets cpu,triton,cuda``: one table, one last line.

``cpu`` is the kernels of this machine, AVX-512, AVX2 and a generic instruction set, of those that
this machine has; ``torch`` is
``irc.compile`` and ``torch.compile(backend="irc")``. ``ways`` is scenes through both, with and
without gradients: what callers see (dtypes, strides, shared memory, writes, hooks, seeds,
gradients), each way with another instruction set; ``way`` takes the ways in turn, one
for each scene. ``views`` is scenes of views alone: chains, writes through them, arguments in one
memory, and one compiled function called with arguments that lie in several ways. Each can be named
alone; ``eager`` is torch itself, a control. Every failure is
printed as the smallest program that still fails, with its seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from irc.backends.cpu.features import AVX2, AVX512, host

GROUPS = {
    "cpu": ("cpu", "avx512", "avx2", "generic"),
    "torch": ("compile", "dynamo"),
    "way": ("way",),
    "ways": ("way-compile", "way-train", "way-dynamo", "way-dynamo-train"),
    "views": ("views",),
    "triton": ("triton",),
    "cuda": ("cuda",),
}
KINDS = ("ok", "wrong", "type", "crash", "refused", "input", "memory")
BATCH = 25


def main(words: list[str] | None = None) -> int:
    """Run programs; 1 where one failed."""
    # What is tried is irc, also where torch is faster.
    os.environ["IRC_FIRST_TIMING"] = "off"
    options = _parser().parse_args(words)
    names = _names(options.targets)
    if "triton" in names and os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it once, when it is imported.
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz", *(words or sys.argv[1:])])

    from tests.fuzz.session import Session

    started = time.process_time()
    session = Session(names, shrink=not options.no_shrink)
    for first in range(options.seed, options.seed + options.count, BATCH):
        last = min(first + BATCH, options.seed + options.count)
        for finding in session.run(range(first, last)):
            print(finding.text, flush=True)
    seconds = time.process_time() - started
    _report(names, session.counts, seconds)
    failed = sum(n for (_, kind), n in session.counts.items() if kind != "ok")
    if options.json:
        _write(options.json, options, session, seconds)
    print(
        f"fuzz: {options.count} programs from seed {options.seed}, {len(names)} targets, "
        f"{failed} failures, {session.claimed:.1%} of {session.elements} results bounded"
    )
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=100, help="how many programs")
    parser.add_argument("--targets", default="cpu", help="groups or names, by commas")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they are")
    return parser


def _names(text: str) -> list[str]:
    lacking = {"avx512": AVX512, "avx2": AVX2}
    lacking = {name for name, features in lacking.items() if not features.runs_on(host())}
    groups = {name: [n for n in own if n not in lacking] for name, own in GROUPS.items()}
    names = [name for part in text.split(",") for name in groups.get(part, (part,))]
    known = {"eager", *(name for group in GROUPS.values() for name in group)}
    if unknown := set(names) - known:
        raise SystemExit(f"no target {sorted(unknown)}; there are {sorted(known)}")
    return list(dict.fromkeys(names))


def _report(names: list[str], counts: Counter[tuple[str, str]], seconds: float) -> None:
    print(f"{'target':16}" + "".join(f"{kind:>9}" for kind in KINDS))
    for name in names:
        print(f"{name:16}" + "".join(f"{counts[name, kind]:9}" for kind in KINDS))
    print(f"CPU seconds {seconds:.1f}")


def _write(path: str, options: argparse.Namespace, session: object, seconds: float) -> None:
    from tests.fuzz.session import Session

    assert isinstance(session, Session)
    content = {
        "seed": options.seed,
        "count": options.count,
        "cpu_seconds": round(seconds, 1),
        "targets": {
            name: {kind: session.counts[name, kind] for kind in KINDS} for name in session.names
        },
        "failures": [vars(failure) for failure in session.findings],
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
