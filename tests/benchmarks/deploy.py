"""Native programs of plans against the plans themselves: start, memory, latency, 2 threads.

    python -m tests.benchmarks.deploy [--models A,B] [--quick] [--json FILE] [--plans FOLDER]

Targets (exit status 1 when one is missed): a program is imported in 0.1 s (numpy's half included),
holds no more memory than its weights, its arena and 40 MiB, gives the bits that `irc.load` gives,
and a call takes no longer than 1.03 times that of `irc.load`.

The program runs in an interpreter without torch and all else that irc depends on, the plan in one
with torch; each is stopped while the other is timed. Calls are timed in blocks that take turns;
"ratio" is the median, over pairs of neighbouring blocks, of the program's time over the plan's.
With --plans, what was compiled is kept there for the next run. A model named NAME:open leaves its
sizes open, and is called with two of NAME's examples.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# As a worker this is a script, and its own folder comes first.
sys.path[0] = str(ROOT)

MODELS = ("mlp", "minilm", "minilm:open", "resnet50", "bert")
QUICK = ("mlp", "minilm")
NAMES = ("irc.load", "native")
ABSENT = ("torch", "xdsl", "highspy", "lark", "onnx", "llvmlite", "networkx", "rich",
          "safetensors", "ml_dtypes")  # fmt: skip
IMPORT_S, RATIO, OVERHEAD_BYTES = 0.1, 1.03, 40 << 20


class Absent:
    """Finds no package that a native program does without."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse some names, and leave others to the finders behind it."""
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def prepare(model: str, folder: Path) -> Path:
    """Compile a model, unless the folder has it, and write its inputs beside it."""
    plan = folder / model
    if not plan.exists():
        import numpy as np

        import irc
        from tests.benchmarks.models import build

        name, _, form = model.partition(":")
        module, inputs = build(name)
        if form == "open":  # a batch of one is a size of its own
            inputs = tuple(x.repeat(2, *[1] * (x.ndim - 1)) for x in inputs)
        exported = irc.export_plan(module, inputs, out=plan, dynamic=form == "open" or None)
        print(exported, file=sys.stderr)
        np.savez(folder / f"{model}.npz", *[x.numpy() for x in inputs])
    return plan


