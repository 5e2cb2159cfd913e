"""Weights that ranks hold in slices, as a vocabulary on all ranks has them, and the whole ones.

A slice has a name of its own, ``head.weight:0-512``: to a plan it is a weight as any other. Whoever
gives or asks for the weights of a model knows the whole ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sliced:
    """A weight, or a state of one, in slices.

    Attributes:
        names: of the slices in order.
        dim: along which it is cut.
        starts: where each slice begins.
        stops: where each ends.
    """

    names: tuple[str, ...]
    dim: int
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def slice(self, number: int, whole: Any) -> Any:
        """Return a slice of a whole tensor."""
        start = self.starts[number]
        return whole.narrow(self.dim, start, self.stops[number] - start)


def slice_name(name: str, start: int, stop: int) -> str:
    """Name a slice of a weight, from a row to one before another."""
    return f"{name}:{start}-{stop}"


def of_states(weights: Mapping[str, Sliced], held: Iterable[str]) -> dict[str, Sliced]:
    """Return what is in slices among names that ranks hold: weights, and what is kept of each.

    >>> weight = Sliced(("w:0-2", "w:2-3"), 0, (0, 2), (2, 3))
    >>> held = ["sum.w:0-2", "w:0-2", "other"]
    >>> {name: own.names for name, own in of_states({"w": weight}, held).items()}
    {'sum.w': ('sum.w:0-2', 'sum.w:2-3'), 'w': ('w:0-2', 'w:2-3')}
    """
    wholes = {own.names[0]: whole for whole, own in weights.items()}
    sliced: dict[str, Sliced] = {}
    for name in held:
        # The longest name: ``encoder.qkv`` has a weight of its own, though ``qkv`` has one, too.
        starts = (0, *(place.end() for place in re.finditer(r"\.", name)))
        start = next((at for at in starts if name[at:] in wholes), None)
        if start is not None:
            head, whole = name[:start], wholes[name[start:]]
            own = weights[whole]
            names = tuple(f"{head}{each}" for each in own.names)
            sliced[f"{head}{whole}"] = Sliced(names, own.dim, own.starts, own.stops)
    return sliced


def cut(sliced: Mapping[str, Sliced], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors by name, with those that are held in slices also by the names of these."""
    with_slices = dict(tensors)
    for name, own in sliced.items():
        if name in tensors:
            with_slices |= {each: own.slice(i, tensors[name]) for i, each in enumerate(own.names)}
    return with_slices
