"""Plans of a program whose sizes are open: one template, and where there is none, a plan per size.

:class:`OpenPlans` is asked for the plan for some sizes. The first time it makes plans at witnesses
near them (:mod:`irc.plan.template`), later it puts numbers in. Sizes outside those that a template
was checked for are planned once to check it there too. Where plans differ in more than numbers, the
sizes get a plan of their own, and the reason is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, TypeAlias

from xdsl.utils.exceptions import VerifyException

from irc.calls.noted import Watch, note_graph
from irc.calls.open_template import OpenTemplate, Values, Work
from irc.calls.trial_bytes import FEW_BYTES, refusal, trial_bytes
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.ops.infer import ShapeError
from irc.pipeline import Options, lower, run_passes
from irc.pipeline.reproducer import sources_of
from irc.plan.build import build_plan
from irc.plan.load import LoadedPlan
from irc.plan.schema import Plan
from irc.plan.template.template import PlanTemplate, Witness, plan_template
from irc.plan.template.unify import DifferentError
from irc.plan.template.witnesses import witnesses
from irc.plugin import builtin_pass, find_backend
from irc.program import Program

Check: TypeAlias = Callable[[LoadedPlan, Program], str | None]
"""Runs a plan and the program that it is of, and says how they differ."""

__all__ = ["Check", "OpenPlans", "OpenTemplate", "Sizes", "Values", "Work"]

LEAST = 2
"""Sizes below this are never a template's: 1 broadcasts, and 0 makes tensors empty."""

MAX_ATTEMPTS = 3
"""So often a template is looked for, near other sizes; then plans are per size."""

LARGER = 8
"""A template is checked up to so many times the first sizes, if it can be."""


REFUSALS = (IrcError, InternalError, ShapeError, VerifyException)
"""What planning raises at sizes that a program cannot have after all: a trace need not ask that
what torch only checks when it runs (indices that broadcast) agrees."""

OPEN = "sizes left open"
"""What is noted of a plan that follows from a template."""

PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of a trial are divided by these, one after another, until it takes little memory."""


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


@dataclass(frozen=True)
class Trial:
    """A plan that is to be run and compared with its program.

    Attributes:
        values: their sizes.
        loaded: the plan.
        program: at level flow.
        num_bytes: what it takes.
    """

    values: Values
    loaded: LoadedPlan
    program: Program
    num_bytes: int


class OpenPlans:
    """Gives the plan of a program for any sizes that its trace admits.

    Args:
        sizes: what the trace says.
        program_at: translates the traced graph for numbers.
        options: of the pipeline; one device.
        check: given where the trace means the same where a size is 1 (torch's does not). Small
            sizes are then checked by running the template, not by comparing it with their own
            plans, which have other decisions: there a dim of 1 is dropped, a table a literal.
    """

    def __init__(
        self,
        sizes: Sizes,
        program_at: Callable[[Values], Program],
        options: Options,
        *,
        check: Check | None = None,
    ) -> None:
        self.work = Work()
        self.templates: list[OpenTemplate] = []
        self._check = check
        self._least = LEAST if check is None else 1
        self._sizes = sizes
        self.program_at = program_at
        self._options = replace(options, any_rows=True)
        self._attempts = 0
        self._failed = False
        self._source, self._watch = "", Watch()
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

    def extended(self, values: Values) -> dict[str, int]:
        """Return numbers with those of quotients."""
        return self._sizes.extended(values)

    def opened(self, values: Values) -> OpenTemplate | None:
        """Return the template that is good for some sizes, made if there is none; None without.

        Raises:
            IrcError: what the passes raise.
        """
        with self._lock:
            self.at(values)
            full = self._sizes.extended(values)
            fitting = (each for each in self.templates if each.template.span.holds(full))
            return next(fitting, None)

    def _beyond(self, values: Values, full: Values) -> LoadedPlan:
        """Return the plan for sizes that no template was checked for."""
        own: Witness | None = None
        if self.templates or self._check is None:
            own = self._witness(values)
            for compiled in self.templates:
                reason = compiled.template.agrees(own)
                if reason is None:
                    return compiled.at(full)
                self.work.note(reason)
        opened = self._template(values, own) if self._may_have_one(full) else None
        if opened is None and self._failed and self._sizes.tie_equal(values):
            kept = {name: values[name] for name in self._sizes.places if name in values}
            return self._beyond(kept, self._sizes.extended(kept))
        # Kept when it has passed what strict=True asks: a later call runs it unasked.
        if opened is None or not opened.template.span.holds(full):
            loaded = self._alone(own or self._witness(values))
        else:
            loaded = opened.at(full)
            self._note(loaded.plan, [each.like for each in opened.template.kernels], OPEN)
        if opened is not None:
            self.templates.append(opened)
        return loaded

    def _note(self, plan: Plan, kernels: Iterable[KernelOp], sizes: str) -> None:
        note_graph(self._watch, self._source, plan, kernels, self._options, sizes=sizes)

    def _may_have_one(self, full: Values) -> bool:
        if not hasattr(find_backend(self._options.backend), "run_time_sizes"):
            self.work.note(f"kernels of backend '{self._options.backend}' are for fixed sizes")
            return False
        return self._attempts < MAX_ATTEMPTS and all(n >= self._least for n in full.values())

    def _template(self, values: Values, own: Witness | None) -> OpenTemplate | None:
        """Make a template near some sizes, and check it at them and far from them."""
        self._attempts += 1
        chosen = witnesses(values, self._sizes.admits, extended=self._sizes.extended)
        if len(chosen) < 4:
            self.work.note("too few sizes are admitted to see how a plan follows from them")
            return None
        try:
            seen = [self._witness(each) for each in chosen]
        except REFUSALS as error:
            self._failed = True
            self.work.note(str(error))
            return None
        self._failed = False
        try:
            template = plan_template(seen, self._options.backend)
        except DifferentError as error:
            self.work.note(str(error))
            return None
        if own is not None and (reason := template.agrees(own)) is not None:
            self.work.note(reason)
        self._widen(template, _admitted_large(values, self._sizes.admits))
        if self._check is None:
            self._widen(template, [each for each in _small(values) if self._sizes.admits(each)])
        compiled = OpenTemplate(template, self._sizes.most, self.work)
        if self._check is not None:
            self._lower(compiled, chosen[0], self._check)
        return compiled

    def _lower(self, compiled: OpenTemplate, near: Values, check: Check) -> None:
        """Let a template stand for small sizes where it computes what the program says there."""
        span = compiled.template.span
        least = {name: self._admitted(near, name) for name in near}
        corner = {name: n for name, n in least.items() if n < span.low[name]}
        if not corner:
            return
        apart = [{name: n} for name, n in corner.items()] if len(near) > 1 else []
        small = [each for each in (corner, *apart) if self._sizes.admits({**near, **each})]
        before = dict(span.low)
        # A quotient that was one number at all witnesses stands in the template as that number,
        # perhaps as the length of a loop: at others it would write beyond its buffers.
        for name, n in before.items():
            others = [self._sizes.extended({**near, **each})[name] for each in small]
            if n == span.high[name] and any(other != n for other in others):
                self.work.note(f"it was not tried below: plans were made at {name} = {n} alone")
                return
        for each in small:
            for name, n in self._sizes.extended({**near, **each}).items():
                span.low[name] = min(span.low[name], n)
        for each in small:
            trial = self._trial(compiled, {**near, **each}, {**near, **least, **each})
            if isinstance(trial, str):
                self.work.note(trial)
                span.low = before
                # Plans can still be compared, where none is run.
                fewest = [v for v in _small(near) if self._sizes.admits(v)]
                self._widen(compiled.template, fewest)
                compiled.emit()
                return
            reason = check(trial.loaded, trial.program)
            if reason is not None:
                self.work.note(f"the template is wrong where {_said(trial.values)}: {reason}")
                span.low = before
                compiled.emit()
                return

    def _trial(self, compiled: OpenTemplate, values: Values, least: Values) -> Trial | str:
        """Return a template and the program at sizes, smaller ones where those take much memory.

        Args:
            compiled: its span reaches to the least sizes.
            values: what is tried first.
            least: no size goes below this.

        Returns:
            Why there is no trial, where none is small enough.
        """
        low, best = compiled.template.span.low, None
        for by in PARTS:
            chosen = {name: max(n // by, least[name]) for name, n in values.items()}
            full = self._sizes.extended(chosen)
            if not self._sizes.admits(chosen) or any(full[name] < n for name, n in low.items()):
                continue
            try:
                loaded, program = compiled.at(full), self.program_at(chosen)
            except REFUSALS as error:
                return f"there is no program where {_said(chosen)}: {error}"
            trial = Trial(chosen, loaded, program, trial_bytes(loaded.plan, program.module))
            if best is None or trial.num_bytes < best.num_bytes:
                best = trial
            if best.num_bytes <= FEW_BYTES or chosen == {name: least[name] for name in chosen}:
                break
        assert best is not None, "the first sizes are admitted"
        reason = refusal(best.num_bytes, best.program.module)
        return f"it was not tried where {_said(best.values)}: {reason}" if reason else best

    def _admitted(self, near: Values, name: str) -> int:
        """Return the least number of a size that the trace admits beside others."""
        choices = (
            n for n in range(self._least, near[name]) if self._sizes.admits({**near, name: n})
        )
        return next(choices, near[name])

    def _widen(self, template: PlanTemplate, candidates: list[Values]) -> None:
        """Check a template at the first sizes of some for which it holds; two are tried."""
        for far in candidates[:2]:
            try:
                reason = template.agrees(self._witness(far))
            except REFUSALS as error:
                reason = f"there is no program where {_said(far)}: {error}"
            if reason is None:
                return
            self.work.note(reason)

    def _witness(self, values: Values) -> Witness:
        self.work.planned += 1
        program = self.program_at(values)
        self._source, self._watch = program.source, Watch()
        told = self._watch if self._options.record is not None else None
        lower(program, self._options, told, is_placed=False)
        return Witness.of(self._sizes.extended(values), program.module)

    def _alone(self, witness: Witness) -> LoadedPlan:
        """Return the plan of one witness, as it is."""
        run_passes(witness.module, [builtin_pass("plan-memory")()])
        plan = build_plan(witness.module, backend=self._options.backend)
        self._note(plan, witness.kernels, "")
        sources = sources_of(witness.module, self._options.backend)
        self.work.emitted += len(sources)
        return LoadedPlan(plan, {f"kernels/{n}": t.encode() for n, t in sources.items()}, b"")


def _said(values: Values) -> str:
    return ", ".join(f"{name} = {n}" for name, n in values.items())


def _small(values: Values) -> list[Values]:
    """Return assignments of small numbers, the smallest first."""
    apart = [{name: low + i for i, name in enumerate(values)} for low in (2, 3, 5, 8, 16)]
    # Parts of the first call's have its divisors, which a trace may ask for.
    parts = [{name: max(n // by, LEAST) for name, n in values.items()} for by in (8, 4, 3, 2)]
    return [dict.fromkeys(values, LEAST), *apart, *parts]


def _admitted_large(values: Values, admits: Callable[[Values], bool]) -> list[Values]:
    """Return large assignments that are admitted, those of the largest tensors first.

    A size that has to stay near the first call's number does not keep the others there.
    """
    admitted: list[Values] = []
    for each in _large(values):
        free = {name: n for name, n in each.items() if admits({**values, name: n})}
        chosen = each if admits(each) else {**values, **free}
        if free and admits(chosen) and chosen not in admitted:
            admitted.append(chosen)
    return sorted(admitted, key=lambda each: -prod(each.values()))


def _large(values: Values) -> list[Values]:
    """Return assignments of numbers above the first call's, the largest first."""
    return [
        {
            name: n * max(1, 16 // n) * times + i * apart
            for i, (name, n) in enumerate(values.items())
        }
        for times in (LARGER, 4, 2, 1)
        for apart in (1, 0)
    ]
