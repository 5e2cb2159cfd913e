"""What a run on a GPU found, and its file."""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.gpu import compiling


@dataclass
class Record:
    """What a run found; it is written again after each item, so that nothing is lost.

    Attributes:
        device: the GPU's name.
        target: what kernels are mapped for.
        date: of the run.
        facts: versions and figures of the machine.
        slices: rows by slice.
        ratios: the time of torch's best over irc's, by race.
        wrong: what is not right.
        at: the item that was begun last: slice, number and name.
        path: of the file; None keeps it in memory.
    """

    device: str
    target: str
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    slices: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    ratios: dict[str, float] = field(default_factory=dict[str, float])
    wrong: list[str] = field(default_factory=list[str])
    at: tuple[str, int, str] = ("", -1, "")
    path: Path | None = None

    def add(self, name: str, row: Any) -> None:
        """Print a row and keep it."""
        print(row, flush=True)
        kept = row if isinstance(row, str) else _compact(row)
        self.slices.setdefault(name, []).append(kept)

    def fail(self, name: str, what: str, row: str = "") -> None:
        """Note something that is wrong, and why."""
        self.wrong.append(what)
        if row:
            self.add(name, row)

    def save(self) -> None:
        """Write the file, where there is one."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            plain = {k: v for k, v in asdict(self).items() if k != "path"}
            fresh = self.path.with_suffix(".part")
            fresh.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
            fresh.replace(self.path)

    def take(self, path: Path) -> None:
        """Add what another process found."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # it ended before it had anything to say
        for name, rows in record["slices"].items():
            self.slices.setdefault(name, []).extend(rows)
        self.facts |= record["facts"]
        self.ratios |= record["ratios"]
        self.wrong += record["wrong"]
        slice_, number, name = record["at"]
        self.at = (slice_, number, name)

    @property
    def geomean(self) -> float | None:
        """The geometric mean of the races; None where nothing was raced."""
        logs = [math.log(ratio) for ratio in self.ratios.values() if ratio > 0]
        return math.exp(sum(logs) / len(logs)) if logs else None


def _compact(row: Any) -> dict[str, Any]:
    return row.compact() if isinstance(row, compiling.Row) else asdict(row)


def machine_facts() -> dict[str, Any]:
    """Return versions, and on a GPU what it is and what its driver is."""
    import triton

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["multiprocessors"] = properties.multi_processor_count
        facts["memory_gib"] = round(properties.total_memory / 2**30, 1)
    if tool := shutil.which("nvidia-smi"):
        query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
        done = subprocess.run(
            [tool, f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        facts["driver"] = done.stdout.strip()
    return facts
