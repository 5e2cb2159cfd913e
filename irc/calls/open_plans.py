"""Plans of a program whose sizes are open: one template, and where there is none, a plan per size.

:class:`OpenPlans` is asked for the plan for some sizes. The first time it makes plans at witnesses
near them (:mod:`irc.plan.template`), later it puts numbers in. Sizes outside those that a template
was checked for are planned once to check it there too. Where plans differ in more than numbers, the
sizes get a plan of their own, and the reason is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, cast

from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.pipeline import Options, lower
from irc.plan.build import place, unplaced
from irc.plan.load import LoadedPlan
from irc.plan.template.template import PlanTemplate, Witness, plan_template
from irc.plan.template.unify import DifferentError
from irc.plan.template.witnesses import witnesses
from irc.plugin import find_backend
from irc.program import Program

Values: TypeAlias = Mapping[str, int]
"""A number for each symbol."""

LEAST = 2
"""Sizes below this are never a template's: 1 broadcasts, and 0 makes tensors empty."""

MAX_ATTEMPTS = 3
"""So often a template is looked for, near other sizes; then plans are per size."""

LARGER = 8
"""A template is checked up to so many times the first sizes, if it can be."""


class Sizes(Protocol):
    """What a trace says of the sizes that it left open."""

    @property
    def places(self) -> Mapping[str, object]:
        """Where the number of each symbol comes from."""
        ...

    @property
    def most(self) -> Mapping[str, int]:
        """The greatest number of each symbol that has one."""
        ...

    def tie_equal(self, values: Values) -> bool:
        """Take symbols for one whose numbers are equal in a call; False where there are none."""
        ...

    def admits(self, values: Values) -> bool:
        """True where the trace holds for the sizes."""
        ...

    def extended(self, values: Values) -> dict[str, int]:
        """Return the numbers of the symbols, and of what else sizes are made of: quotients."""
        ...


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


class OpenPlans:
    """Gives the plan of a program for any sizes that its trace admits.

    Args:
        sizes: what the trace says.
        program_at: translates the traced graph for numbers.
        options: of the pipeline; one device.
    """

    def __init__(
        self, sizes: Sizes, program_at: Callable[[Values], Program], options: Options
    ) -> None:
        self.work = Work()
        self.templates: list[_Compiled] = []
        self._sizes = sizes
        self._program_at = program_at
        self._options = replace(options, any_rows=True)
        self._attempts = 0
        self._failed = False
        self._lock = threading.RLock()

    def at(self, values: Values) -> LoadedPlan:
        """Return the plan for some sizes.

        Raises:
            IrcError: what the passes raise.
        """
        with self._lock:
            full = self._sizes.extended(values)
            for compiled in self.templates:
                if compiled.template.span.holds(full):
                    return compiled.at(full)
            return self._beyond(values, full)

    def _beyond(self, values: Values, full: Values) -> LoadedPlan:
        """Return the plan for sizes that no template was checked for."""
        witness = self._witness(values)
        for compiled in self.templates:
            reason = compiled.template.agrees(witness)
            if reason is None:
                return compiled.at(full)
            self.work.note(reason)
        made = self._template(values, full, witness) if self._may_have_one(full) else None
        if made is None and self._failed and self._sizes.tie_equal(values):
            kept = {name: values[name] for name in self._sizes.places if name in values}
            return self._beyond(kept, self._sizes.extended(kept))
        if made is None or not made.template.span.holds(full):
            return self._alone(witness)
        return made.at(full)

    def _may_have_one(self, full: Values) -> bool:
        if self._options.backend != "cpu":
            self.work.note(f"kernels of backend '{self._options.backend}' are for fixed sizes")
            return False
        return self._attempts < MAX_ATTEMPTS and all(n >= LEAST for n in full.values())

    def _template(self, values: Values, full: Values, own: Witness) -> _Compiled | None:
        """Make a template near some sizes, and check it at them and far from them."""
        self._attempts += 1
        halved = len(full) > len(values)
        chosen = witnesses(values, self._sizes.admits, halved=halved)
        if len(chosen) < 4:
            self.work.note("too few sizes are admitted to see how a plan follows from them")
            return None
        try:
            seen = [self._witness(each) for each in chosen]
        except (IrcError, InternalError) as error:
            self._failed = True
            self.work.note(str(error))
            return None
        self._failed = False
        try:
            made = plan_template(seen, self._options.backend)
        except DifferentError as error:
            self.work.note(str(error))
            return None
        if (reason := made.agrees(own)) is not None:
            self.work.note(reason)
        for candidates in (_small(values), _large(values)):
            self._widen(made, [each for each in candidates if self._sizes.admits(each)])
        compiled = _Compiled(made, self._sizes.most, self.work)
        self.templates.append(compiled)
        return compiled

    def _widen(self, made: PlanTemplate, candidates: list[Values]) -> None:
        """Check a template at the first sizes of some for which it holds; two are tried."""
        for far in candidates[:2]:
            reason = made.agrees(self._witness(far))
            if reason is None:
                return
            self.work.note(reason)

    def _witness(self, values: Values) -> Witness:
        self.work.planned += 1
        program = self._program_at(values)
        lower(program, self._options)
        module = program.module
        plan = unplaced(module)
        kernels = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, KernelOp)}
        in_order = tuple(kernels[kernel.name] for kernel in plan.kernels)
        return Witness(self._sizes.extended(values), plan, in_order)

    def _alone(self, witness: Witness) -> LoadedPlan:
        """Return the plan of one witness, as it is."""
        plan = place(witness.plan, backend=self._options.backend)
        sources = find_backend(self._options.backend).emit_plan_sources(witness.kernels)
        self.work.emitted += len(sources)
        return LoadedPlan(plan, {f"kernels/{n}": t.encode() for n, t in sources.items()}, b"")


