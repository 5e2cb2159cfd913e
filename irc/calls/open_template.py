"""A template of plans with the code of its kernels: written once, or for each size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from irc.dialects.size import UnboundSizeError, lowest
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import unproven
from irc.plan.load import LoadedPlan
from irc.plan.template.template import PlanTemplate
from irc.plugin import find_backend

Values: TypeAlias = Mapping[str, int]
"""A number for each symbol."""

ONCE, MAX_DOUBLED = 64, 16
"""The greatest sizes of a template are widened in such parts, doubled so often at most."""


class OpenBackend(Protocol):
    """A backend of which some kernels take their sizes when they run."""

    def emit_plan_sources(self, kernels: Sequence[KernelOp]) -> dict[str, str]:
        """Return one file per kernel."""
        ...

    def run_time_sizes(self, kernel: KernelOp, most: Mapping[str, int]) -> str | None:
        """Return why a kernel cannot take its sizes when it runs; None where it can."""
        ...


@dataclass
class Work:
    """What has been done for a program of open sizes.

    Attributes:
        planned: how often the passes ran.
        bound: how often numbers were put into a template.
        emitted: kernels that were written for numbers, again and again for each size.
        shared: kernels that were written once for all sizes.
        reasons: why plans have no common form, or a kernel takes no sizes at run time.
    """

    planned: int = 0
    bound: int = 0
    emitted: int = 0
    shared: int = 0
    reasons: list[str] = field(default_factory=list[str])

    def note(self, reason: str) -> None:
        """Keep a reason, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)


class OpenTemplate:
    """A template, and the code of its kernels: once where it serves all sizes.

    Attributes:
        template: the plan.
        texts: the files of kernels that serve all sizes.
        taking: the kernels that take sizes when they run.
        reasons: by kernel, why others are made for each size.
    """

    def __init__(self, template: PlanTemplate, most: Mapping[str, int], work: Work) -> None:
        self.template = template
        self._most = most
        self._work = work
        self._backend = cast("OpenBackend", find_backend(template.backend))
        self.texts: dict[str, bytes] = {}
        self.emit()

    def emit(self, full: Values | None = None) -> None:
        """Write the kernels that serve all sizes of the span: they are proven for those.

        Args:
            full: the sizes of a call, extended; quotients of them may lie beyond the span.
        """
        before = len(self.texts)
        self.texts = {}
        self.reasons: dict[int, str] = {}
        self._low = dict(self.template.span.low)
        self._high: dict[str, int] = {}
        with lowest(self._low):
            for index, kernel in enumerate(self.template.kernels):
                if kernel.symbols:
                    most = self._proven(kernel.kernel, full or {})
                    reason = self._backend.run_time_sizes(kernel.kernel, most)
                    if reason is not None:
                        self.reasons[index] = reason
                        continue
                self.texts.update(self._text(kernel.kernel))
        kernels = enumerate(self.template.kernels)
        self.taking = frozenset(i for i, k in kernels if k.symbols and i not in self.reasons)
        for index, reason in self.reasons.items():
            name = self.template.kernels[index].like.sym_name.data
            self._work.note(f"{name} is compiled for each size: {reason}")
        self._work.shared += len(self.texts) - before

    def _proven(self, kernel: KernelOp, full: Values) -> Mapping[str, int]:
        """Return up to which sizes a kernel stays inside its buffers, as far as it can be shown.

        A trace that sets no bound (a table of positions is as long as it is) leaves the span's and
        those of a call: none goes beyond them. They are widened as far as that is proven, so that
        few calls have kernels written again.
        """
        high = {name: max(n, full.get(name, n)) for name, n in self.template.span.high.items()}

        def most(scale: int) -> dict[str, int]:
            wider = {name: n * scale // ONCE for name, n in high.items()}
            return wider | {name: min(n, wider.get(name, n)) for name, n in self._most.items()}

        try:
            if unproven(kernel, self._most) is None or unproven(kernel, most(ONCE)) is not None:
                return self._most
            scales = range(ONCE, ONCE << MAX_DOUBLED)
            failing = bisect_left(scales, 1, key=lambda s: unproven(kernel, most(s)) is not None)
        except UnboundSizeError:
            return self._most
        proven = most(scales[failing - 1])
        for name in kernel.symbols:
            self._high[name] = min(proven[name], self._high.get(name, proven[name]))
        return proven

    def at(self, full: Values) -> LoadedPlan:
        """Return the plan for some sizes, extended."""
        beyond = any(full[name] > high for name, high in self._high.items())
        if beyond or any(full[name] < low for name, low in self._low.items()):
            self.emit(full)
        self._work.bound += 1
        texts = dict(self.texts)
        for index in self.reasons:
            texts.update(self._text(self.template.kernels[index].at(full)))
            self._work.emitted += 1
        return LoadedPlan(self.template.at(full, self.taking), texts, b"")

    def _text(self, kernel: KernelOp) -> dict[str, bytes]:
        sources = self._backend.emit_plan_sources([kernel])
        return {f"kernels/{name}": text.encode() for name, text in sources.items()}
