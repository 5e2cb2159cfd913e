"""A model whose values decide sizes, branches or trips: its regions compiled, the rest op by op.

It is the host program that ``irc compile`` writes for such a file, in memory: one with open sizes
for as many calls as it can serve, and others for the sizes of a call that it does not hold for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from irc.errors import IrcError
from irc.frontends.onnx.read import Source
from irc.onnx.host_file import host_file
from irc.pipeline import Options
from irc.runtime.host import HostExecutor

Call: TypeAlias = Callable[[Sequence[Any]], list[Any]]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
MAX_PROGRAMS = 4
"""Host programs with open sizes that are tried for the sizes of a call."""


@dataclass
class HostModels:
    """The host programs of one model.

    Args:
        source: the model, with the types of its inputs as the file states them.
        threads: of kernels.

    Attributes:
        programs: those with open sizes.
        notes: why sizes needed a program of their own, or the interpreter runs all ops.
    """

    source: Source
    threads: int | None = None
    programs: list[HostExecutor] = field(default_factory=list[HostExecutor])
    notes: list[str] = field(default_factory=list[str])
    _no_more: bool = False

    def open_for(
        self, shapes: Shapes, values: Sequence[Any], *, more_than: int = -1
    ) -> HostExecutor | None:
        """Return a program with open sizes that serves a call; None where there is none.

        Args:
            shapes: of the call's tensors, by name.
            values: arrays, lists or None, in order.
            more_than: it has to have more open sizes than this.
        """
        for program in self.programs:
            if program.refused(values) is None:
                return program
        if len(self.programs) >= MAX_PROGRAMS or (self._no_more and more_than >= 0):
            return None
        executor = self._compiled(self.source, shapes)
        if executor is None or len(executor.plan.facts.symbols) <= more_than:
            self._no_more = more_than >= 0
            return None
        if (reason := executor.refused(values)) is not None:
            self._note(reason)
            return None
        self.programs.append(executor)
        return executor

    def fixed(self, source: Source) -> HostExecutor | None:
        """Return a program for the sizes that a model's types state; None where there is none."""
        return self._compiled(source, None)

    def lines(self) -> list[str]:
        """Say what runs op by op, and why."""
        lines = [
            f"op by op: {name}: {region.reason}"
            for program in self.programs
            for name, region in program.plan.facts.regions.items()
            if region.reason
        ]
        return [*dict.fromkeys(lines), *self.notes]

    def _compiled(self, source: Source, shapes: Shapes | None) -> HostExecutor | None:
        try:
            file = host_file(source, {}, Options(), shapes)
        except IrcError as error:
            self._note(str(error))
            return None
        if file is None:  # nothing of it is the host's: kernels run alone
            return None
        return HostExecutor(file.plan, file.plan.weights, num_threads=self.threads)

    def _note(self, reason: str) -> None:
        if reason not in self.notes:
            self.notes.append(reason)
