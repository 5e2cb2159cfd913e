"""Names of layers, of parameters and of ranks, runs of them together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

LAYER = re.compile(r"(.*?\.\d+)(?:\.|$)")
"""A name up to its first number: the layer of a list of them."""


def layer_of(name: str) -> str:
    """Return the layer that a parameter is of.

    >>> layer_of("l.0.up.weight"), layer_of("tok.weight")
    ('l.0', 'tok')
    """
    match = LAYER.match(name)
    return match[1] if match else name.rpartition(".")[0] or name


def layers_of(names: Iterable[str], divided: Collection[str] = ()) -> tuple[str, ...]:
    """Return the layers of some parameters, runs of one list together.

    Args:
        names: of the parameters.
        divided: layers that others have parameters of, too: theirs are named one by one.

    >>> layers_of(["tok.weight", "l.0.up.weight", "l.1.up.weight", "l.2.b", "l.4.b", "scale"])
    ('tok', 'l.0-l.2', 'l.4', 'scale')
    >>> layers_of(["l.0.w", "l.1.w"], ["l.1"])
    ('l.0', 'l.1.w')
    """
    runs: list[tuple[str, str]] = []
    for name in names:
        match, layer = LAYER.match(name), layer_of(name)
        if layer in divided:
            runs.append((name, name))
            continue
        if any(layer in _run(*each) for each in runs):
            continue
        head, _, number = layer.rpartition(".")
        last = runs[-1][1] if runs else ""
        if match and last == f"{head}.{int(number) - 1}":
            runs[-1] = runs[-1][0], layer
        else:
            runs.append((layer, layer))
    return tuple(first if first == last else f"{first}-{last}" for first, last in runs)


def _run(first: str, last: str) -> set[str]:
    if first == last:
        return {first}
    head, _, low = first.rpartition(".")
    return {f"{head}.{i}" for i in range(int(low), int(last.rpartition(".")[2]) + 1)}


def ranks_text(ranks: Iterable[int]) -> str:
    """Write ranks, those that follow each other as a range.

    >>> ranks_text([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
