"""An ONNX file whose values decide sizes, branches or trips, as a host program and its regions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from xdsl.dialects.builtin import ModuleOp

from irc.calls.open_check import differs
from irc.calls.open_export import OpenExport, OpenFacts, export_open
from irc.calls.open_plans import OpenPlans
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp
from irc.dialects.size import Dim, Size, deciding
from irc.dialects.task import KernelOp
from irc.dialects.text import dump
from irc.dialects.types import TensorType
from irc.errors import InternalError, IrcError
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source, read_model
from irc.frontends.onnx.sizes import SizeTable, by_name
from irc.frontends.onnx.trace import (
    Condition,
    Fixed,
    OpenProgram,
    Place,
    TracedSizes,
    places_of,
    read_values,
    stated_shapes,
    trace,
)
from irc.interpret.dynamic import WEIGHTS
from irc.onnx.open_file import examples, first_of, needs_numbers, signals
from irc.onnx.open_model import HINTS, LAST, at_values
from irc.onnx.outline import Region, outline
from irc.pipeline import Options, make_plan
from irc.plan.host import HostFacts, HostPlan, HostRegion, host_plan
from irc.plan.open_sizes import HostSize, QuotientSize, SizeCondition, polynomial_of
from irc.program import Program

DECIDED = (1024, 256, 48)
"""The example of a size that only the run knows, where a region has one, two or more of them.

