"""What a rehearsal reports: memory and compute of one rank, predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from irc.runtime.report import show_seconds

PEAK = "peak"
CLOSE = 0.1
"""By how much of the prediction a measured peak may lie above it."""


@dataclass(frozen=True)
class FunctionTime:
    """The compute of a function: kernels, library ops and copies, no collectives.

    Attributes:
        name: of it.
        runs: in a whole step.
        predicted_s: of one run, on the devices that the plan is for; None where it has no prices.
        measured_s: of one run here, the mean; None where it did not run.
    """

    name: str
    runs: int
    predicted_s: float | None
    measured_s: float | None


@dataclass(frozen=True)
class ActionTime:
    """The compute of one action.

    Attributes:
        function: in which it is.
        id: of the plan's action.
        name: of the kernel or op.
        runs: that were measured.
        predicted_s: of one run; None where the plan has no price.
        measured_s: of one run, the mean.
        num_bytes: that it reads and writes.
    """

    function: str
    id: str
    name: str
    runs: int
    predicted_s: float | None
    measured_s: float
    num_bytes: int


@dataclass(frozen=True)
class Rehearsal:
    """One rank of a plan, run alone.

    Attributes:
        mesh: of the plan.
        rank: which.
        ranks: how many the plan has.
        cluster: that the plan was priced for.
        device: what it ran on.
        is_host: kernels for another machine were written again for the host.
        layers: equal layers that were left and that there were; None where none was left out.
        micro_batches: that were run, and of a step; None for a plan of one program.
        predicted: bytes by kind.
        measured: bytes by kind; ``beside`` is what libraries allocate in a step.
        resident: bytes by which the process grew, at most; None where the system does not say.
        functions: by name.
        actions: in the order of their first run.
        exposed_s: what the rank waited for collectives and messages, in the step that was run.
        links: collectives and messages took as long as on the links of the cluster.
        notes: further lines.
    """

    mesh: str
    rank: int
    ranks: int
    cluster: str
    device: str
    is_host: bool
    layers: tuple[int, int] | None
    micro_batches: tuple[int, int] | None
    predicted: Mapping[str, int]
    measured: Mapping[str, int]
    resident: int | None
    functions: tuple[FunctionTime, ...]
    actions: tuple[ActionTime, ...]
    exposed_s: float
    links: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the measured peak is above the predicted one, relative to that."""
        predicted = sum(self.predicted.values())
        return sum(self.measured.values()) / predicted - 1 if predicted else 0.0

    @property
    def exit_code(self) -> int:
        """1 where the rank takes clearly more memory than predicted."""
        return 0 if self.gap <= CLOSE else 1

    def as_json(self) -> dict[str, Any]:
        """Return everything, as JSON has it; bytes and seconds."""
        values = asdict(self)
        for name in ("predicted", "measured"):
            values[name] = {**values[name], PEAK: sum(values[name].values())}
        return {**values, "gap": self.gap}

    def __str__(self) -> str:
        for_host = ", kernels written for it from the plan's loops" if self.is_host else ""
        lines = [
            f"rank       {self.rank} of {self.ranks} ({self.mesh or 'one device'}), others fake",
            f"on         {self.device}{for_host}",
        ]
        if self.layers is not None:
            lines.append(f"layers     {self.layers[0]} of {self.layers[1]}, planned alike")
        if self.micro_batches is not None:
            run, count = self.micro_batches
            lines.append(f"run        {run} of {count} micro-batches")
        lines += ["", f"{'memory':<13}{'predicted':>13}{'measured':>13}"]
        for kind in dict.fromkeys((*self.predicted, *self.measured)):
            lines.append(_memory_line(kind, self.predicted.get(kind), self.measured.get(kind)))
        sums = sum(self.predicted.values()), sum(self.measured.values())
        lines.append(f"{_memory_line(PEAK, *sums)}{self.gap:>+9.1%}")
        if self.resident is not None:
            lines.append(_memory_line("resident", None, self.resident))
        where = f"predicted for {self.cluster}" if self.cluster else "predicted"
        lines += ["", f"{'compute':<13}{'runs':>6}  {where:>24}{'measured here':>16}"]
        for each in self.functions:
            predicted, measured = _seconds(each.predicted_s), _seconds(each.measured_s)
            lines.append(f"  {each.name:<11}{each.runs:>6}  {predicted:>24}{measured:>16}")
        kind = "as slow as the cluster's links" if self.links else "in no time"
        lines += ["", f"exposed    {show_seconds(self.exposed_s)} of messages that come {kind}"]
        lines += self.notes
        verdict = "OK" if self.exit_code == 0 else "FAIL"
        lines.append(f"{verdict}: the peak is {self.gap:+.1%} of the prediction")
        return "\n".join(lines)


def _memory_line(kind: str, predicted: int | None, measured: int | None) -> str:
    return f"  {kind:<11}{_mebibytes(predicted):>13}{_mebibytes(measured):>13}"


def _mebibytes(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 2**20:,.2f} MiB"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else show_seconds(seconds)
