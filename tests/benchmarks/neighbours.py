"""How steady calls are beside other work: spinning processes, other sessions, pools, a quota.

    python -m tests.benchmarks.neighbours [--models A,B] [--beside A,B] [--quick] [--json FILE]

Targets of irc (exit status 1 when one is missed), for the 90th percentile of the seconds of a call
over the median on the quiet machine:

- at most 3 where that median is below 1 ms;
- else at most 1.5 times what a fair share of the cores gives (``fair`` in the table);
- at most 1.1 times ONNX Runtime's own figure in the same company.

The company: 2, 4 and 6 processes that spin; four sessions of the program, in threads of one
process; another pool of threads (torch's, ONNX Runtime's) that multiplies matrices in the process;
and one core: a quota of a control group where the user may write one, else affinity to one core.
Of the programs the VAD is silero's ONNX file (its TorchScript for eager); the others are modules.
Each contender has a process of its own, in which calls follow each other; the others are stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.contenders import Contender  # noqa: E402

NAMES = ("irc", "onnxruntime", "eager")
MODELS = ("mlp", "vad", "bert-4-layers", "resnet18")
THREADS = 2
SHORT_S, SHORT, LONG, PEER = 1e-3, 3.0, 1.5, 1.1
QUOTA = Path("/sys/fs/cgroup/cpu/irc-neighbours"), Path("/sys/fs/cgroup/irc-neighbours")
Row = dict[str, Any]


@dataclass(frozen=True)
class Beside:
    """Company for a program.

    Attributes:
        fair: how many times as long a program on all cores takes with a fair share of them.
        spinning: processes.
        within: what else runs in the program's own process.
        one_core: one core is all that it may use.
    """

    fair: float = 1.0
    spinning: int = 0
    within: str = "none"
    one_core: bool = False


BESIDE: Mapping[str, Beside] = {
    "quiet": Beside(),
    "2 spinning": Beside((2 + THREADS) / THREADS, spinning=2),
    "4 spinning": Beside((4 + THREADS) / THREADS, spinning=4),
    "6 spinning": Beside((6 + THREADS) / THREADS, spinning=6),
    "4 sessions": Beside(4.0, within="sessions"),
    "torch pool": Beside(2.0, within="torch pool"),
    "onnx pool": Beside(2.0, within="onnx pool"),
    "one core": Beside(THREADS, one_core=True),
}


class Program(Contender):
    """A worker that runs one program (see `neighbours_worker`)."""

    script = str(Path(__file__).with_name("neighbours_worker.py"))

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid


def measure(program: Program, beside: Beside, seconds: float) -> Row:
    """Return median and 90th percentile, in seconds, of calls in some company."""
    with _spinning(beside.spinning), _one_core(program.pid, beside.one_core) as how:
        median, high, calls = program.ask(f"block {seconds} {beside.within}")
    return {"median": median, "p90": high, "calls": calls, **({"how": how} if how else {})}


@contextmanager
def _spinning(count: int) -> Iterator[None]:
    running = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


@contextmanager
def _one_core(pid: int, wanted: bool) -> Iterator[str]:
    """Allow a process one core's time; give how: by a control group, or by affinity."""
    if not wanted:
        yield ""
        return
    if (group := _quota()) is not None:
        tasks = group / "cgroup.procs"
        tasks.write_text(str(pid))
        try:
            yield "quota"
        finally:
            (group.parent / "cgroup.procs").write_text(str(pid))
            group.rmdir()
        return
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    cores = os.sched_getaffinity(pid)
    for thread in threads:
        os.sched_setaffinity(thread, {min(cores)})
    try:
        yield "affinity"
    finally:
        for thread in threads:
            os.sched_setaffinity(thread, cores)


def _quota() -> Path | None:
    """Return a control group with a quota of one core, or None where none can be written."""
    for group in QUOTA:
        try:
            group.mkdir(exist_ok=True)
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text("100000 100000")
            else:
                (group / "cpu.cfs_quota_us").write_text("100000")
        except OSError:
            if group.exists():
                group.rmdir()
        else:
            return group
    return None


