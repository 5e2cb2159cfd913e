"""Slice ``compile``: every kernel of the zoo, ahead of time for each target; needs no GPU."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from irc.backends.triton import emit
from irc.backends.triton.build import compile_text
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from tests.gpu.known import Compiled, Known, canonical
from tests.gpu.programs import Case, kernels


@dataclass
class Row:
    """The kernels of a program on one target.

    Attributes:
        case: the program.
        target: ``sm_90``.
        total: kernels of the program.
        compiled: those that no program before had.
        error: why there are none.
    """

    case: str
    target: str
    total: int = 0
    compiled: list[Compiled] = field(default_factory=list)
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"{self.case:<38}{self.target:<8}{self.error}"
        compiled = self.compiled
        spilled = [f"{one.kernel} {one.spill_bytes} B" for one in compiled if one.spill_bytes]
        failed = [f"{one.kernel}: {one.error}" for one in compiled if one.error]
        return (
            f"{self.case:<38}{self.target:<8}{self.total:>7}{len(compiled):>9}"
            f"{max((one.registers for one in compiled), default=0):>10}"
            f"{max((one.shared_bytes for one in compiled), default=0) // 1024:>8} K"
            f"{len(spilled):>7}{len(failed):>9}  {'; '.join([*failed, *spilled])}"
        ).rstrip()

    def compact(self) -> dict[str, Any]:
        """Return the row for a file: only kernels that spill or fail are named."""
        named = [asdict(one) for one in self.compiled if one.spill_bytes or one.error]
        return {
            "case": self.case,
            "target": self.target,
            "kernels": self.total,
            "distinct": len(self.compiled),
            "registers": max((one.registers for one in self.compiled), default=0),
            **({"named": named} if named else {}),
            **({"error": self.error} if self.error else {}),
        }


LATE = "left out: time is up"
HEADER = (
    f"{'program':<38}{'target':<8}{'kernels':>7}{'distinct':>9}{'registers':>10}{'shared':>10}"
    f"{'spills':>7}{'failures':>9}"
)


@dataclass(frozen=True)
class Work:
    """What is compiled: the programs, the targets, and of each program a share of its kernels.

    ``store`` names a file in which reports are kept: what is in it is not compiled again.
    """

    cases: Sequence[Case]
    targets: Sequence[str]
    share: float = 1.0
    seed: int = 0
    jobs: int = 1
    seconds: float = float("inf")
    store: Path | None = None


def compile_all(work: Work) -> Iterator[Row]:
    """Yield a row for each program and target; equal kernels are compiled once.

    Programs that do not begin before ``work.seconds`` are over give a row that says so.
    """
    known = Known(version(), work.store)
    seen: set[str] = set()
    started = time.monotonic()
    spawn = get_context("spawn")
    with ProcessPoolExecutor(work.jobs, mp_context=spawn) as pool:
        for case in work.cases:
            if time.monotonic() - started > work.seconds:
                yield from (Row(str(case), t, error=LATE) for t in work.targets)
                continue
            try:
                for target, ops in kernels(case, work.targets):
                    fresh = _texts(ops, target, work, known, seen)
                    yield Row(str(case), target, len(ops), _reports(pool, fresh, target, known))
            except (IrcError, ImportError) as error:
                line = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                yield from (Row(str(case), t, error=line) for t in work.targets)


def version() -> str:
    """Return the compiler's name and version."""
    import triton

    return f"triton {triton.__version__}"


def _texts(
    ops: Iterable[KernelOp], target: str, work: Work, known: Known, seen: set[str]
) -> list[tuple[str, str, str]]:
    """Return name, key and canonical text of the kernels that no program before had."""
    fresh: list[tuple[str, str, str]] = []
    for kernel in ops:
        name = kernel.sym_name.data
        text = canonical(emit(kernel), name)
        key = known.key(target, text)
        chosen = random.Random(f"{work.seed} {key}").random() < work.share
        if key not in seen and chosen:
            fresh.append((name, key, text))
        seen.add(key)
    return fresh


def _reports(
    pool: ProcessPoolExecutor, fresh: Sequence[tuple[str, str, str]], target: str, known: Known
) -> list[Compiled]:
    arch = int(target.removeprefix("sm_"))
    jobs = {key: (name, text, arch) for name, key, text in fresh if known.get(key) is None}
    for key, report in zip(jobs, pool.map(_compiled, jobs.values()), strict=True):
        known.add(key, report)
    reports = [(name, known.get(key)) for name, key, _ in fresh]
    return [replace(report, kernel=name) for name, report in reports if report is not None]


def _compiled(job: tuple[str, str, int]) -> Compiled:
    name, text, arch = job
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        report = compile_text(text, arch)
    except Exception as error:
        return Compiled(name, error=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return Compiled(name, report.registers, report.spill_bytes, report.shared_bytes)


def summary(rows: Sequence[Row], *, complete: bool = True) -> tuple[str, bool]:
    """Return the last line, and whether everything compiled.

    Args:
        rows: of all programs and targets.
        complete: whether a program that was left out for want of time counts as a failure.
    """
    every = [one for row in rows for one in row.compiled]
    failed = [one for one in every if one.error]
    late = [row for row in rows if row.error == LATE]
    missing = [row for row in rows if row.error and (complete or row.error != LATE)]
    spilled = [one for one in every if one.spill_bytes]
    ok = not failed and not missing
    return (
        f"compile: {len(every)} distinct kernels of {len(rows)} programs and targets,"
        f" at most {max((o.registers for o in every), default=0)} registers,"
        f" {len(spilled)} spill (at most {max((o.spill_bytes for o in spilled), default=0)} B),"
        f" {len(failed)} fail, {len(missing)} programs and targets not compiled"
        f"{f' ({len(late)} left out)' if late else ''}: {'ok' if ok else 'FAILED'}",
        ok,
    )
