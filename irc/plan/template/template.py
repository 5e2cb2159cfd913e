"""One plan for every size, from plans for a few.

A plan is made at *witnesses*: some assignments of numbers to the sizes of a program. What the plans
have in common is the template, with polynomials where their numbers differ; a witness that was not
used to find the polynomials has to agree with it. :meth:`PlanTemplate.at` puts numbers in.

Why that is right. A pass that meets the same decisions at two sizes does the same arithmetic on
them; sizes, strides and offsets come of sums and products, so along one path of decisions each is a
polynomial, and a polynomial of low degree that agrees at the witnesses is the one. What remains are
decisions that fall otherwise at other sizes. Those that are about speed (how a loop is divided)
leave a right plan. Those that a program's meaning depends on (is this dim 1? does this window reach
over the border?) show in its shapes, so torch's trace has noted them and the sizes are refused; and
a template is used only between the smallest and the largest sizes that it was checked for
(:class:`Span`), which catches thresholds. Sizes 0 and 1 broadcast and make tensors empty: they are
never a template's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.size import Dim, Size, symbol, value_of
from irc.dialects.task import KernelOp
from irc.plan.build import grouped
from irc.plan.schema import Buffer, Call, Plan, Step
from irc.plan.steps import Unplaced, steps_on_buffers
from irc.plan.template.fit import Fitter
from irc.plan.template.forms import KernelForm, KernelTemplate, agrees, form_of, kernel_template
from irc.plan.template.preparation import at_every_call, intervals_of, sized_preparation
from irc.plan.template.stack import Stack, stack
from irc.plan.template.unify import DifferentError, evaluate, sizes_in, unify


@dataclass(frozen=True)
class Witness:
    """A plan for some sizes, and its kernels.

    Attributes:
        values: a number for each symbol.
        module: level task, behind ``prepare-weights``.
        plan: of it, not placed.
        kernels: of the plan, in its order.
    """

    values: Mapping[str, int]
    module: ModuleOp
    plan: Unplaced
    kernels: tuple[KernelOp, ...]

    @staticmethod
    def of(values: Mapping[str, int], module: ModuleOp) -> Witness:
        """Return what a module of level task is for some sizes."""
        plan = steps_on_buffers(module)
        kernels = {op.sym_name.data: op for op in module.ops if isinstance(op, KernelOp)}
        return Witness(values, module, plan, tuple(kernels[each.name] for each in plan.kernels))


@dataclass(frozen=True)
class _Form:
    """What of a witness is compared: everything but mappings and source lines."""

    plan: Unplaced
    kernels: tuple[KernelForm, ...]


@dataclass
class Span:
    """Between which numbers of each symbol a template has been checked."""

    low: dict[str, int]
    high: dict[str, int]

    @staticmethod
    def of(values: Sequence[Mapping[str, int]]) -> Span:
        """Return the span of some assignments."""
        names = list(values[0])
        return Span(
            {name: min(v[name] for v in values) for name in names},
            {name: max(v[name] for v in values) for name in names},
        )

    def holds(self, values: Mapping[str, int]) -> bool:
        """True where all numbers lie inside."""
        return all(self.low[n] <= values[n] <= self.high[n] for n in self.low)

    def widen(self, values: Mapping[str, int]) -> None:
        """Take in sizes for which the template was checked."""
        for name in self.low:
            self.low[name] = min(self.low[name], values[name])
            self.high[name] = max(self.high[name], values[name])


@dataclass
class PlanTemplate:
    """A plan whose numbers are polynomials of sizes.

    Attributes:
        form: the plan, not placed.
        kernels: in its order.
        span: the sizes that it was checked for.
        backend: what the kernels are compiled by.
    """

    form: Unplaced
    kernels: tuple[KernelTemplate, ...]
    span: Span
    backend: str
    _common: _Form
    _arena: tuple[int, ...]
    _stack: Stack
    _sized: tuple[int, ...] = field(init=False)
    _steps: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._sized = tuple(i for i, b in enumerate(self.form.buffers) if any(sizes_in(b)))
        self._steps = tuple(i for i, step in enumerate(self.form.steps) if any(sizes_in(step)))

    def agrees(self, witness: Witness) -> str | None:
        """Return None where the template at a witness's sizes is the witness's plan, else a place.

        Where it is, the template is good up to there.
        """
        expected = evaluate(self._common, Numbers(witness.values))
        allowed = [kernel.in_place for kernel in self._common.plan.kernels]
        try:
            unify([expected, _compared(_only_allowing(witness, allowed))], Fitter([{}, {}]))
            for template, kernel in zip(self.kernels, witness.kernels, strict=True):
                if not agrees(template, kernel, witness.values):
                    raise DifferentError((kernel.sym_name.data, "mapping"), ())
        except DifferentError as error:
            return str(error)
        self.span.widen(witness.values)
        return None

    @property
    def arena(self) -> tuple[int, ...]:
        """The buffers that are placed, in the order in which :attr:`stack` counts them."""
        return self._arena

    @property
    def stack(self) -> Stack:
        """Which buffer lies above which."""
        return self._stack

    def named(self, taking: frozenset[int] = frozenset()) -> Plan:
        """Return the plan with sizes for its numbers; buffers of the arena have no place."""
        form = self.form
        kernel_sizes = {k: tuple(map(symbol, self.kernels[k].symbols)) for k in taking}
        steps = [
            replace(step, sizes=cast("tuple[int, ...]", kernel_sizes[step.kernel]))
            if isinstance(step, Call) and step.kernel in taking
            else step
            for step in form.steps
        ]
        return Plan(
            mesh=form.mesh,
            backend=self.backend,
            buffers=form.buffers,
            kernels=form.kernels,
            prepared=tuple(grouped(form.prepared)),
            actions=tuple(grouped(steps)),
            inputs=form.inputs,
            weights=form.weights,
            outputs=form.outputs,
            arena_bytes=0,
        )

    def at(self, values: Mapping[str, int], taking: frozenset[int] = frozenset()) -> Plan:
        """Return the plan for some sizes; what does not depend on them is shared.

        Args:
            values: a number for each symbol.
            taking: the kernels that are given their sizes when they run.
        """
        numbers = Numbers(values)
        form = self.form
        buffers = list(form.buffers)
        for index in self._sized:
            buffers[index] = _buffer_at(buffers[index], numbers)
        sizes = [buffers[index].size_bytes for index in self._arena]
        offsets, arena = self._stack.place(sizes)
        for index, offset in zip(self._arena, offsets, strict=True):
            if offset:
                buffers[index] = replace(buffers[index], offset=offset)
        steps: list[Step] = list(form.steps)
        for index in self._steps:
            steps[index] = evaluate(steps[index], numbers)
        kernel_sizes = {k: tuple(values[n] for n in self.kernels[k].symbols) for k in taking}
        for index, step in enumerate(steps):
            if isinstance(step, Call) and step.kernel in taking:
                steps[index] = replace(step, sizes=kernel_sizes[step.kernel])
        return Plan(
            mesh=form.mesh,
            backend=self.backend,
            buffers=tuple(buffers),
            kernels=tuple(evaluate(form.kernels, numbers)),
            prepared=tuple(grouped(form.prepared)),
            actions=tuple(grouped(steps)),
            inputs=form.inputs,
            weights=form.weights,
            outputs=form.outputs,
            arena_bytes=arena,
        )


def _buffer_at(buffer: Buffer, numbers: Numbers) -> Buffer:
    strides = buffer.strides
    return replace(
        buffer,
        shape=tuple(map(numbers, buffer.shape)),
        offset=numbers(buffer.offset),
        strides=None if strides is None else tuple(map(numbers, strides)),
    )


class Numbers:
    """The numbers of sizes, each polynomial computed once.

    Args:
        values: a number for each symbol.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self._known: dict[Size, int] = {}

    def __call__(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            self._known[dim] = value_of(dim, self.values)
        return self._known[dim]


def plan_template(witnesses: Sequence[Witness], backend: str = "cpu") -> PlanTemplate:
    """Return what the plans of witnesses have in common.

    Args:
        witnesses: at least four; the last one is held back and checks.
        backend: what the kernels are compiled by.

    Raises:
        DifferentError: with the first place where they differ in more than numbers, or by numbers
            that are no polynomials.
    """
    allowed = _allowed_by_all(witnesses)
    *used, held_back = [_only_allowing(witness, allowed) for witness in witnesses]
    fitter = Fitter([witness.values for witness in used])
    common = unify([_compared(witness) for witness in used], fitter)
    kernels = tuple(
        kernel_template(form, [witness.kernels[i] for witness in used], backend)
        for i, form in enumerate(common.kernels)
    )
    moved = sized_preparation(common.plan, [bool(kernel.symbols) for kernel in kernels])
    intervals = intervals_of(at_every_call(used[0].plan, moved))
    template = PlanTemplate(
        at_every_call(common.plan, moved),
        kernels,
        Span.of([witness.values for witness in used]),
        backend,
        common,
        tuple(index for index, _ in intervals),
        stack([interval for _, interval in intervals]),
    )
    if (reason := template.agrees(held_back)) is not None:
        raise DifferentError((reason,), ("a polynomial", "the plan held back"))
    return template


_Pairs: TypeAlias = tuple[tuple[int, int], ...]
"""An input and an output of a kernel that may be one buffer."""


def _allowed_by_all(witnesses: Sequence[Witness]) -> list[_Pairs]:
    """Return for each kernel what may be one buffer at all sizes, not where two happen to be equal.

    Of witnesses that have as many kernels; else it does not matter.
    """
    columns = zip(*(witness.plan.kernels for witness in witnesses), strict=False)
    return [
        tuple(pair for pair in column[0].in_place if all(pair in k.in_place for k in column))
        for column in columns
    ]


def _only_allowing(witness: Witness, allowed: Sequence[_Pairs]) -> Witness:
    """Return a witness whose kernels may write over no more than these of their inputs."""
    pairs = zip(witness.plan.kernels, allowed, strict=False)
    less = [
        replace(kernel, in_place=tuple(pair for pair in kernel.in_place if pair in kept))
        for kernel, kept in pairs
    ]
    kernels = (*less, *witness.plan.kernels[len(less) :])
    return replace(witness, plan=replace(witness.plan, kernels=kernels))


def _compared(witness: Witness) -> _Form:
    return _Form(witness.plan, tuple(map(form_of, witness.kernels)))
