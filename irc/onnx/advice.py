"""Which sizes of an ONNX file to give numbers, where they cannot all stay open.

What an error tells a user to type is tried before: first numbers for all sizes but batches, then
for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from shlex import quote

from irc.errors import IrcError, printable
from irc.frontends.onnx import load_onnx
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source
from irc.frontends.onnx.sizes import SizeTable, by_name
from irc.frontends.onnx.trace import Place, places_of, stated_shapes
from irc.logs import PROGRESS
from irc.onnx.open_file import examples, open_file, signals
from irc.pipeline import Options

MOST_TRIED = 4
"""Assignments of numbers that are tried."""


def advised(
    error: IrcError,
    source: Source,
    sizes: Mapping[str, int],
    options: Options,
    *,
    is_whole: bool = False,
) -> IrcError:
    """Let an error that sizes are needed as numbers name some with which the file compiles.

    Args:
        error: ``size-unbound``; another one stays as it is.
        source: of the file, as it was read.
        sizes: numbers that the user gave.
        options: of the pipeline.
        is_whole: no size may stay open, as on a mesh; the numbers are those that the file is read
            with.
    """
    if "size-unbound" not in error.codes:
        return error
    PROGRESS.info("trying numbers for sizes")
    for chosen in islice(_choices(source, sizes, is_whole=is_whole), MOST_TRIED):
        if (left := _left_open(source, {**sizes, **chosen}, options)) is None:
            continue
        stays = "stays" if len(left) == 1 else "stay"
        words = " ".join(f"--size {quote(f'{printable(name)}={n}')}" for name, n in chosen.items())
        rest = f" (tried; {', '.join(map(printable, left))} {stays} open)" if left else " (tried)"
        told = (error.where, error.because, f"give numbers of yours: {words}{rest}")
        return IrcError(error.code, error.message, *told)
    return error


def _choices(
    source: Source, sizes: Mapping[str, int], *, is_whole: bool
) -> Iterator[dict[str, int]]:
    """Yield numbers for all sizes but batches, then for all, of one example after another."""
    prepared = prepare(source)
    places, _ = _places(prepared, sizes)
    for hints in examples(places, signals(prepared)):
        others = {p.name: hints[name] for name, p in places.items() if p.dim}
        if others and len(others) < len(places) and not is_whole:
            yield others
        yield {place.name: hints[name] for name, place in places.items()}


def _places(source: Source, sizes: Mapping[str, int]) -> tuple[dict[str, Place], list[str]]:
    inputs = source.model.graph.input
    table = SizeTable(by_name(inputs, sizes))
    return places_of(stated_shapes(inputs, table), table)


def _left_open(source: Source, sizes: Mapping[str, int], options: Options) -> list[str] | None:
    """Return the names of sizes that stay open beside these; None where it does not compile."""
    places, _ = _places(prepare(source), sizes)
    try:
        if not places:
            load_onnx(source, sizes=sizes)
        elif open_file(source, sizes, options) is None:
            return None
    except IrcError:
        return None
    return sorted({place.name for place in places.values()})
