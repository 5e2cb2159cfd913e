"""Why two ops are not one kernel: rules by name, each with a sentence for the user.

The judges of a union (:mod:`irc.kernels.trace`, :mod:`irc.kernels.nest`, :mod:`irc.kernels.rules`)
refuse in their own words; here these are put under rules, so that a report, a forced fusion and a
test speak of the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RULES: Mapping[str, str] = {
    "library": "a library computes one of them, or ranks exchange it: such an op is a launch of its"
    " own",
    "cycle": "another kernel between them reads the first and feeds the second, so neither could"
    " run first",
    "phase": "one belongs to the forward pass and the other to the backward pass: together the"
    " forward value would be computed too early or kept too long",
    "matmul-operand": "the second is a matmul, which reads each element of an operand many times:"
    " computed inside, it would be computed again for each tile",
    "two-matmuls": "each is a matmul with tiles of its own",
    "matmul-shared": "the first is a matmul whose value others read too, so it is written anyway",
    "matmul-reduction": "a matmul computes its result in tiles, and a reduction needs whole rows"
    " of it",
    "matmul-tiles": "the matmul would lose its tiles: what follows is no element-by-element change"
    " of its result",
    "reduced-dims": "their reductions run over different dims, and a kernel has one set of them",
    "dims": "they do not run over the same dims: no single loop nest fits both",
    "loops": "no single loop nest fits both",
    "layout": "one reads the other turned, cut or along a diagonal: the element is computed"
    " elsewhere in the loops, or later",
    "gather": "the second picks elements of the first by index, which must all be there before",
    "recompute": "a costly function would be computed again for each point of a dim that it does"
    " not have",
    "cores": "few long rows would keep most cores idle",
    "columns": "the result would be stored down the columns of a reduction, a cache line for each"
    " element",
    "limits": "the kernel would hold too many ops or buffers",
    "unread": "nothing reads the result",
    "apart": "a constraint keeps them apart",
    "unrelated": "neither reads the other, and they share no operand: nothing would be saved",
    "greedy": "the second joined another kernel first, and both together are no single kernel",
}

# fmt: off
BY_MESSAGE: Mapping[str, str] = {
    "a matmul with another reduction": "matmul-reduction",
    "an operand of a matmul is computed": "matmul-operand",
    "packed weights times a value that the kernel computes": "matmul-operand",
    "a constraint keeps them apart": "apart",
    "a matmul that would lose its tiles": "matmul-tiles",
    "reductions over different dims": "reduced-dims",
    "a reduction over a diagonal": "layout",
    "a value that is read along a diagonal": "layout",
    "a slice of a value that the kernel computes": "layout",
    "rows of two strides times packed weights": "layout",
    "packed weights that lie apart": "layout",
    "reduced dims that lie apart in memory": "layout",
    "windows over a value that the kernel computes": "gather",
    "windows over a dim of two strides": "layout",
    "a convolution with weights that the kernel computes": "matmul-operand",
    "a gather from a value that the kernel computes": "gather",
    "a gather along a dim of two strides": "layout",
    "a value with a dim that no output has": "dims",
    "a reduction of a value that does not vary along the reduced dims": "dims",
    "a reduction that would be computed again for each task": "recompute",
    "an output that lacks a dim of the tasks": "dims",
    "outputs over different dims": "dims",
    "an output that has a part of the reduced dims": "dims",
    "an output that repeats one value along the reduced dims": "dims",
    "a store down the columns of a reduction": "columns",
    "nothing reads it": "unread",
}
# fmt: on
BY_PART: Mapping[str, str] = {
    "sizes do not nest": "dims",
    "is not part of kernels": "library",
    "would be computed again for each point": "recompute",
    "would keep the other cores idle": "cores",
    "over ": "limits",
}
"""Messages with names or numbers in them, by a part that does not change."""

PROFIT = frozenset({"recompute", "cores", "columns", "limits"})
"""Rules of profit: a user who forces a fusion overrules them (the limits only so far)."""


@dataclass(frozen=True)
class Reason:
    """A rule, and what the judge said in the case at hand."""

    rule: str
    detail: str = ""

    @staticmethod
    def of(message: str) -> Reason:
        """Put a judge's message under its rule."""
        rule = BY_MESSAGE.get(message)
        if rule is None:
            rule = next((name for part, name in BY_PART.items() if part in message), "loops")
        return Reason(rule, message)

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail and self.detail not in BY_MESSAGE else ""
        return f"{RULES[self.rule]}{detail}"
