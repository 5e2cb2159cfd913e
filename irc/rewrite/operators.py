"""The ops that rules may name, and how the dims of an op are matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ContractOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
)
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.ops.functions import POINTWISE
from irc.ops.infer import parse_spec

REDUCTIONS = ("sum", "max", "min", "prod", "mean", "any", "all")
COMMUTATIVE = frozenset({
    "add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "logical_xor",
    "bit_and", "bit_or", "bit_xor",
})  # fmt: skip
"""Pointwise functions whose operands may stand in either order."""

OWN = (
    ContractOp, ReshapeOp, TransposeOp, BroadcastOp, SliceOp, ConcatOp, PadOp, TakeOp, GatherOp,
    ConvolutionOp, PoolOp, AttentionOp,
)  # fmt: skip

OPERATORS: Mapping[str, type[FlowOp]] = {
    **{op.short_name(): op for op in OWN},
    **dict.fromkeys(REDUCTIONS, ReduceOp),
    **dict.fromkeys(POINTWISE, PointwiseOp),
}
"""The class of an op by its name in a rule."""


def is_op(op: FlowOp, name: str) -> bool:
    """True where an op is what a rule calls ``name``."""
    if type(op) is not OPERATORS[name]:
        return False
    return not isinstance(op, PointwiseOp | ReduceOp) or op.fn == name


def spec_matches(pattern: str, spec: str) -> bool:
    """True where an einsum spec is a pattern with other letters; ``*`` are leading dims.

    >>> spec_matches("*sd,*td->*st", "abqe,abke->abqk"), spec_matches("*sd,*dt->*st", "qe,ke->qk")
    (True, False)
    """
    (*wanted, goal), (*operands, result) = _terms(pattern), _terms(spec)
    if len(wanted) != len(operands):
        return False
    lead: str | None = None
    letters: dict[str, str] = {}
    for form, term in zip((*wanted, goal), (*operands, result), strict=True):
        named = form.removeprefix("*")
        count = len(term) - len(named)
        if count < 0 or (count and named == form):
            return False
        if form != named:
            lead = term[:count] if lead is None else lead
            if lead != term[:count]:
                return False
        for mine, theirs in zip(named, term[count:], strict=True):
            if letters.setdefault(mine, theirs) != theirs:
                return False
    theirs = [*letters.values(), *(lead or "")]
    return len(set(theirs)) == len(theirs)


def spec_of(pattern: str, ranks: tuple[int, ...]) -> str:
    """Return the spec of a pattern for operands of these ranks.

    >>> spec_of("*sd,*td->*st", (4, 4))
    'ABsd,ABtd->ABst'

    Raises:
        ValueError: where the ranks do not fit.
    """
    (*wanted, goal) = _terms(pattern)
    counts = {rank - len(f.removeprefix("*")) for f, rank in zip(wanted, ranks, strict=True)
              if f.startswith("*")}  # fmt: skip
    if len(counts) > 1 or min(counts, default=0) < 0:
        raise ValueError(f"operands of ranks {ranks} do not fit '{pattern}'")
    lead = "ABCDEFGH"[: min(counts, default=0)]
    inputs = ",".join(form.replace("*", lead) for form in wanted)
    return f"{inputs}->{goal.replace('*', lead)}"


def perm_of(pattern: str, rank: int) -> tuple[int, ...]:
    """Return the permutation that ``*dt->*td`` is for a rank.

    >>> perm_of("*dt->*td", 4)
    (0, 1, 3, 2)

    Raises:
        ValueError: where the rank does not fit.
    """
    source, _, result = spec_of(pattern, (rank,)).partition("->")
    if len(source) != rank or sorted(source) != sorted(result):
        raise ValueError(f"a value of rank {rank} does not fit '{pattern}'")
    return tuple(source.index(letter) for letter in result)


def dims_of(written: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return dims of a rank in order, those below 0 counted from the end; None where one is none.

    >>> dims_of([-1, 0], 3), dims_of([3], 3)
    ((0, 2), None)
    """
    if not all(-rank <= dim < rank for dim in written):
        return None
    return tuple(sorted({dim % rank for dim in written}))


def _terms(spec: str) -> list[str]:
    if "*" not in spec:
        inputs, result = parse_spec(spec)
        return [*inputs, result]
    left, _, right = spec.replace(" ", "").partition("->")
    return [*left.split(","), right]
