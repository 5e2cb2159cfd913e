"""An ONNX file as a plan whose sizes are open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from irc.calls.open_check import differs
from irc.calls.open_export import OpenExport, OpenFacts, export_open
from irc.calls.open_plans import OpenPlans
from irc.errors import IrcError
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
    traced = _traced(source, places, sizes)
    plans = OpenPlans(traced, lambda values: at_values(traced, values), options, check=differs)
    example = {name: traced.hints[name] for name in traced.places}
    plan = export_open(plans, example, _facts(traced), options)
    return plan, at_values(traced, example)


def _traced(source: Source, places: Mapping[str, Place], sizes: Mapping[str, int]) -> OpenProgram:
    """Import with the first example at which no size has to be a number.

    Raises:
        IrcError: of the first one, where there is none.
    """
    problems: list[IrcError] = []
    for hints in examples(places):
        try:
            found = trace(source, hints, given=sizes)
        except IrcError as error:
            problems.append(error)
            continue
        if not found.fixed:
            return found
        problems.append(needs_numbers(found))
    raise first_of(problems)


def first_of(problems: Sequence[IrcError]) -> IrcError:
    """Return what to say of several examples: not that the file is invalid, if some suit it."""
    return next((each for each in problems if "onnx-invalid" not in each.codes), problems[0])


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
    yield {**dict.fromkeys(batches, 2), **dict.fromkeys(others, 2 * STEP)}


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
