"""What list scheduling is asked of a block of ops: each as a task, with what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from xdsl.ir import Block, Operation

from irc.dialects.comm import AllGatherOp, CollectiveOp, WaitOp
from irc.schedule.overlap import Task

Seconds: TypeAlias = Callable[[Operation], float]


def scheduled_ops(block: Block) -> list[Operation]:
    """Return the ops of a block that have a place in its order.

    That is all but its terminator; of a bucket of collectives the last, which stands for it.
    """
    joined = buckets_of(block)
    return [op for op in block.ops if op is not block.last_op and joined.get(op, [op])[-1] is op]


def buckets_of(block: Block) -> dict[Operation, list[CollectiveOp]]:
    """Return of each collective of a bucket all that are in it, in their order."""
    buckets: dict[str, list[CollectiveOp]] = {}
    for op in block.ops:
        if isinstance(op, CollectiveOp) and op.bucket is not None:
            buckets.setdefault(op.bucket, []).append(op)
    return {op: bucket for bucket in buckets.values() for op in bucket}


def tasks_of(block: Block, seconds: Seconds) -> list[Task]:
    """Return what has a place in the order of a block (:func:`scheduled_ops`) as tasks.

    Args:
        block: of any level with collectives.
        seconds: of each op; of a collective, on its link.
    """
    ops, joined = scheduled_ops(block), buckets_of(block)
    position: dict[Operation | Block, int] = {op: i for i, op in enumerate(ops)}
    position |= {op: position[bucket[-1]] for op, bucket in joined.items()}

    def task(op: Operation) -> Task:
        if op not in joined:
            return alone(op)
        each = [alone(member) for member in joined[op]]
        after = tuple(dict.fromkeys(place for task in each for place in task.after))
        total, grows = sum(task.seconds for task in each), any(task.grows for task in each)
        return Task(after, total, each[0].axis, grows=grows)

    def alone(op: Operation) -> Task:
        after = tuple(dict.fromkeys(position[v.owner] for v in op.operands if v.owner in position))
        if isinstance(op, WaitOp):
            return Task(after, waits_for=position.get(op.pending.owner, -1))
        if not isinstance(op, CollectiveOp):
            return Task(after, seconds(op))
        # What is returned has its memory in any case.
        grows = isinstance(op, AllGatherOp) and any(
            use.operation is not block.last_op
            for wait in op.outputs[0].uses
            for use in wait.operation.results[0].uses
        )
        return Task(after, seconds(op), op.axis, grows=grows)

    return [task(op) for op in ops]
