"""Drop signatures that another one never loses to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.placement import Placement
from irc.dialects.types import TensorType
from irc.ops.strategies import RING
from irc.sharding.boxing import Boxing
from irc.sharding.signatures import NdSignature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def undominated(
    op: FlowOp, candidates: Sequence[NdSignature], seconds: Sequence[float], boxing: Boxing
) -> list[int]:
    """Return the indices of the signatures that can be part of a cheapest plan.

    Signature t dominates s where whoever has arranged for s gets t for no more, by boxing operands
    to what t wants and results back to what s gives:

        c(t) + sum of d(operand of s, operand of t) + sum of d(result of t, result of s)  <=  c(s)

    A ring, which is there for the memory that it saves, is only dominated by another ring.
    """
    import numpy as np

    costs = np.array(seconds)
    total = costs[np.newaxis, :] - costs[:, np.newaxis]  # [s, t]: what t costs more
    for i, value in enumerate(op.inputs):
        total = total + _distances(value, [s.operands[i] for s in candidates], boxing)
    for i, value in enumerate(op.outputs):
        total = total + _distances(value, [s.results[i] for s in candidates], boxing).T
    alive = np.ones(len(candidates), dtype=bool)
    is_ring = np.array([RING in s.strategy for s in candidates])
    for s in range(len(candidates)):
        rivals = (total[s] <= 0.0) & alive
        if is_ring[s]:
            # What gathers all keys is hardly dearer or cheaper, but holds them all at once.
            rivals &= is_ring
        rivals[s] = False
        # Of two that dominate each other, the first stays.
        alive[s] = not rivals.any()
    return [i for i in range(len(candidates)) if alive[i]]


def _distances(value: SSAValue, placed: Sequence[Placement], boxing: Boxing) -> NDArray[np.float64]:
    import numpy as np

    kind = value.type
    if not isinstance(kind, TensorType):
        return np.zeros((len(placed), len(placed)))
    shape, dtype = kind.static_shape(), kind.dtype
    distinct = list(dict.fromkeys(placed))
    place = {placement: i for i, placement in enumerate(distinct)}
    index = np.array([place[placement] for placement in placed])
    table = boxing.matrix(shape, dtype, distinct, distinct)
    return table[np.ix_(index, index)]
