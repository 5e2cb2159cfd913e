"""Templates ``packed`` and ``grouped``, plain: products with weights that lie in panels.

The kernel's body says in full what a weight is (integers, shifted, scaled; a matrix that an index
names), so each point computes it in registers. Neighbouring threads take neighbouring columns of a
panel, which lie together in memory, and a few lanes share the sum.
"""

from __future__ import annotations

from irc.backends.cuda.driver import without_contractions
from irc.backends.cuda.rows import Rows
from irc.kernels.form import Form

TEMPLATES = ("packed", "grouped")


class Packed(Rows):
    """The launch of such a kernel, and its code."""

    def __init__(self, form: Form) -> None:
        super().__init__(without_contractions(form))

    def _tasks_adjacent(self) -> bool:
        return True

    def _kept(self) -> frozenset[int]:
        return frozenset()