A plan is checked up to 8 times as much; sizes beyond run op by op. Several may be multiplied:
trials of a plan use smaller ones where these take much memory.
"""
APART = 32
"""Examples of several such sizes differ by so much."""
MOST = 1 << 62


@dataclass(frozen=True)
class HostFile:
    """A host program that was compiled.

    Attributes:
        plan: it, and the plans of its regions.
        program: as it was imported; regions are not outlined.
        exports: of each region that has a plan, what it was written from.
    """

    plan: HostPlan
    program: Program
    exports: Mapping[str, OpenExport]


def host_file(
    model: str | os.PathLike[str] | Source,
    sizes: Mapping[str, int],
    options: Options,
    call: Mapping[str, tuple[int, ...]] | None = None,
) -> HostFile | None:
    """Compile a file to a host program; one device.

    Args:
        model: the model, or its path.
        sizes: numbers for some of its sizes, by name.
        options: of the pipeline.
        call: shapes of inputs that the program is to be for, by name; by default examples are
            tried.

    Returns:
        The plan, the imported program, and what the plans of regions were written from; None where
        there is nothing for a host to decide.

    Raises:
        IrcError: what importing raises.
    """
    source = prepare(read_model(model))
    traced = _traced(source, by_name(source.model.graph.input, sizes), call)
    program = Program(traced.program.module.clone(), traced.program.tensors, traced.program.source)
    module = traced.program.module
    with deciding(_again(traced)):
        regions = outline(module, _roots(traced))
    if not any(isinstance(op, ExternOp) for op in entry(module).body.block.ops):
        return None
    exports: dict[str, OpenExport] = {}
    entries: dict[str, HostRegion] = {}
    for region in regions:
        name = region.func.sym_name.data
        planned = _planned(region, traced, options)
        if isinstance(planned, OpenExport):
            exports[name] = planned
            entries[name] = HostRegion(planned.plan.hash)
        else:
            entries[name] = HostRegion(reason=planned)
    facts, plans = _facts(traced, entries), {name: each.plan for name, each in exports.items()}
    plan = host_plan(facts, dump(module), plans, traced.program.tensors)
    return HostFile(plan, program, exports)


def _traced(
    source: Source, sizes: Mapping[str, int], call: Mapping[str, tuple[int, ...]] | None
) -> OpenProgram:
    """Import a model, bodies as functions; sizes of inputs stay open where they can.

    Raises:
        IrcError: what importing raises; ``size-unbound`` where a size has to be a number.
    """
    table = SizeTable(sizes)
    places, _ = places_of(stated_shapes(source.model.graph.input, table), table)
    if call is not None and places:
        return _traced_at(source, sizes, read_values(places, call))
    problems: list[IrcError] = []
    tied: OpenProgram | None = None
    # Last, all equal: a state beside the data has the batch in another dim.
    for hints in [*examples(places, signals(source)), dict.fromkeys(places, 2)] if places else [{}]:
        try:
            traced = trace(source, hints, given=sizes, dynamic=True, bodies=True)
        except IrcError as error:
            problems.append(error)
            continue
        if traced.fixed:
            problems.append(needs_numbers(traced))
        elif set(traced.places) == set(places):
            return traced
        else:
            # Sizes that are equal in the example were taken for one: others may do without.
            tied = tied or traced
    if tied is not None:
        return tied
    raise first_of(problems)


def _traced_at(source: Source, sizes: Mapping[str, int], numbers: Mapping[str, int]) -> OpenProgram:
    """Import a model for the sizes of a call; what has to be a number is that of the call.

    Raises:
        IrcError: what importing raises.
    """
    spare = iter(HINTS)
    hints = {name: n if n > 1 else next(spare, LAST) for name, n in numbers.items()}
    traced = trace(source, hints, given=sizes, dynamic=True, bodies=True)
    if any(numbers[name] != each.number for name, each in traced.fixed.items()):
        again = {n: Fixed(e.name, numbers[n], e.reason) for n, e in traced.fixed.items()}
        traced = trace(source, hints, again, given=sizes, dynamic=True, bodies=True)
    return traced


def _again(traced: OpenProgram) -> TracedSizes:
    """Return what answers as the trace did, where ops of its program are built again."""
    sizes = TracedSizes(traced.hints)
    for name, quotient in traced.quotients.items():
        sizes.quotients[name] = quotient
    return sizes


def _roots(traced: OpenProgram) -> dict[str, frozenset[str]]:
    """Return for each quotient the names of input sizes that it follows from."""
    roots: dict[str, frozenset[str]] = {}
    for name, quotient in traced.quotients.items():
        names = _names(quotient.dim)
        roots[name] = frozenset[str]().union(*(roots.get(n, frozenset([n])) for n in names))
    return roots


def _planned(region: Region, traced: OpenProgram, options: Options) -> OpenExport | str:
    """Return the plan of a region, or why its ops run one by one."""
    func = region.func.clone()
    func.properties["sym_name"] = type(region.func.sym_name)("forward")
    names = [name for role, name, _ in arguments(func) if role in WEIGHTS]
    tensors = {name: traced.program.tensors[name] for name in names}
    program = Program(ModuleOp([func]), tensors, traced.program.source)
    try:
        if not region.symbols:
            plan = make_plan(program, options)
            kernels = (op for op in program.module.body.block.ops if isinstance(op, KernelOp))
            return OpenExport(plan, tuple(kernels), {})
        return _open(program, region, traced, options)
    except InternalError as error:
        return str(error)
    except IrcError as error:
        if error.code == "sharding-infeasible":  # of a budget: op by op it would not be kept to
            raise
        return "; ".join([error.message, *error.because])


def _open(program: Program, region: Region, traced: OpenProgram, options: Options) -> OpenExport:
    """Return the plan of a region for all numbers of its sizes.

    Raises:
        IrcError: ``size-unbound`` where there is none.
    """
    shapes: dict[str, tuple[Dim, ...]] = {}
    places: dict[str, Place] = {}
    for role, name, value in arguments(entry(program.module)):
        if role in WEIGHTS or not isinstance(value.type, TensorType):
            continue
        shapes[name] = value.type.shape
        for index, dim in enumerate(value.type.shape):
            symbol = str(dim)
            if isinstance(dim, Size) and symbol.isidentifier() and symbol not in traced.quotients:
                places.setdefault(symbol, Place(name, index, _said(traced, symbol)))
    quotients = {n: q for n, q in traced.quotients.items() if n in region.symbols}
    known = {*places, *quotients}
    conditions = tuple(c for c in traced.conditions if _names(c.difference) <= known)
    decided = [name for name in places if name not in traced.hints]
    hints = {name: traced.hints[name] for name in known if name in traced.hints}
    least = DECIDED[min(len(decided), len(DECIDED)) - 1]
    hints |= {name: least + APART * index for index, name in enumerate(decided)}
    open_program = OpenProgram(program, shapes, places, conditions, quotients, {}, hints)
    plans = OpenPlans(open_program, partial(at_values, open_program), options, check=differs)
    facts = OpenFacts(
        {s: (place.name, place.input, place.dim) for s, place in places.items()},
        shapes,
        {name: (quotient.dim, quotient.by) for name, quotient in quotients.items()},
        tuple((c.relation, c.difference, c.holds, c.where) for c in conditions),
        (),
        program.module,
    )
    return export_open(plans, {name: hints[name] for name in places}, facts, options)


def _said(traced: OpenProgram, symbol: str) -> str:
    return traced.places[symbol].name if symbol in traced.places else symbol


def _facts(traced: OpenProgram, regions: Mapping[str, HostRegion]) -> HostFacts:
    program = traced.program
    inputs = tuple(program.input_names)
    return HostFacts(
        "",
        "",
        regions,
        inputs,
        tuple(program.output_names),
        tuple(
            HostSize(symbol, place.name, inputs.index(place.input), place.dim, traced.hints[symbol])
            for symbol, place in traced.places.items()
        ),
        tuple(
            QuotientSize(name, polynomial_of(q.dim), polynomial_of(q.by), 0, MOST)
            for name, q in traced.quotients.items()
        ),
        tuple(_condition(each) for each in traced.conditions),
    )


def _condition(condition: Condition) -> SizeCondition:
    return SizeCondition(
        condition.relation, polynomial_of(condition.difference), condition.holds, condition.where
    )


def _names(dim: Dim) -> frozenset[str]:
    return dim.names() if isinstance(dim, Size) else frozenset()