def table(model: str, beside: Sequence[str], names: Sequence[str], seconds: float) -> list[Row]:
    """Measure a program in all company, print its rows and return them."""
    running: dict[str, Program] = {}
    rows: list[Row] = []
    quiet: dict[str, float] = {}
    try:
        for name in names:
            running[name] = Program(name, json.dumps([model, THREADS]), THREADS)
        for company in beside:
            row: Row = {"model": model, "beside": company, "fair": BESIDE[company].fair}
            for name, program in running.items():
                one = measure(program, BESIDE[company], seconds)
                quiet.setdefault(name, one["median"])
                row[name] = {**one, "ratio": one["p90"] / quiet[name]}
            row["target"] = SHORT if quiet["irc"] < SHORT_S else LONG * row["fair"]
            row["missed"] = _missed(row)
            rows.append(row)
            _show(row, names)
    finally:
        for program in running.values():
            program.close()
    return rows


def _missed(row: Row) -> str:
    ratio = row["irc"]["ratio"]
    start = f"{row['model']}, {row['beside']}: {ratio:.1f}"
    if ratio > row["target"]:
        return f"{start} above {row['target']:.1f}"
    peer = row.get("onnxruntime")
    if row["beside"] != "quiet" and peer is not None and ratio > PEER * peer["ratio"]:
        return f"{start} behind ONNX Runtime's {peer['ratio']:.1f}"
    return ""


def _show(row: Row, names: Sequence[str]) -> None:
    each = "".join(
        f"{row[n]['median'] * 1e3:>15.3f}{row[n]['p90'] * 1e3:>9.3f}{row[n]['ratio']:>6.1f}"
        for n in names
    )
    how = row["irc"].get("how", "")
    mark = "  MISSED" if row["missed"] else ""
    print(
        f"{row['model']:<15}{row['beside']:<12}{row['fair']:>5.1f}{each}  {how}{mark}", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="two programs, less of all")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--models", metavar="A,B", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--beside", metavar="A,B", help=f"of {', '.join(BESIDE)}")
    parser.add_argument(
        "--contenders", metavar="A,B", help=f"of {', '.join(NAMES)}, irc among them"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of calls, in each company")
    args = parser.parse_args(arguments)
    models = _chosen(parser, args.models, MODELS[:2] if args.quick else MODELS, MODELS)
    companies = tuple(BESIDE)[:3] if args.quick else tuple(BESIDE)
    beside = _chosen(parser, args.beside, companies, tuple(BESIDE))
    names = _chosen(parser, args.contenders, NAMES, NAMES)
    if "irc" not in names:
        parser.error("irc is what the others are compared with: name it among the contenders")
    beside = ["quiet", *(each for each in beside if each != "quiet")]
    print(
        f"{'':<27}{'fair':>5}" + "".join(f"{name + ' ms':>11}{'p90':>9}{'x':>6}" for name in names)
    )
    rows: list[Row] = []
    for model in models:
        rows += table(model, beside, names, 0.3 if args.quick else args.seconds)
    if args.json:
        Path(args.json).write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))
    missed = [row["missed"] for row in rows if row["missed"]]
    worst = max(row["irc"]["ratio"] for row in rows)
    print(
        f"neighbours: {len(rows) - len(missed)} of {len(rows)} rows, the 90th percentile at most"
        f" {worst:.1f} times the quiet median: "
        + (f"MISSED {'; '.join(missed)}" if missed else "all met")
    )
    return 1 if missed else 0


def _chosen(
    parser: argparse.ArgumentParser, text: str | None, default: Sequence[str], every: Sequence[str]
) -> Sequence[str]:
    names = text.split(",") if text else list(default)
    for name in names:
        if name not in every:
            parser.error(f"no {name!r}: one of {', '.join(every)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
