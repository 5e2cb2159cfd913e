"""All kernels on a GPU: right against float64, and raced against torch's own.

    python -m tests.gpu                     every slice, within ten minutes
    python -m tests.gpu --only matmul,rows  some of them
    python -m tests.gpu --dry-run           up to the launch: compiled for --target, needs no GPU

Slices: ``compile`` (the kernels of the zoo, a share of them unless --all), ``matmul``, ``rows``,
``attention``, ``backward`` (its gradients), ``int4``, ``grouped`` (templates), ``tuned`` (the tiles
of a kernel, timed as ``irc.compile(tune=True)`` does), ``models`` (whole programs). Results go to
tests/benchmarks/results as ``gpu-DEVICE-DATE.json``. Exit status: 0 all right, 1 something is
wrong, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from irc.backends.triton import compile_for, is_interpreted
from irc.backends.triton.timing import kernel_seconds
from irc.errors import IrcError
from irc.kernels.gpu.limits import GPUS
from irc.kernels.gpu.tiles import alternatives, with_tile
from irc.runtime.device import device_of
from irc.tune.tiles import best_tile
from tests.gpu import compiling, launching, templates, whole
from tests.gpu.programs import DTYPES, MODES, TARGETS, cases

SLICES = ("compile", *templates.SLICES, "tuned", "models")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SHARE = 0.02
"""Of the zoo's kernels, what slice ``compile`` takes unless it is to take all."""


@dataclass
class Record:
    """What a run found; ``wrong`` names what is not right."""

    device: str
    target: str
    date: str
    slices: dict[str, list[Any]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, row: Any) -> None:
        """Print a row and keep it."""
        print(row, flush=True)
        kept = row if isinstance(row, str) else _compact(row)
        self.slices.setdefault(name, []).append(kept)


def _compact(row: Any) -> dict[str, Any]:
    return row.compact() if isinstance(row, compiling.Row) else asdict(row)


def main(arguments: list[str] | None = None) -> int:
    """Run the slices; return the exit status."""
    args = _arguments(arguments)
    warnings.simplefilter("ignore")
    try:
        device = "none (dry run)" if args.dry_run else _device()
    except IrcError as error:
        print(error, file=sys.stderr)
        print("tests.gpu: nothing was run: --dry-run compiles without a GPU", file=sys.stderr)
        return int(error.exit_code)
    target = args.target or ("sm_90" if args.dry_run else _target())
    record = Record(device, target, datetime.now(UTC).date().isoformat())
    print(f"device {device}, kernels for {target}")
    for name in args.only:
        started = time.monotonic()
        print(f"\n{name}")
        _slice(name, args)(args, record)
        print(f"{name}: {time.monotonic() - started:.0f} s")
    return _finish(args, record)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", metavar="A,B", type=_some(SLICES), default=list(SLICES))
    parser.add_argument("--dry-run", action="store_true", help="compile, launch nothing")
    parser.add_argument("--target", choices=GPUS, help="of a dry run (default: sm_90)")
    parser.add_argument("--tune", action="store_true", help="time the tiles of what is raced")
    parser.add_argument("--max-autotune", action="store_true", help="race against it as well")
    parser.add_argument("--all", action="store_true", help="slice compile: every kernel")
    parser.add_argument("--share", type=float, default=SHARE, help="slice compile: of its kernels")
    parser.add_argument("--store", type=Path, help="slice compile: keep reports there")
    parser.add_argument("--modes", type=_some(MODES), default=list(MODES))
    parser.add_argument("--targets", type=_some(TARGETS), default=list(TARGETS))
    parser.add_argument("--dtypes", type=_some(tuple(DTYPES)), default=list(DTYPES))
    parser.add_argument("--limit", type=int, help="the first so many of each slice of templates")
    parser.add_argument("--models", metavar="A,B", type=lambda t: t.split(","), default=[])
    parser.add_argument("--jobs", type=int, default=1, help="processes of slice compile")
    parser.add_argument("--seconds", type=float, default=120, help="of slice compile without --all")
    parser.add_argument("--json", metavar="FILE", help="write the results there instead")
    return parser.parse_args(arguments)


