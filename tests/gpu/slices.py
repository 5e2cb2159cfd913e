"""The slices of a run: each yields items, which are run one by one and add rows to the record."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from irc.backends import KernelReport, cuda, triton
from irc.backends.triton import is_interpreted
from irc.backends.triton.timing import kernel_seconds
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.kernels.gpu.limits import GPUS
from irc.kernels.gpu.tiles import alternatives, with_tile
from irc.tune.tiles import best_tile
from tests.backends.sized_runs import Sized, sized_kernels
from tests.gpu import compiling, launching, machine, templates, whole
from tests.gpu.programs import cases
from tests.gpu.record import Record

SLICES = ("machine", *templates.SLICES, "sizes", "tuned", "models", "compile")
BACKENDS = ("triton", "cuda")


@dataclass(frozen=True)
class Item:
    """One step of a slice: what it is called, and what is to be done."""

    name: str
    run: Callable[[], None]


def items(name: str, args: argparse.Namespace, record: Record) -> Iterator[Item]:
    """Yield the items of a slice."""
    device = not args.dry_run and not is_interpreted()
    match name:
        case "machine":
            if device:
                yield Item("machine", partial(_machine, record))
        case "compile":
            yield Item("compile", partial(_compile, args, record))
        case "tuned":
            yield from _tuned(args, record, device=device)
        case "sizes":
            yield from _sizes(args, record)
        case "models":
            yield from _models(args, record, device=device)
        case _:
            for backend in args.backends:
                if backend == "triton" or not is_interpreted():
                    yield from _template(name, backend, args, record)


def _machine(record: Record) -> None:
    for row, value in machine.figures():
        record.facts[row] = value
        record.add("machine", f"{row:<44}{value:.4g}")


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
        record.save()
    line, ok = compiling.summary(rows, complete=args.all)
    record.add("compile", line)
    if not ok:
        record.fail("compile", "compile")


def _template(name: str, backend: str, args: argparse.Namespace, record: Record) -> Iterator[Item]:
    # Tiles are Triton's: a CUDA kernel takes the model's choice.
    every = templates.checks(name, record.target)
    checks = list(islice((c for c in every if backend == "triton" or c.is_first), args.limit))
    if backend == "cuda" and not args.dry_run:
        launching.compile_together([check.kernel for check in checks])
    for check in checks:
        label = f"{backend} {check.name}"
        yield Item(label, partial(_check, name, label, backend, check, args, record))
    if is_interpreted():
        return
    for race in islice(templates.races(name, record.target), args.limit):
        label = f"{backend} {race.name}"
        yield Item(label, partial(_race, name, label, backend, race, args, record))


def _sizes(args: argparse.Namespace, record: Record) -> Iterator[Item]:
    """Kernels that take sizes when they run: each compiled once, and launched at several sizes."""
    for backend in args.backends:
        if backend == "cuda" and is_interpreted():
            continue
        for name, sized in islice(sized_kernels().items(), args.limit):
            label = f"{backend} {name}"
            yield Item(label, partial(_check_sizes, label, backend, sized, args, record))


def _check_sizes(
    label: str, backend: str, sized: Sized, args: argparse.Namespace, record: Record
) -> None:
    if args.dry_run:
        record.add("sizes", f"{label:<52}{_compiled(backend, sized.kernel, record.target)}")
        return
    worst = 0.0
    for values in sized.calls:
        kernel, inputs = sized.inputs(values)
        sizes = sized.given(values)
        launch = launching.prepare(kernel, inputs, backend, text_of=sized.kernel, sizes=sizes)
        worst = max(worst, launching.error(kernel, launch, inputs))
    record.add(
        "sizes", f"{label:<52}error {worst:.3f} of what is allowed, {len(sized.calls)} sizes"
    )
    if not worst <= 1:
        record.fail("sizes", label)


def _check(
    name: str,
    label: str,
    backend: str,
    check: templates.Check,
    args: argparse.Namespace,
    record: Record,
) -> None:
    try:
        if args.dry_run:
            record.add(name, f"{label:<52}{_compiled(backend, check.kernel, record.target)}")
            return
        launch = launching.prepare(check.kernel, check.inputs, backend)
    except IrcError as error:
        if error.code != "op-unsupported":
            raise
        record.add(name, f"{label:<52}not in this backend: {str(error).splitlines()[0]}")
        return
    worst = launching.error(check.kernel, launch, check.inputs)
    record.add(name, f"{label:<52}error {worst:.3f} of what is allowed")
    if not worst <= 1:
        record.fail(name, label)


def _compiled(backend: str, kernel: KernelOp, target: str) -> str:
    compile_for = {"triton": triton.compile_for, "cuda": cuda.compile_for}[backend]
    report: KernelReport = compile_for(kernel, GPUS[target].arch)
    spills = f", {report.spill_bytes} B spilled" if report.spill_bytes else ""
    return f"{report.registers:>4} registers{spills}, compiled"


def _race(
    name: str,
    label: str,
    backend: str,
    race: templates.Race,
    args: argparse.Namespace,
    record: Record,
) -> None:
    if args.dry_run:
        record.add(name, f"{label:<52}{_compiled(backend, race.kernel, record.target)}")
        return
    inputs, kernel, note = race.inputs(), race.kernel, ""
    if args.tune and backend == "triton":
        choice = best_tile(kernel, record.target, record.device, partial(_taken, inputs))
        kernel, note = choice.kernel, f" (best of {choice.timed or 'known'})"
    mine = launching.seconds(launching.prepare(kernel, inputs, backend), cold=True, recorded=True)
    unit, scale = ("GB/s", 1e9) if race.is_bytes else ("TF/s", 1e12)
    row = f"{label:<52}irc {1e6 * mine:.1f} us, {race.work / mine / scale:.1f} {unit}{note}"
    peers: list[float] = []
    for peer, call in race.peers.items():
        try:
            taken = launching.seconds(
                lambda call=call: call(inputs), cold=True, recorded=race.is_recorded
            )
        except Exception as failure:  # torch may have no such kernel here
            row += f"; {peer}: {type(failure).__name__}"
            torch.cuda.synchronize()
            continue
        row += f"; {peer} {1e6 * taken:.1f} us"
        peers.append(taken)
    if peers:
        record.ratios[label] = min(peers) / mine
        row += f": {record.ratios[label]:.2f}x"
    record.add(name, row)


def _taken(inputs: list[torch.Tensor], kernel: KernelOp) -> float:
    try:
        return launching.seconds(launching.prepare(kernel, inputs), cold=True)
    except Exception as failure:  # a tile that does not fit this device is no candidate
        print(f"  {type(failure).__name__}: {str(failure).splitlines()[0][:100]}")
        return float("inf")


def _tuned(args: argparse.Namespace, record: Record, *, device: bool) -> Iterator[Item]:
    """Time the tiles of one kernel of each template, and keep the best for later compilations."""
    if not device and not args.dry_run:
        record.add("tuned", "nothing is timed: an interpreter is no device")
        return
    for name, kernel in islice(templates.one_of_each(record.target), args.limit):
        yield Item(f"tuned {name}", partial(_tune, name, kernel, args, record))


def _tune(name: str, kernel: KernelOp, args: argparse.Namespace, record: Record) -> None:
    tiles = alternatives(kernel, record.target)
    if args.dry_run:
        shown = _compiled("triton", with_tile(kernel, tiles[-1]), record.target)
        record.add("tuned", f"{name:<44}{len(tiles)} tiles, the last: {shown}")
        return
    choice = best_tile(kernel, record.target, record.device, kernel_seconds)
    of = f"best of {choice.timed}" if choice.timed else "known"
    shown = " ".join(f"{key}={size}" for key, size in choice.tile.items())
    record.add("tuned", f"{name:<44}{1e6 * choice.seconds:.1f} us, {of}: {shown}")
    if choice.seconds == float("inf"):
        record.fail("tuned", f"tuned {name}", f"{name}: no tile of it runs")


def _models(args: argparse.Namespace, record: Record, *, device: bool) -> Iterator[Item]:
    if args.dry_run:
        yield Item("models", partial(_dry_models, args, record))
    elif not device:
        record.add("models", "no races: an interpreter is no device")
    else:
        for name in args.models or whole.names():
            yield Item(f"model {name}", partial(_model, name, args, record))


def _model(name: str, args: argparse.Namespace, record: Record) -> None:
    row = whole.race(name, args.backends, tuned=args.max_autotune)
    record.add("models", row)
    for backend, error in row.errors.items():
        if not error <= 1:
            record.fail("models", f"model {name} {backend}")
    peers = [t for label, t in row.times.items() if label not in args.backends]
    for backend in args.backends:
        if backend in row.times and peers:
            record.ratios[f"{backend} model {name}"] = min(peers) / row.times[backend]


def _dry_models(args: argparse.Namespace, record: Record) -> None:
    """Compile the kernels of the models for the target."""
    plain = list(dict.fromkeys(name.split(":")[0] for name in args.models or whole.PLAIN))
    work = compiling.Work(cases(plain, args.dtypes, ["forward"]), [record.target], jobs=args.jobs)
    rows: list[compiling.Row] = []
    for row in compiling.compile_all(work):
        record.add("models", row)
        rows.append(row)
    line, ok = compiling.summary(rows)
    record.add("models", line)
    if not ok:
        record.fail("models", "models")