def measure(model: str, folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a model: of both, and how they compare."""
    from tests.benchmarks.contenders import Contender

    class Runner(Contender):
        script = __file__

    running: dict[str, Runner] = {}
    try:
        running = {name: Runner(name, str(folder / model)) for name in NAMES}
        figures: dict[str, Any] = {n: worker.ask("figures") for n, worker in running.items()}
        calls = max(3, int(seconds / figures["native"]["call_s"]))
        blocks: dict[str, list[float]] = {name: [] for name in NAMES}
        for index in range(rounds):
            # Neither is always the first to find the machine as the other left it.
            for name in NAMES if index % 2 else NAMES[::-1]:
                blocks[name].append(running[name].ask(f"block {calls}"))
        pairs = zip(blocks["native"], blocks["irc.load"], strict=True)
        figures["ratio"] = median(a / b for a, b in pairs)
        for name in NAMES:
            figures[name]["call_s"] = median(blocks[name])
        figures["same"] = figures["native"].pop("digest") == figures["irc.load"].pop("digest")
    finally:
        for worker in running.values():
            worker.close()
    return figures


def missed(figures: dict[str, Any]) -> list[str]:
    """Return which targets a model misses."""
    own = figures["native"]
    most = own["weight_bytes"] + own["arena_bytes"] + OVERHEAD_BYTES
    tests = {
        "import": own["import_s"] <= IMPORT_S,
        "memory": own["own_bytes"] <= most,
        "bits": figures["same"],
        "latency": figures["ratio"] <= RATIO,
    }
    return [name for name, good in tests.items() if not good]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Print the figures; times in ms, sizes in MiB."""
    lines = [
        "model        import  load  code weights resident  own   torch's   call  irc.load  ratio"
    ]
    for model, figures in results.items():
        own, other = figures["native"], figures["irc.load"]
        mib = {k: v / 2**20 for k, v in own.items() if k.endswith("_bytes")}
        lines.append(
            f"{model:<12} {own['import_s'] * 1e3:6.0f}{own['load_s'] * 1e3:6.0f}"
            f"{mib['code_bytes']:6.2f}{mib['weight_bytes']:8.1f}{mib['resident_bytes']:9.1f}"
            f"{mib['own_bytes']:6.1f}{other['resident_bytes'] / 2**20:9.1f}"
            f"{own['call_s'] * 1e3:8.3f}{other['call_s'] * 1e3:9.3f}{figures['ratio']:7.3f}"
            f"  {' '.join(missed(figures)) or 'ok'}"
        )
    return "\n".join(lines)


def _native(plan: Path) -> tuple[Any, dict[str, Any]]:
    sys.meta_path.insert(0, Absent())  # pyright: ignore[reportArgumentType]
    start = time.perf_counter()
    from irc.runtime.native.folder import open_native
    from irc.runtime.native.program import load
    from irc.runtime.native.report import resident_bytes

    imported = time.perf_counter()
    program = load(plan, threads=2)
    loaded = time.perf_counter()
    import numpy as np

    with np.load(f"{plan}.npz") as arrays:
        inputs = [arrays[name] for name in arrays.files]
    outputs = program.run(inputs)
    opened = open_native(plan)
    (code,) = [each for each in opened.program.codes if each.name == program.code]
    figures = {
        "import_s": imported - start,
        "load_s": loaded - imported,
        "weight_bytes": opened.bytes["weights.bin"],
        "code_bytes": opened.bytes[code.file],
        "arena_bytes": opened.program.arena_bytes,
        **resident_bytes(),
        "digest": _digest([y.tobytes() for y in outputs]),
    }
    return lambda: program.run(inputs), figures


def _plan(plan: Path) -> tuple[Any, dict[str, Any]]:
    import numpy as np
    import torch

    import irc
    from irc.runtime.native.report import resident_bytes

    torch.set_num_threads(2)
    with np.load(f"{plan}.npz") as arrays:
        inputs = [torch.from_numpy(arrays[name]) for name in arrays.files]
    run = irc.load(plan)
    outputs = run(*inputs)
    figures = {**resident_bytes(), "digest": _digest([y.numpy().tobytes() for y in outputs])}
    return lambda: run(*inputs), figures


def _digest(parts: list[bytes]) -> str:
    import hashlib

    return hashlib.sha256(b"".join(parts)).hexdigest()


def worker(name: str, plan: str) -> None:
    """Answer commands: what a start costs, and how long a call takes in a block of them."""
    call, figures = (_native if name == "native" else _plan)(Path(plan))
    from tests.benchmarks.contenders import answer

    def block(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    answer("ready")
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        answer({**figures, "call_s": block(3)} if word == "figures" else block(int(rest)))


def main() -> int:
    """Compile, measure, print; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", default="")
    parser.add_argument("--quick", action="store_true", help="two models, fewer rounds")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plans", metavar="FOLDER", help="keep what is compiled there")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    args = parser.parse_args()
    models = args.models.split(",") if args.models else QUICK if args.quick else MODELS
    rounds, seconds = (5, 0.1) if args.quick else (9, 0.2)
    with TemporaryDirectory() as own:
        folder = Path(args.plans or own)
        folder.mkdir(exist_ok=True)
        results: dict[str, dict[str, Any]] = {}
        for model in models:
            prepare(model, folder)
            if not args.prepare:
                results[model] = measure(model, folder, rounds=rounds, seconds=seconds)
    print(table(results))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    return any(missed(figures) for figures in results.values())


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in NAMES:
        worker(*sys.argv[1:])
    else:
        sys.exit(main())