def _some(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return read


def _device() -> str:
    place = device_of("triton")
    return "Triton's interpreter" if place.type == "cpu" else torch.cuda.get_device_name()


def _target() -> str:
    """Return the target whose kernels are mapped for the device: the closest one below it."""
    if is_interpreted():
        return "sm_90"
    major, minor = torch.cuda.get_device_capability()
    below = [t for t in GPUS.values() if t.arch <= 10 * major + minor]
    return max(below or [GPUS["sm_80"]], key=lambda t: t.arch).name


def _slice(name: str, args: argparse.Namespace) -> Callable[[argparse.Namespace, Record], None]:
    if name == "compile":
        return _compile
    if name == "tuned":
        return _tuned
    if name == "models":
        return _dry_models if args.dry_run else _models
    return lambda args, record: _template(name, args, record)


def _compile(args: argparse.Namespace, record: Record) -> None:
    share, limit = (1.0, float("inf")) if args.all else (args.share, args.seconds)
    chosen = cases(args.models, args.dtypes, args.modes)
    work = compiling.Work(
        chosen, args.targets, share, jobs=args.jobs, seconds=limit, store=args.store
    )
    rows: list[compiling.Row] = []
    print(compiling.HEADER)
    for row in compiling.compile_all(work):
        record.add("compile", row)
        rows.append(row)
    line, ok = compiling.summary(rows, complete=args.all)
    record.add("compile", line)
    if not ok:
        record.wrong.append("compile")


def _template(name: str, args: argparse.Namespace, record: Record) -> None:
    for check in islice(templates.checks(name, record.target), args.limit):
        if args.dry_run:
            report = compile_for(check.kernel, GPUS[record.target].arch)
            record.add(name, f"{check.name:<44}{report.registers:>4} registers, compiled")
            continue
        launch = launching.prepare(check.kernel, check.inputs)
        found = launching.error(check.kernel, launch, check.inputs)
        record.add(name, f"{check.name:<44}error {found:.3f} of what is allowed")
        if not found <= 1:
            record.wrong.append(check.name)
    if is_interpreted():
        record.add(name, "no races: an interpreter is no device")
        return
    for race in islice(templates.races(name, record.target), args.limit):
        if args.dry_run:
            report = compile_for(race.kernel, GPUS[record.target].arch)
            spills = f", {report.spill_bytes} B spilled" if report.spill_bytes else ""
            record.add(name, f"{race.name:<44}{report.registers:>4} registers{spills}, compiled")
        else:
            _race(name, race, args, record)


def _tuned(args: argparse.Namespace, record: Record) -> None:
    """Time the tiles of one kernel of each template, and keep the best for later compilations."""
    if is_interpreted():
        record.add("tuned", "nothing is timed: an interpreter is no device")
        return
    for name, kernel in islice(templates.one_of_each(record.target), args.limit):
        tiles = alternatives(kernel, record.target)
        if args.dry_run:
            report = compile_for(with_tile(kernel, tiles[-1]), GPUS[record.target].arch)
            spills = f", {report.spill_bytes} B spilled" if report.spill_bytes else ""
            record.add("tuned", f"{name:<44}{len(tiles)} tiles, the last compiled{spills}")
            continue
        choice = best_tile(kernel, record.target, record.device, kernel_seconds)
        of = f"best of {choice.timed}" if choice.timed else "known"
        shown = " ".join(f"{key}={size}" for key, size in choice.tile.items())
        record.add("tuned", f"{name:<44}{1e6 * choice.seconds:.1f} us, {of}: {shown}")


def _race(name: str, race: templates.Race, args: argparse.Namespace, record: Record) -> None:
    inputs = race.inputs()

    def taken(kernel: Any) -> float:
        try:
            return launching.seconds(launching.prepare(kernel, inputs), cold=True)
        except Exception as failure:  # a tile that does not fit this device is no candidate
            print(f"  {type(failure).__name__}: {str(failure).splitlines()[0][:100]}")
            return float("inf")

    kernel, note = race.kernel, ""
    if args.tune:
        choice = best_tile(kernel, record.target, record.device, taken)
        kernel, note = choice.kernel, f" (best of {choice.timed or 'known'})"
    mine = taken(kernel)
    peers = {
        peer: launching.seconds(lambda call=call: call(inputs), cold=True)
        for peer, call in race.peers.items()
    }
    ratio = min(peers.values()) / mine
    unit, scale = ("GB/s", 1e9) if race.is_bytes else ("TF/s", 1e12)
    others = ", ".join(f"{peer} {1e6 * t:.1f} us" for peer, t in peers.items())
    record.add(
        name,
        f"{race.name:<44}irc {1e6 * mine:.1f} us, {race.work / mine / scale:.1f} {unit}{note};"
        f" {others}: {ratio:.2f}x",
    )
    record.ratios[race.name] = ratio


def _models(args: argparse.Namespace, record: Record) -> None:
    if is_interpreted():
        record.add("models", "no races: an interpreter is no device")
        return
    for row in whole.run(args.models or whole.names(), tuned=args.max_autotune):
        record.add("models", row)
        if row.error > 1:
            record.wrong.append(f"model {row.name}")
        if "irc" in row.times:
            best = min(t for name, t in row.times.items() if name != "irc")
            record.ratios[f"model {row.name}"] = best / row.times["irc"]


def _dry_models(args: argparse.Namespace, record: Record) -> None:
    """Compile the kernels of the models for the target."""
    plain = list(dict.fromkeys(name.split(":")[0] for name in args.models or whole.PLAIN))
    work = compiling.Work(cases(plain, args.dtypes, ["forward"]), [record.target], jobs=args.jobs)
    rows = list(_kept(compiling.compile_all(work), record))
    line, ok = compiling.summary(rows)
    record.add("models", line)
    if not ok:
        record.wrong.append("models")


def _kept(rows: Iterator[compiling.Row], record: Record) -> Iterator[compiling.Row]:
    for row in rows:
        record.add("models", row)
        yield row


def _finish(args: argparse.Namespace, record: Record) -> int:
    """Write the results, print the last line, and return the exit status."""
    clean = re.sub(r"[^A-Za-z0-9]+", "-", record.device).strip("-")
    path = Path(args.json) if args.json else RESULTS / f"gpu-{clean}-{record.date}.json"
    if args.json or not args.dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten to {path}")
    mean = ""
    if record.ratios:
        product = 1.0
        for ratio in record.ratios.values():
            product *= ratio
        geomean = product ** (1 / len(record.ratios))
        mean = f", {geomean:.2f}x torch's best by geometric mean (target 1.00)"
    done = "compiled" if args.dry_run else "right"
    state = (
        f"{len(record.wrong)} wrong: {', '.join(record.wrong)}" if record.wrong else f"all {done}"
    )
    print(f"gpu: {', '.join(args.only)} on {record.device} for {record.target}: {state}{mean}")
    return 1 if record.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
