"""All kernels on a GPU: right against float64, and raced against torch's own.

    python -m tests.gpu                     every slice, each in a process of its own
    python -m tests.gpu --only matmul,rows  some of them
    python -m tests.gpu --dry-run           up to the launch: compiled for --target, needs no GPU

Slices: ``machine`` (its bandwidth and peak), ``matmul``, ``rows``, ``attention``, ``backward`` (its
gradients), ``int4``, ``grouped``, ``foreach`` (templates, in both backends), ``sizes`` (kernels
that take sizes when they run, each at several), ``tuned`` (the tiles of a kernel, timed as
``irc.compile(tune=True)`` does), ``models`` (whole programs), ``compile`` (the kernels of the zoo,
a share of them unless --all). A slice that crashes, or takes longer than
--slice-seconds, takes nothing else with it. Results go to tests/benchmarks/results as
``gpu-DEVICE-DATE.json``, written again after each row. Exit status: 0 all right, 1 something is
wrong, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from irc.backends.triton import is_interpreted
from irc.errors import IrcError
from irc.kernels.gpu.limits import GPUS
from irc.runtime.device import device_of
from tests.gpu.isolated import LOST, run_apart
from tests.gpu.programs import DTYPES, MODES, TARGETS
from tests.gpu.record import Record, machine_facts
from tests.gpu.slices import BACKENDS, SLICES, items

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SHARE = 0.02
"""Of the zoo's kernels, what slice ``compile`` takes unless it is to take all."""


def main(arguments: list[str] | None = None) -> int:
    """Run the slices; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    args = _arguments(words)
    warnings.simplefilter("ignore")
    try:
        device = "none (dry run)" if args.dry_run else _device()
    except IrcError as error:
        print(error, file=sys.stderr)
        print("tests.gpu: nothing was run: --dry-run compiles without a GPU", file=sys.stderr)
        return int(error.exit_code)
    target = args.target or ("sm_90" if args.dry_run else _target())
    record = Record(device, target, path=_path(args, device))
    if args.child is not None:
        return _run(args.only[0], args, record)
    record.facts |= machine_facts()
    print(f"device {device}, kernels for {target}; {record.facts}", flush=True)
    apart = not (args.dry_run or args.in_process or is_interpreted())
    for name in args.only:
        started = time.monotonic()
        print(f"\n{name}", flush=True)
        if apart:
            run_apart(name, words, record, args.slice_seconds)
        else:
            _run(name, args, record)
        record.save()
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return _finish(args, record)


def _run(name: str, args: argparse.Namespace, record: Record) -> int:
    """Run the items of a slice in this process; return its exit status."""
    before = len(record.wrong)
    record.at = (name, args.skip, name)
    try:
        for number, item in enumerate(items(name, args, record)):
            if number < args.skip:
                continue
            record.at = (name, number, item.name)
            record.save()
            try:
                item.run()
            except Exception as failure:
                lines = str(failure).splitlines() or [""]
                text = f"{item.name}: {type(failure).__name__}: {lines[0][:200]}"
                record.fail(name, item.name, text)
                if _is_lost(args):
                    return LOST
    except Exception as failure:
        record.fail(name, name, f"{name}: {type(failure).__name__}: {failure}")
    finally:
        record.save()
    return 1 if len(record.wrong) > before else 0


def _is_lost(args: argparse.Namespace) -> bool:
    """True where the device fails every call of this process from now on."""
    if args.dry_run or not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", metavar="A,B", type=_some(SLICES), default=list(SLICES))
    parser.add_argument("--dry-run", action="store_true", help="compile, launch nothing")
    parser.add_argument("--target", choices=GPUS, help="of a dry run (default: sm_90)")
    parser.add_argument("--backends", type=_some(BACKENDS), default=list(BACKENDS))
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
    parser.add_argument("--slice-seconds", type=float, default=300, help="of a slice on a device")
    parser.add_argument("--json", metavar="FILE", help="write the results there instead")
    parser.add_argument("--in-process", action="store_true", help="all slices in this process")
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _some(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return read


def _path(args: argparse.Namespace, device: str) -> Path | None:
    if args.child is not None:
        return args.child
    if args.json:
        return Path(args.json)
    if args.dry_run:
        return None
    clean = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-")
    return RESULTS / f"gpu-{clean}-{Record(device, '').date}.json"


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


def _finish(args: argparse.Namespace, record: Record) -> int:
    """Print the last lines and return the exit status."""
    record.save()
    if record.path is not None:
        print(f"\nwritten to {record.path}")
    mean = ""
    if (geomean := record.geomean) is not None:
        mean = f", {geomean:.2f}x torch's best by geometric mean (target 1.00)"
    done = "compiled" if args.dry_run else "right"
    state = (
        f"{len(record.wrong)} wrong: {', '.join(record.wrong)}" if record.wrong else f"all {done}"
    )
    print(f"gpu: {', '.join(args.only)} on {record.device} for {record.target}: {state}{mean}")
    return 1 if record.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
