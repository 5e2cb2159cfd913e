"""The forward pass of any number of samples, from those of two: sizes grow with the batch.

A capture traces the module, which takes seconds. Captures of two batches are one text with other
numbers in it; where each number is that of a line through both, the text for a third batch follows
from them. Where one is not (a mean that is written as a factor), the third is captured as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*[.\w])")
"""A whole number that stands alone; parts of names and of reals are text."""


VALUE = re.compile(r"%\d+")
"""A value, which is printed by a number that may depend on what else was numbered."""


@dataclass(frozen=True)
class Lines:
    """A text whose numbers depend on a size.

    Attributes:
        texts: between the numbers.
        numbers: each as an offset and a slope.
    """

    texts: tuple[str, ...]
    numbers: tuple[tuple[int, int], ...]

    def at(self, size: int) -> str:
        """Return the text for a size.

        >>> lines_through("[4, 7]", 2, "[6, 7]", 3).at(5)
        '[10, 7]'
        """
        words = [f"{offset + slope * size}" for offset, slope in self.numbers]
        pairs = zip(self.texts, (*words, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)


def lines_through(first: str, size: int, second: str, other: int) -> Lines | None:
    """Return the text of every size; None where two texts differ in more than such numbers.

    Args:
        first: the text for ``size``.
        size: of the first.
        second: the text for ``other``.
        other: another size.
    """
    first, second = _numbered(first), _numbered(second)
    texts = NUMBER.split(first)
    if texts != NUMBER.split(second):
        return None
    pairs = zip(map(int, NUMBER.findall(first)), map(int, NUMBER.findall(second)), strict=True)
    numbers: list[tuple[int, int]] = []
    for own, theirs in pairs:
        slope, rest = divmod(theirs - own, other - size)
        if rest:
            return None
        numbers.append((own - slope * size, slope))
    return Lines(tuple(texts), tuple(numbers))


def _numbered(text: str) -> str:
    """Return a text whose values are numbered in each function by where they stand first."""

    def own(function: str) -> str:
        names: dict[str, str] = {}
        return VALUE.sub(lambda m: names.setdefault(m[0], f"%{len(names)}"), function)

    return "func.func".join(map(own, text.split("func.func")))
