"""An ONNX file as a plan whose sizes are open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

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
SIGNAL = 4800
"""Signals are longer: of 16,000 samples a second, say, cut into frames of 400."""


def open_file(
    given: str | os.PathLike[str] | Source, sizes: Mapping[str, int], options: Options
) -> tuple[OpenExport, Program] | None:
    """Compile a file to a plan for all numbers of its named sizes.

    Args:
        given: the model, or its path.
        sizes: numbers for some, by name: these are fixed.
        options: of the pipeline; one device.

    Returns:
        The plan and the program for its example; None where no size is left open.

    Raises:
        IrcError: ``size-unbound`` where a size has to be a number, saying what needs it.
    """
    source = prepare(read_model(given))
    inputs = source.model.graph.input
    sizes = by_name(inputs, sizes)
    table = SizeTable(sizes)
    stated = stated_shapes(inputs, table)
    places, lonely = places_of(stated, table)
    if lonely or not places or len(stated) != len(inputs):
        return None
    problems: list[IrcError] = []
    for hints in examples(places):
        try:
            traced = trace(source, hints, given=sizes)
        except IrcError as error:
            problems.append(error)
            continue
        if traced.fixed:
            problems.append(needs_numbers(traced))
            continue
        try:
            return _exported(traced, options)
        except IrcError as error:
            if "index-out-of-range" not in error.codes:
                raise
            # A table of positions, say, that is shorter than the example: shapes do not tell.
            problems.append(error)
    raise first_of(problems, [place.name for place in places.values()])


def _exported(traced: OpenProgram, options: Options) -> tuple[OpenExport, Program]:
    plans = OpenPlans(traced, lambda values: at_values(traced, values), options, check=differs)
    example = {name: traced.hints[name] for name in traced.places}
    plan = export_open(plans, example, _facts(traced), options)
    return plan, at_values(traced, example)


def first_of(problems: Sequence[IrcError], names: Sequence[str] = ()) -> IrcError:
    """Return what to say of several examples: not that the file is invalid, if some suit it.

    A file that none suits may be for one size alone, which an exporter has written into it.
    """
    found = next((each for each in problems if "onnx-invalid" not in each.codes), problems[0])
    if "onnx-invalid" in found.codes and names and not found.help:
        found.help = "if the file is for some sizes alone, give them: " + " ".join(
            f"--size {printable(name)}=N" for name in dict.fromkeys(names)
        )
    return found


def examples(places: Mapping[str, Place]) -> Iterator[dict[str, int]]:
    """Yield numbers for sizes: different ones, then equal ones where they may have to be."""
    batches = [name for name, place in places.items() if place.dim == 0]
    others = [name for name in places if name not in batches]
    for step in (STEP, FEW, SIGNAL):  # the second for tables that are shorter
        yield {
            **dict.fromkeys(batches, 2),
            **{name: step * i for i, name in enumerate(others, 2)},
        }
    yield {
        **{name: i for i, name in enumerate(batches, 2)},
        **{name: STEP * i for i, name in enumerate(others, 2)},
    }
    for step in (STEP, FEW, SIGNAL):
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
        {name: (found.dim, found.by) for name, found in traced.quotients.items()},
        tuple((c.relation, c.difference, c.holds, c.where) for c in traced.conditions),
        tuple(FixedSize(f.name, f.number, f.reason) for f in traced.fixed.values()),
        traced.program.module,
    )
