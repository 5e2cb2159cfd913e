"""An ONNX file as a plan whose sizes are open."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from irc.calls.open_check import differs
from irc.calls.open_export import OpenExport, OpenFacts, export_open
from irc.calls.open_plans import OpenPlans
from irc.errors import IrcError, printable
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source, read_model
from irc.frontends.onnx.sizes import SizeTable, by_name
from irc.frontends.onnx.trace import OpenProgram, Place, places_of, stated_shapes, trace
from irc.onnx.open_model import at_values
from irc.pipeline import Options
from irc.plan.sizes import FixedSize
from irc.program import Program

STEP = 32
"""Examples of sizes other than batches are multiples of it: images are halved so often."""
FEW = 8
SIGNAL = 16000
"""Signals are longer: of 16,000 samples a second, say, cut into frames of 400."""
SMALL, LARGER = 4, 4
"""Where a quotient of an example's sizes is below the first, sizes are so many times as large."""
MAX_PLANNED = 3
"""Near so many examples plans are made: that takes half a minute for a large model."""


def open_file(
    model: str | os.PathLike[str] | Source, sizes: Mapping[str, int], options: Options
) -> tuple[OpenExport, Program] | None:
    """Compile a file to a plan for all numbers of its named sizes.

    Args:
        model: the model, or its path.
        sizes: numbers for some, by name: these are fixed.
        options: of the pipeline; one device.

    Returns:
        The plan and the program for its example; None where no size is left open.

    Raises:
        IrcError: ``size-unbound`` where a size has to be a number, saying what needs it.
    """
    source = prepare(read_model(model))
    inputs = source.model.graph.input
    sizes = by_name(inputs, sizes)
    table = SizeTable(sizes)
    stated = stated_shapes(inputs, table)
    places, lonely = places_of(stated, table)
    if lonely or not places or len(stated) != len(inputs):
        return None
    problems: list[IrcError] = []
    planned: Counter[bool] = Counter()
    for hints in examples(places, signals(source)):
        # Sizes that are tied are another program: those have their own attempts.
        tied = len(set(hints.values())) < len(hints)
        if planned[tied] == MAX_PLANNED:
            continue
        try:
            traced = trace(source, hints, given=sizes)
        except IrcError as error:
            problems.append(error)
            continue
        if traced.fixed:
            problems.append(needs_numbers(traced))
            continue
        try:
            return _exported(_larger(source, traced, places, sizes), options)
        except IrcError as error:
            if not {"index-out-of-range", "size-unbound"} & set(error.codes):
                raise
            # A table of positions, say, that is shorter than the example: shapes do not tell. Or
            # plans near an example that is small decide otherwise than those of larger ones.
            problems.append(error)
            planned[tied] += 1
    raise first_of(problems, [place.name for place in places.values()])


def _larger(
    source: Source, traced: OpenProgram, places: Mapping[str, Place], sizes: Mapping[str, int]
) -> OpenProgram:
    """Return a trace near larger sizes where parts of the example's are as small as 1.

    What is 1 broadcasts, and plans near it are other ones than those of larger sizes. A plan that
    is made near these is tried at the least ones afterwards.
    """
    if min((traced.hints[name] for name in traced.quotients), default=SMALL) >= SMALL:
        return traced
    hints = {
        name: n if places[name].dim == 0 else LARGER * n
        for name, n in traced.hints.items()
        if name in places
    }
    try:
        larger = trace(source, hints, given=sizes)
    except IrcError:  # some parts have to be 1
        return traced
    return traced if larger.fixed else larger


def _exported(traced: OpenProgram, options: Options) -> tuple[OpenExport, Program]:
    plans = OpenPlans(traced, lambda values: at_values(traced, values), options, check=differs)
    example = {name: traced.hints[name] for name in traced.places}
    plan = export_open(plans, example, _facts(traced), options)
    return plan, at_values(traced, example)


def first_of(problems: Sequence[IrcError], names: Sequence[str] = ()) -> IrcError:
    """Return what to say of several examples: not that the file is invalid, if some suit it.

    A file that none suits may be for one size alone, which an exporter has written into it.
    """
    problem = next((each for each in problems if "onnx-invalid" not in each.codes), problems[0])
    if "onnx-invalid" in problem.codes and names and not problem.help:
        problem.help = "if the file is for some sizes alone, give them: " + " ".join(
            f"--size {printable(name)}=N" for name in dict.fromkeys(names)
        )
    return problem


def signals(source: Source) -> frozenset[str]:
    """Return the inputs that may be signals: real numbers, one row for each of a batch."""
    floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
    inputs = ((each.name, each.type.tensor_type) for each in source.model.graph.input)
    return frozenset(n for n, t in inputs if t.elem_type in floating and len(t.shape.dim) == 2)


def examples(places: Mapping[str, Place], long: Collection[str] = ()) -> Iterator[dict[str, int]]:
    """Yield numbers for sizes: different ones, then equal ones where they may have to be.

    Args:
        places: where each size is read.
        long: inputs that may be signals. A plan is good for up to 8 times its example, so that
            these are tried as long ones first.
    """
    batches = [name for name, place in places.items() if place.dim == 0]
    others = [name for name in places if name not in batches]
    steps = (STEP, FEW, SIGNAL)  # the second for tables that are shorter
    if any(places[name].input in long for name in others):
        steps = (SIGNAL, STEP, FEW)
    for step in steps:
        yield {
            **dict.fromkeys(batches, 2),
            **{name: step * i for i, name in enumerate(others, 2)},
        }
    yield {
        **{name: i for i, name in enumerate(batches, 2)},
        **{name: STEP * i for i, name in enumerate(others, 2)},
    }
    for step in steps:
        yield {**dict.fromkeys(batches, 2), **dict.fromkeys(others, 2 * step)}


def needs_numbers(traced: OpenProgram) -> IrcError:
    """Return ``size-unbound``, with what needs each size, and the numbers of the trial."""
    fixed = list(traced.fixed.values())
    return IrcError(
        "size-unbound",
        f"sizes are needed as numbers: {', '.join(each.name for each in fixed)}",
        because=[f"{each.name}: {each.reason}" for each in fixed],
        help="give each a number: "
        + " ".join(f"--size {each.name}={each.number}" for each in fixed),
    )


def _facts(traced: OpenProgram) -> OpenFacts:
    return OpenFacts(
        {s: (place.name, place.input, place.dim) for s, place in traced.places.items()},
        traced.shapes,
        {name: (quotient.dim, quotient.by) for name, quotient in traced.quotients.items()},
        tuple((c.relation, c.difference, c.holds, c.where) for c in traced.conditions),
        tuple(FixedSize(f.name, f.number, f.reason) for f in traced.fixed.values()),
        traced.program.module,
    )
