"""Compiles every CUDA kernel of the zoo ahead of time, and prints one table; needs nvcc, no GPU.

    python -m tests.backends.cuda.zoo [--only NAME ...] [--arch 90 80] [--dtypes f32 bf16]
        [--share 0.1] [--known FILE] [--json FILE]

A row is a program on one architecture: its kernels, those that no program before had, the most
registers, the spills (listed by name), the most shared memory, failures. Many kernels are one file
to nvcc, whose headers cost more than a kernel; equal code is compiled once, whatever program, name
or comments it has. ``--known`` keeps reports by digest of the code, so that another run compiles
only what is new. Exit status 1 where a kernel fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from irc.backends import KernelReport
from irc.backends.cuda.build import compile_source, find_nvcc, nvcc_version
from irc.backends.cuda.file import MAIN_BEGINS, emit_kernel, shared_bytes
from irc.backends.cuda.report import by_function
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.kernels.source import identifier
from tests.gpu.programs import Case, cases, kernels

BATCH = 24
"""Kernels of one file."""
HEADERS = "#include <cuda.h>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"


@dataclass
class Row:
    """The kernels of a program on one architecture; ``error`` says why there are none."""

    case: str
    arch: int
    total: int = 0
    known: int = 0
    compiled: dict[str, KernelReport] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"{self.case:<36}{self.arch:>5}  {self.error}"
        reports = self.compiled.values()
        notes = [f"{name} {r.spill_bytes} B" for name, r in self.compiled.items() if r.spill_bytes]
        notes += [f"{name}: {why}" for name, why in self.failed.items()]
        return (
            f"{self.case:<36}{self.arch:>5}{self.total:>9}{len(self.compiled):>10}"
            f"{max((r.registers for r in reports), default=0):>11}"
            f"{sum(r.spill_bytes > 0 for r in reports):>8}"
            f"{max((r.shared_bytes for r in reports), default=0):>9}"
            f"{len(self.failed):>10}  {'; '.join(notes)}"
        ).rstrip()


HEADER = (
    f"{'program':<36}{'arch':>5}{'kernels':>9}{'distinct':>10}{'registers':>11}{'spills':>8}"
    f"{'shared':>9}{'failures':>10}"
)


class Known:
    """Reports by digest of the code, kept in a file of lines; a file cut short loses its last."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.reports: dict[str, KernelReport] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    key, *numbers = json.loads(line)
                    self.reports[key] = KernelReport(*numbers)

    def add(self, key: str, report: KernelReport) -> None:
        """Keep a report."""
        self.reports[key] = report
        if self.path is not None:
            with self.path.open("a") as file:
                numbers = report.registers, report.spill_bytes, report.shared_bytes
                file.write(json.dumps([key, *numbers]) + "\n")


def compile_all(
    chosen: Sequence[Case],
    archs: Sequence[int],
    share: float = 1.0,
    seed: int = 0,
    known: Known | None = None,
) -> Iterator[Row]:
    """Yield a row for each program and architecture; equal kernels are compiled once.

    Args:
        chosen: the programs.
        archs: compute capabilities as numbers.
        share: of the distinct kernels, those that are compiled, chosen by their digest.
        seed: of that choice.
        known: reports of earlier runs.
    """
    kept = Known() if known is None else known
    seen: set[str] = set()
    for case in chosen:
        try:
            for target, program_kernels in kernels(case, [f"sm_{arch}" for arch in archs]):
                arch = int(target.removeprefix("sm_"))
                fresh = {
                    key: kernel
                    for key, kernel in _keyed(program_kernels, arch)
                    if key not in seen and random.Random(f"{seed} {key}").random() < share
                }
                seen |= fresh.keys()
                row = Row(str(case), arch, len(program_kernels))
                for batch in _batches({k: op for k, op in fresh.items() if k not in kept.reports}):
                    compile_batch(list(batch.values()), arch, row)
                    for key, op in batch.items():
                        if (report := row.compiled.get(op.sym_name.data)) is not None:
                            kept.add(key, report)
                for key, op in fresh.items():
                    if op.sym_name.data not in row.compiled and key in kept.reports:
                        row.compiled[op.sym_name.data] = kept.reports[key]
                        row.known += 1
                yield row
        except (IrcError, ImportError) as error:
            line = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield from (Row(str(case), arch, error=line) for arch in archs)


