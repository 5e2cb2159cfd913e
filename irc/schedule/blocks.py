"""What list scheduling is asked of a block of ops: each as a task, with what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from xdsl.ir import Block, Operation

from irc.dialects.comm import AllGatherOp, CollectiveOp, WaitOp
from irc.schedule.overlap import Task

Seconds: TypeAlias = Callable[[Operation], float]


def scheduled_ops(block: Block) -> list[Operation]:
    """Return the ops of a block that have a place in its order: all but its terminator."""
    return [op for op in block.ops if op is not block.last_op]


def tasks_of(block: Block, seconds: Seconds) -> list[Task]:
    """Return the ops of a block, all but its terminator, as tasks, in their order.

    Args:
        block: of any level with collectives.
        seconds: of each op; of a collective, on its link.
    """
    ops = scheduled_ops(block)
    position: dict[Operation | Block, int] = {op: i for i, op in enumerate(ops)}

    def task(op: Operation) -> Task:
        before = dict.fromkeys(v.owner for v in op.operands if v.owner in position)
        after = tuple(position[owner] for owner in before)
        if isinstance(op, WaitOp):
            return Task(after, waits_for=position.get(op.inputs[0].owner, -1))
        if not isinstance(op, CollectiveOp):
            return Task(after, seconds(op))
        # What is returned has its memory in any case.
        grows = isinstance(op, AllGatherOp) and any(
            use.operation is not block.last_op
            for wait in op.outputs[0].uses
            for use in wait.operation.results[0].uses
        )
        return Task(after, seconds(op), op.axis.data, grows=grows)

    return [task(op) for op in ops]
