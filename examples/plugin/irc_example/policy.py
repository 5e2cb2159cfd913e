"""A policy of recomputation: products are saved, all else runs again."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import ContractOp


def keep_products(forward: Sequence[Operation], fixed: AbstractSet[SSAValue]) -> set[Operation]:
    """Let everything but matrix products run again in backward.

    Args:
        forward: the ops of one body, in order.
        fixed: its weights, and what is made of them alone, which are there anyway.
    """
    return {op for op in forward if not isinstance(op, ContractOp)}
