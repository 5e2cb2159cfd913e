"""What a reduction has come to, as ``irc reduce`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from irc.pipeline.failure import Failure


@dataclass(frozen=True)
class Small:
    """What a reduction has come to.

    Attributes:
        file: that was written.
        failure: how it fails.
        before: ops of what was given.
        after: ops of what was written.
        tries: of smaller ones.
        is_minimal: False where the time was over before nothing more could be taken away.
        again: a command that shows the failure.
        note: what else there is to say.
    """

    file: Path
    failure: Failure
    before: int
    after: int
    tries: int
    is_minimal: bool
    again: str
    note: str = ""

    def facts(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "file": f"{self.file}",
            "failure": {"kind": self.failure.kind, "message": self.failure.message},
            "ops_before": self.before,
            "ops_after": self.after,
            "tries": self.tries,
            "is_minimal": self.is_minimal,
            "again": self.again,
            "note": self.note,
        }

    def __str__(self) -> str:
        end = "" if self.is_minimal else ", and the time is over: --seconds gives more"
        lines = [
            f"fails     {self.failure}",
            f"ops       {self.before} -> {self.after} ({self.tries} tries{end})",
            f"written   {self.file}",
            f"again     {self.again}",
        ]
        return "\n".join([*lines, *([f"note      {self.note}"] if self.note else [])])
