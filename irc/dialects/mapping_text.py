"""The text of task mappings (``grammar/mapping.lark``): read, and kept as it was written."""

from __future__ import annotations

from functools import cache
from typing import Any

from irc.dialects.mapping import (
    Atom,
    TaskMapping,
    auto_map,
    column_repeat,
    column_spatial,
    repeat,
    replicate,
    spatial,
)
from irc.errors import IrcError


def read_mapping(text: str) -> TaskMapping:
    """Read a mapping; it prints as it is written here, with one blank after commas.

    >>> str(read_mapping("spatial( 4,2 ).repeat(2,2)*auto_map(8, 8, workers=4)"))
    'spatial(4, 2).repeat(2, 2) * auto_map(8, 8, workers=4)'

    Raises:
        IrcError: ``mapping-syntax``, with the column where the text stops making sense.
    """
    atoms: list[Atom] = []
    written = ""
    try:
        for node in parse(text, "mapping").children:
            if node.data in ("times", "chain"):
                written += " * " if node.data == "times" else "."
                continue
            factor, shown = _atom(node)
            atoms += factor.atoms
            written += shown
    except ValueError as error:
        raise mapping_error(text, str(error)) from None
    plain = TaskMapping(tuple(atoms))
    return plain if written == str(plain) else TaskMapping(plain.atoms, written)


def mapping_error(text: str, because: str, where: str = "") -> IrcError:
    """Return the error ``mapping-syntax`` for a text."""
    return IrcError(
        "mapping-syntax", f"cannot read the task mapping '{text.strip()}'", where=where,
        because=because, help="write it as: spatial(4, 8) * repeat(2, 1)",
    )  # fmt: skip


def _atom(node: Any) -> tuple[TaskMapping, str]:
    """Return a factor and how it is written."""
    kind = str(node.data)
    extents = tuple(int(child) for child in node.children if not hasattr(child, "data"))
    named = {str(c.data): tuple(map(int, c.children)) for c in node.children if hasattr(c, "data")}
    shown, ranks = ", ".join(map(str, extents)), named.get("ranks", ())
    if ranks and sorted(ranks) != list(range(len(extents))):
        raise ValueError(f"ranks={list(ranks)} are not each of 0 to {len(extents) - 1} once")
    order = f", ranks=[{', '.join(map(str, ranks))}]" if ranks else ""
    match kind:
        case "spatial":
            return spatial(*extents, ranks=ranks), f"spatial({shown}{order})"
        case "repeat":
            return repeat(*extents, ranks=ranks), f"repeat({shown}{order})"
        case "column_spatial":
            return column_spatial(*extents), f"column_spatial({shown})"
        case "column_repeat":
            return column_repeat(*extents), f"column_repeat({shown})"
        case "replicate":
            return replicate(*extents), f"replicate({shown})"
        case _:
            (workers,) = named["workers"]
            factor = auto_map(*extents, workers=workers, ranks=ranks)
            return factor, f"auto_map({shown}, workers={workers}{order})"


def parse(text: str, start: str) -> Any:
    """Return the tree of a mapping or of a layout.

    Raises:
        ValueError: with the place where the text stops making sense.
    """
    from lark.exceptions import UnexpectedInput

    try:
        return _parser(start).parse(text)
    except UnexpectedInput as error:
        column = getattr(error, "column", -1)
        place = f"at column {column}" if column > 0 else "at its end"
        kinds = "spatial(...), repeat(...)" if start == "mapping" else "row_major(...), local(...)"
        raise ValueError(
            f"it stops making sense {place}; a {start} is a product of {kinds} and the like"
        ) from None


@cache
def _parser(start: str) -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("mapping.lark").read_text(encoding="utf-8")
    return Lark(grammar, start=start, parser="lalr")
