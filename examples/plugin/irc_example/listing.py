"""A backend that writes kernels as the text of their loops, in files of a suffix of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from irc.dialects.task import KernelOp


@dataclass(frozen=True)
class ListingBackend:
    """Kernels as text, to be read: plans are written with it, and nothing runs them.

    ``targets`` are the machines that kernels are mapped for, the first by default; each file of
    ``emit_plan_sources`` is called as its kernel and ends in ``extension``.
    """

    name: str = "listing"
    targets: tuple[str, ...] = ("cpu",)
    extension: str = ".loops"

    def emit(self, kernel: KernelOp) -> str:
        """Return the text of one kernel."""
        return f"{kernel}\n"

    def emit_plan_sources(self, kernels: Sequence[KernelOp]) -> dict[str, str]:
        """Return the files of a plan's kernels, by name."""
        return {f"{each.sym_name.data}{self.extension}": self.emit(each) for each in kernels}
