"""What each rank of a ring computes and sends: equal or not, which its one text does not show.

All ranks run the same ops, and where a causal mask leaves nothing of a block, a rank skips it. How
much a mask leaves depends on where rows and keys stand, which the program computes from the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.ir import Block, SSAValue

from irc.dialects.comm import PermuteOp, RankIndexOp
from irc.dialects.flow import ExternOp, FlowOp, PointwiseOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import ITEM_BYTES
from irc.ops.attention_ops import ATTENTION, BACKWARD, form_of
from irc.ops.work import flops


@dataclass(frozen=True)
class RingWork:
    """What the ranks of a ring do, each a number for every rank.

    Attributes:
        flops: arithmetic of attention, without what a causal mask hides.
        on_bytes: sent to the next rank, hop by hop.
        back_bytes: sent to others: results to whom they belong, and to bring chunks in order.
        received_bytes: that came.
    """

    flops: tuple[int, ...]
    on_bytes: tuple[int, ...]
    back_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]

    @property
    def sent_bytes(self) -> tuple[int, ...]:
        """All that a rank sends."""
        return tuple(a + b for a, b in zip(self.on_bytes, self.back_bytes, strict=True))


def ring_work(block: Block, axis: str, size: int) -> RingWork:
    """Return what each rank does in the local program of a ring.

    Args:
        block: the program, level spmd.
        axis: the mesh axis of the ring.
        size: of that.
    """
    ranks = range(size)
    ops = [op for op in block.ops if isinstance(op, FlowOp)]
    on, back, received = ([0] * size for _ in range(3))
    following = tuple((rank + 1) % size for rank in ranks)
    for op in ops:
        if not isinstance(op, PermuteOp):
            continue
        kind, targets = tensor(op.x), op.targets
        num_bytes = prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]
        sent = on if targets == following else back
        for rank, target in enumerate(targets):
            if target not in (-1, rank):
                sent[rank] += num_bytes
                received[target] += num_bytes
    work = tuple(_rank_flops(ops, axis, rank) for rank in ranks)
    return RingWork(work, tuple(on), tuple(back), tuple(received))


def _rank_flops(ops: list[FlowOp], axis: str, rank: int) -> int:
    known: dict[SSAValue, int] = {}
    total = 0
    for op in ops:
        plain = op.plain
        match op:
            case RankIndexOp():
                # Which other shards a rank has decides nothing here.
                known[op.outputs[0]] = rank if plain["axis"] == axis else 0
            case ConstantOp() if not tensor(op.outputs[0]).shape and _is_whole(plain["value"][0]):
                known[op.outputs[0]] = plain["value"][0]
            case PointwiseOp() if all(value in known for value in op.inputs):
                number = _number(plain["fn"], [known[value] for value in op.inputs])
                if number is not None:
                    known[op.outputs[0]] = number
            case ExternOp() if plain["target"] in (ATTENTION, BACKWARD):
                total += _attention_flops(op, known)
            case _:
                pass
    return total


def _number(fn: str, numbers: Sequence[int]) -> int | None:
    """Return what a function of numbers gives, None where no place is computed by it."""
    match fn, *numbers:
        case "add", a, b:
            return a + b
        case "sub", a, b:
            return a - b
        case "lt", a, b:
            return int(a < b)
        case "where", choice, a, b:
            return a if choice else b
        case _:
            return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int)


def _attention_flops(op: ExternOp, known: Mapping[SSAValue, int]) -> int:
    form, q = form_of(op.plain, len(op.inputs)), int(op.target == BACKWARD)
    rows, keys = (tensor(op.operands[i]).static_shape()[-2] for i in (q, q + 1))
    if not form.is_causal:
        return flops(op)
    start = 0 if form.start is None else known[op.operands[form.start]]
    return flops(op) // (rows * keys) * seen_scores(rows, keys, start)


def seen_scores(rows: int, keys: int, start: int) -> int:
    """Return of how many pairs row i sees key j, where ``i + start >= j``.

    >>> seen_scores(4, 4, 0), seen_scores(4, 4, 4), seen_scores(4, 4, -4), seen_scores(2, 3, 1)
    (10, 16, 0, 5)
    """

    def up_to(last: int) -> int:
        """Keys that rows see of which the last sees ``last``, and each before it one less."""
        if last <= keys:
            return last * (last + 1) // 2 if last > 0 else 0
        return keys * (keys + 1) // 2 + (last - keys) * keys

    return up_to(start + rows) - up_to(start)
