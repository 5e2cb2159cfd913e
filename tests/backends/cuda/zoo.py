"""Compiles every CUDA kernel of the zoo ahead of time, and prints one table; needs nvcc, no GPU.

    python -m tests.backends.cuda.zoo [--only NAME ...] [--arch 90 80] [--dtypes f32 bf16]
        [--share 0.1] [--json FILE]

A row is a program on one architecture: its kernels, those that no program before had, the most
registers, the spills (listed by name), the most shared memory, failures. Many kernels are one file
to nvcc, whose headers cost more than a kernel. Exit status 1 where a kernel fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from irc.backends import KernelReport
from irc.backends.cuda.build import compile_source
from irc.backends.cuda.file import emit_kernel, shared_bytes
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


def compile_all(
    chosen: Sequence[Case], archs: Sequence[int], share: float = 1.0, seed: int = 0
) -> Iterator[Row]:
    """Yield a row for each program and architecture; equal kernels are compiled once.

    Args:
        chosen: the programs.
        archs: compute capabilities as numbers.
        share: of the distinct kernels, those that are compiled, chosen by their digest.
        seed: of that choice.
    """
    seen: set[str] = set()
    for case in chosen:
        try:
            for target, found in kernels(case, [f"sm_{arch}" for arch in archs]):
                arch = int(target.removeprefix("sm_"))
                fresh = {
                    key: kernel
                    for key, kernel in _keyed(found, arch)
                    if key not in seen and random.Random(f"{seed} {key}").random() < share
                }
                seen |= fresh.keys()
                row = Row(str(case), arch, len(found))
                for batch in _batches(fresh.values()):
                    compile_batch(batch, arch, row)
                yield row
        except IrcError as error:
            yield from (Row(str(case), arch, error=str(error).splitlines()[0]) for arch in archs)


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


def _keyed(found: Iterable[KernelOp], arch: int) -> Iterator[tuple[str, KernelOp]]:
    for kernel in found:
        try:
            text = emit_kernel(kernel, arch)
        except IrcError as error:
            text = str(error)
        own = identifier(kernel.sym_name.data)
        lines = [s for s in text.replace(own, "k").splitlines() if not s.startswith("//")]
        yield hashlib.sha256(f"{arch} {lines}".encode()).hexdigest(), kernel


def _batches(found: Iterable[KernelOp]) -> Iterator[list[KernelOp]]:
    every = list(found)
    yield from (every[i : i + BATCH] for i in range(0, len(every), BATCH))


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--arch", nargs="+", type=int, default=(90, 80))
    parser.add_argument("--dtypes", nargs="+", default=("f32", "bf16"))
    parser.add_argument("--modes", nargs="+", default=())
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    print(HEADER)
    for row in compile_all(
        cases(given.only, given.dtypes, given.modes), given.arch, given.share, given.seed
    ):
        print(row, flush=True)
        rows.append(row)
    line, ok = summary(rows)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(line)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