class _Compiled:
    """A template, and the code of its kernels: once where it serves all sizes."""

    def __init__(self, template: PlanTemplate, most: Mapping[str, int], work: Work) -> None:
        self.template = template
        self._work = work
        self._backend = cast("OpenBackend", find_backend(template.backend))
        self._texts: dict[str, bytes] = {}
        self._taking: set[int] = set()
        for index, kernel in enumerate(template.kernels):
            reason = None
            if kernel.symbols:
                reason = self._backend.run_time_sizes(kernel.kernel, most)
            if reason is not None:
                work.note(f"{kernel.like.sym_name.data} is compiled for each size: {reason}")
                continue
            self._texts.update(self._text(kernel.kernel))
            if kernel.symbols:
                self._taking.add(index)
        work.shared += len(self._texts)

    def at(self, full: Values) -> LoadedPlan:
        """Return the plan for some sizes, extended."""
        self._work.bound += 1
        texts = dict(self._texts)
        for index, kernel in enumerate(self.template.kernels):
            if kernel.symbols and index not in self._taking:
                texts.update(self._text(kernel.at(full)))
                self._work.emitted += 1
        return LoadedPlan(self.template.at(full, frozenset(self._taking)), texts, b"")

    def _text(self, kernel: KernelOp) -> dict[str, bytes]:
        sources = self._backend.emit_plan_sources([kernel])
        return {f"kernels/{name}": text.encode() for name, text in sources.items()}


def _small(values: Values) -> list[Values]:
    """Return assignments of small numbers, the smallest first."""
    apart = [{name: low + i for i, name in enumerate(values)} for low in (2, 3, 5, 8, 16)]
    return [dict.fromkeys(values, LEAST), *apart]


def _large(values: Values) -> list[Values]:
    """Return assignments of numbers above the first call's, the largest first."""
    return [
        {name: max(n, 16) * times + i for i, (name, n) in enumerate(values.items())}
        for times in (LARGER, 4, 2, 1)
    ]