def compile_batch(batch: Sequence[KernelOp], arch: int, row: Row) -> None:
    """Compile kernels as one file, and add what came of each to a row."""
    texts = {f"n{i}_{op.sym_name.data}": renamed(op, f"n{i}", arch) for i, op in enumerate(batch)}
    try:
        log = compile_source(HEADERS + "\n".join(texts.values()), arch)
    except InternalError as error:
        if len(batch) == 1:
            row.failed[batch[0].sym_name.data] = str(error)[:300].replace("\n", " ")
            return
        for op in batch:
            compile_batch([op], arch, row)
        return
    logs = by_function(log)
    for i, op in enumerate(batch):
        own = [text for name, text in logs.items() if name.startswith(f"n{i}_kernel_")]
        shared = shared_bytes(op, arch)
        row.compiled[op.sym_name.data] = KernelReport.of_ptxas("\n".join(own), shared)


def renamed(kernel: KernelOp, prefix: str, arch: int) -> str:
    """Return a kernel's source in a namespace, its C names after a prefix."""
    own = identifier(kernel.sym_name.data)
    text = emit_kernel(kernel, arch)
    text = re.sub(rf"\b{own}(_sum)?\b", rf"{prefix}_{own}\1", text)
    text = text.replace(" launch(", f" {prefix}_launch(")
    return f"namespace {prefix}_space {{\n{text}\n}}"


def _keyed(program_kernels: Iterable[KernelOp], arch: int) -> Iterator[tuple[str, KernelOp]]:
    for kernel in program_kernels:
        try:
            text = emit_kernel(kernel, arch)
        except IrcError as error:
            text = str(error)
        # What the device runs: neither the main that checks it, nor names and comments.
        text = text.partition(MAIN_BEGINS)[0].replace(identifier(kernel.sym_name.data), "k")
        lines = [line.partition("//")[0].rstrip() for line in text.splitlines()]
        yield hashlib.sha256(f"{arch} {lines}".encode()).hexdigest()[:24], kernel


def _batches(keyed: Mapping[str, KernelOp]) -> Iterator[dict[str, KernelOp]]:
    every = list(keyed.items())
    yield from (dict(every[i : i + BATCH]) for i in range(0, len(every), BATCH))


def _named(row: Row, kernel: str) -> str:
    return f"{row.case} sm_{row.arch} {kernel}"


def compact(rows: Sequence[Row], nvcc: str) -> dict[str, Any]:
    """Return what a run found: counts a program, and every spill and failure by name."""
    programs = [
        {
            "program": row.case, "arch": row.arch, "kernels": row.total,
            "distinct": len(row.compiled),
            "registers": max((r.registers for r in row.compiled.values()), default=0),
            "shared_bytes": max((r.shared_bytes for r in row.compiled.values()), default=0),
            **({"error": row.error} if row.error else {}),
        }
        for row in rows
    ]  # fmt: skip
    reports = [(row, name, report) for row in rows for name, report in row.compiled.items()]
    spills = {_named(row, name): r.spill_bytes for row, name, r in reports if r.spill_bytes}
    failed = {_named(row, name): why for row in rows for name, why in row.failed.items()}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "nvcc": nvcc,
        "summary": summary(rows)[0],
        "spills": spills,
        "failed": failed,
        "programs": programs,
    }


def summary(rows: Sequence[Row]) -> tuple[str, bool]:
    """Return the last line, and whether every kernel compiled."""
    reports = [r for row in rows for r in row.compiled.values()]
    spills = [r.spill_bytes for r in reports if r.spill_bytes]
    failed = sum(len(row.failed) for row in rows)
    missing = sum(bool(row.error) for row in rows)
    return (
        f"{len(reports)} distinct kernels of {len(rows)} programs and architectures, at most "
        f"{max((r.registers for r in reports), default=0)} registers, {len(spills)} spill (at most "
        f"{max(spills, default=0)} B), {failed} fail, {missing} programs not compiled",
        not failed and not missing,
    )


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write what a run has found so far, a program a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    version = nvcc_version(find_nvcc()).splitlines()[3]
    text = json.dumps(compact(rows, version), indent=0)
    path.write_text(text.replace(',\n"', ', "').replace("{\n", "{") + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--arch", nargs="+", type=int, default=(90, 80))
    parser.add_argument("--dtypes", nargs="+", default=("f32", "bf16"))
    parser.add_argument("--modes", nargs="+", default=())
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--known", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    print(HEADER)
    chosen = cases(options.only, options.dtypes, options.modes)
    for row in compile_all(chosen, options.arch, options.share, options.seed, Known(options.known)):
        print(row, flush=True)
        rows.append(row)
        if options.json:
            # After each program: a run of hours may be cut short.
            write_json(options.json, rows)
    line, ok = summary(rows)
    print(line)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
