"""What irc knows of an op of level flow beside its fields: one record, in the file of the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule
from irc.ops.strategies import StrategyFunction

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from irc.ops.derivative import Adjoint


@dataclass(frozen=True)
class OpRecord:
    """What shape inference, the search, prices and the backward sweep ask of an op.

    What it computes says :mod:`irc.runtime.flow_ops`, in torch. An op that no kernel is written for
    runs so.

    Attributes:
        infer: shapes and dtypes of the results, from attributes and operands; None for an op whose
            result is stated, because it is the op's meaning.
        rule: which dims may be split over ranks, from the same and the results.
        flops: its arithmetic, from attributes, rule and the sizes of the rule's factors; None for
            one that only moves data.
        derivative: the gradient of an operand, by its number; None for one that has none.
        strategies: ways to split it that the rule cannot say.
        refusal: in one sentence, which dims stay whole and why; empty where none does.
        fns: what the op's ``fn`` may be; empty: it has none.
        looks_up: it reads of its first operand only what it gives.
        is_flat: no gradient goes through it: its results do not change with small changes of x.
    """

    infer: Callable[[Attrs, Sequence[Signature]], list[Signature]] | None
    rule: Callable[[Attrs, Sequence[Signature], Sequence[Signature]], Rule]
    flops: Callable[[Attrs, Rule, Mapping[str, int]], int] | None = None
    derivative: Callable[[Adjoint, int], SSAValue | None] | None = None
    strategies: StrategyFunction | None = None
    refusal: str = ""
    fns: tuple[str, ...] = ()
    looks_up: bool = False
    is_flat: bool = False
