"""The pointwise functions: one record each, in the file of its family.

A record gives everything that irc knows of a function: its meaning, derivative, names in torch and
ONNX, and what it is on each target. Frontends and backends look there; to add a function is to add
its record.
"""

from collections.abc import Mapping

from irc.ops.functions import (
    activations,
    arithmetic,
    comparisons,
    exponentials,
    hyperbolic,
    logic,
    rounding,
    selection,
    special,
    trigonometry,
)
from irc.ops.functions.record import Pointwise

FAMILIES = (
    arithmetic, exponentials, trigonometry, hyperbolic, special, activations, rounding, comparisons,
    logic, selection,
)  # fmt: skip

POINTWISE: Mapping[str, Pointwise] = {
    function.name: function for family in FAMILIES for function in family.FUNCTIONS
}
