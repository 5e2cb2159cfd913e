"""What a run reports: who ran, how long, and whether the numbers are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from irc.errors import printable
from irc.plan import json_text
from irc.runtime.compare import Comparison


@dataclass(frozen=True)
class TrainingReport:
    """Some steps of training.

    Attributes:
        losses: of each step, as text: one may be no number.
        bytes: by rank, what it holds: what is stored (of a plan of several programs, by kind), what
            functions work in, and the most that its process had, libraries included.
    """

    losses: tuple[str, ...]
    bytes: tuple[Mapping[str, int], ...]

    def memory(self, rank: int) -> str:
        """Say what a rank holds."""
        return ", ".join(f"{n / 2**20:.2f} MiB {what}" for what, n in self.bytes[rank].items())

    def __str__(self) -> str:
        return f"{len(self.losses)}, loss {' -> '.join(self.losses)}"


@dataclass(frozen=True)
class RunReport:
    """The outcome of a run; its text is a small table.

    Attributes:
        mesh: of the plan, empty for one device.
        threads: of each process.
        seconds: of one call, by rank.
        predicted_s: by the cost model.
        cluster: that it was predicted for; empty for this machine.
        training: of a plan of training, what its steps were.
        comparison: with eager, where it was asked for and the plan has the model's IR.
        notes: further lines.
        links: messages were as slow as on the links of the cluster.
    """

    mesh: str
    threads: int
    seconds: tuple[float, ...]
    predicted_s: float | None = None
    comparison: Comparison | None = None
    cluster: str = ""
    training: TrainingReport | None = None
    notes: tuple[str, ...] = ()
    links: bool = False

    @property
    def ok(self) -> bool:
        """False where the numbers are wrong."""
        return self.comparison is None or self.comparison.ok

    @property
    def exit_code(self) -> int:
        """The status for the shell."""
        return 0 if self.ok else 1

    def __str__(self) -> str:
        ranks = len(self.seconds)
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        lines = [f"mesh       {self.mesh or 'one device'}"]
        lines.append(f"ranks      {ranks}, {threads} each")
        for rank, seconds in enumerate(self.seconds):
            held = "" if self.training is None else f" a step, {self.training.memory(rank)}"
            lines.append(f"rank {rank:<6}{show_seconds(seconds)}{held}")
        if self.training is not None:
            lines.append(f"steps      {self.training}")
        if self.predicted_s is not None:
            ratio = self.predicted_s / max(self.seconds)
            how = f"on {self.cluster}" if self.cluster else f"({ratio:.2f} of the slowest rank)"
            lines.append(f"predicted  {show_seconds(self.predicted_s)} {how}")
        if self.links:
            lines.append(f"links      messages take as long as on {self.cluster}")
        lines += self.notes
        if self.comparison is not None:
            comparison = self.comparison
            where = f" in {printable(comparison.where)}" if comparison.where else ""
            lines.append(
                f"eager      max abs error {comparison.max_abs:.1e}, "
                f"relative {comparison.relative:.1e}{where} "
                f"(eager's own {comparison.eager_relative:.1e})"
            )
            lines.append("OK" if comparison.ok else "FAIL")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Print for another process."""
        return json_text.dump(json_text.encode(self))

    @staticmethod
    def from_json(text: str) -> RunReport:
        """Read what :meth:`to_json` wrote."""
        return json_text.decode(RunReport, json_text.parse(text, "report"), "report")


def show_seconds(seconds: float) -> str:
    """Print a time with a fitting unit.

    >>> show_seconds(0.00123)
    '1.23 ms'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
