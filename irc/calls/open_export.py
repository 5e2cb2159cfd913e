"""A plan folder for every size: the plan for an example, and ``sizes.json`` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from irc.calls.open_plans import OpenPlans, OpenTemplate
from irc.dialects.size import Dim
from irc.dialects.task import KernelOp
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.plan.numbers import numbers_of
from irc.plan.open_sizes import MadeKernel, QuotientSize, SizeCondition, Symbol, polynomial_of
from irc.plan.save import make_plan as bundle
from irc.plan.schema import Action, Kernels, Plan, Wait
from irc.plan.sizes import (
    CAPTURE,
    KERNELS,
    LIKE,
    SHARED,
    SIZES,
    FixedSize,
    PlanSizes,
    sizes_to_json,
)

ANY = 1 << 48
"""No size is as large: the range of a quotient that only conditions are about."""


@dataclass(frozen=True)
class OpenFacts:
    """What a frontend knows of the sizes of a program.

    Attributes:
        places: for each symbol the model's name, the input and the dim where it is read.
        shapes: of the inputs by name.
        quotients: symbols that are ``floor(dim / by)``, in order.
        conditions: relation, difference, answer and source line.
        fixed: sizes that are numbers.
        capture: the program with names, if there is one.
    """

    places: Mapping[str, tuple[str, str, int]]
    shapes: Mapping[str, tuple[Dim, ...]]
    quotients: Mapping[str, tuple[Dim, Dim]] = field(default_factory=dict[str, tuple[Dim, Dim]])
    conditions: tuple[tuple[Any, Dim, bool, str], ...] = ()
    fixed: tuple[FixedSize, ...] = ()
    capture: ModuleOp | None = None


@dataclass(frozen=True)
class OpenExport:
    """A plan for every size, and what its kernels were written from.

    Attributes:
        plan: with ``sizes.json``.
        kernels: in its order, with names in their sizes.
        low: the least number of each size.
    """

    plan: LoadedPlan
    kernels: tuple[KernelOp, ...]
    low: Mapping[str, int]


def export_open(
    plans: OpenPlans, example: Mapping[str, int], facts: OpenFacts, options: Options
) -> OpenExport:
    """Return a plan for all sizes near an example.

    Args:
        plans: of the program.
        example: a number for each symbol.
        facts: about its sizes.
        options: of the pipeline.

    Raises:
        IrcError: ``size-unbound`` where plans for several sizes have no common form.
    """
    opened = plans.opened(example)
    if opened is None:
        named = sorted((name, example[symbol]) for symbol, (name, _, _) in facts.places.items())
        names = [name for name, _ in named]
        raise IrcError(
            "size-unbound",
            f"one plan cannot serve all numbers of: {', '.join(names)}",
            because=plans.work.reasons,
            help="give some of them a number: "
            + " ".join(f"--size {n}={number}" for n, number in named),
        )
    plan = _bundled(opened, plans, example, facts, options)
    template = opened.template
    kernels = tuple(kernel.kernel for kernel in template.kernels)
    return OpenExport(plan, kernels, dict(template.span.low))


def _bundled(
    opened: OpenTemplate,
    plans: OpenPlans,
    example: Mapping[str, int],
    facts: OpenFacts,
    options: Options,
) -> LoadedPlan:
    first = make_plan(plans.program_at(example), replace(options, any_rows=True))
    full = plans.extended(example)
    bound = opened.at(full)
    plan = _priced(bound.plan, first.plan)
    sizes = _sizes(opened, plan, example, full, facts)
    kept = {name: text.decode() for name, text in first.texts.items()}
    extra = {n: t for n, t in kept.items() if not n.startswith(("ir/", "kernels/", "plan.json"))}
    extra[SIZES] = sizes_to_json(sizes)
    unshared = [opened.template.kernels[index] for index in opened.reasons]
    shared = [k for i, k in enumerate(opened.template.kernels) if i not in opened.reasons]
    extra[SHARED] = dump(ModuleOp([kernel.kernel.clone() for kernel in shared]))
    if unshared:
        extra[KERNELS] = dump(ModuleOp([kernel.kernel.clone() for kernel in unshared]))
        extra[LIKE] = dump(ModuleOp([kernel.like.clone() for kernel in unshared]))
    if facts.capture is not None:
        extra[CAPTURE] = dump(facts.capture)
    import torch

    return bundle(
        plan,
        ir={n.removeprefix("ir/"): t for n, t in kept.items() if n.startswith("ir/")},
        kernels={n.removeprefix("kernels/"): t.decode() for n, t in bound.texts.items()},
        extra=extra,
        torch_version=torch.__version__,
    )


def _priced(plan: Plan, priced: Plan) -> Plan:
    """Return a plan with the predicted times of another one of the same steps."""
    seconds: dict[str, float | None] = {}
    for action in (*priced.prepared, *priced.actions):
        steps = action.calls if isinstance(action, Kernels) else (action,)
        seconds |= {step.id: step.seconds for step in steps if not isinstance(step, Wait)}

    def timed(action: Action) -> Action:
        if isinstance(action, Kernels):
            calls = (replace(call, seconds=seconds.get(call.id)) for call in action.calls)
            return replace(action, calls=tuple(calls))
        if isinstance(action, Wait):
            return action
        return replace(action, seconds=seconds.get(action.id))

    return replace(
        plan,
        prepared=tuple(map(timed, plan.prepared)),
        actions=tuple(map(timed, plan.actions)),
        ranges=priced.ranges,
        predicted_s=priced.predicted_s,
        cluster=priced.cluster,
    )


def _sizes(
    opened: OpenTemplate,
    plan: Plan,
    example: Mapping[str, int],
    full: Mapping[str, int],
    facts: OpenFacts,
) -> PlanSizes:
    template = opened.template
    names = [plan.buffers[index].name for index in plan.inputs]
    low, high = template.span.low, template.span.high
    kernels = [(template.kernels[index], reason) for index, reason in opened.reasons.items()]
    return PlanSizes(
        symbols=tuple(
            Symbol(
                symbol, name, names.index(input_name), dim, low[symbol], high[symbol], full[symbol]
            )
            for symbol, (name, input_name, dim) in facts.places.items()
        ),
        shapes=tuple(tuple(map(polynomial_of, facts.shapes[name])) for name in names),
        numbers=tuple(numbers_of(template.named(opened.taking))),
        arena=template.arena,
        order=template.stack.order,
        below=template.stack.below,
        quotients=tuple(
            QuotientSize(
                name,
                polynomial_of(dim),
                polynomial_of(by),
                low.get(name, -ANY),
                high.get(name, ANY),
            )
            for name, (dim, by) in facts.quotients.items()
        ),
        conditions=tuple(
            SizeCondition(relation, polynomial_of(difference), holds, where)
            for relation, difference, holds, where in facts.conditions
        ),
        kernels=tuple(
            MadeKernel(kernel.like.sym_name.data, reason, kernel.division)
            for kernel, reason in kernels
        ),
        fixed=facts.fixed,
    )
