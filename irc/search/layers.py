"""The repeated layers of a captured program, and the same program with fewer of them.

A model of many equal layers is its first ops, a *run* of calls of one block, or of a few blocks in
turn, and its last ops. What one more layer takes is known from two short runs, so that a search
plans a few layers whatever the depth (:mod:`irc.search.blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import argument_attrs, arguments, entry, results
from irc.training.entry import HELD, drop_uncalled, drop_unread, set_results

MOST_IN_TURN = 4
"""So many blocks at most take turns (local and global attention, dense and experts)."""


@dataclass(frozen=True)
class Layers:
    """The run of calls of a program.

    Attributes:
        calls: in program order.
        period: calls of different blocks that follow each other, and are one layer here.
    """

    calls: tuple[CallOp, ...]
    period: int

    @property
    def count(self) -> int:
        """How often the blocks follow each other."""
        return len(self.calls) // self.period

    def layer(self, number: int) -> tuple[CallOp, ...]:
        """Return the calls of a layer."""
        return self.calls[number * self.period : (number + 1) * self.period]


def layers_of(module: ModuleOp) -> Layers | None:
    """Return the longest run of equal layers; None where nothing is repeated.

    O(calls * MOST_IN_TURN).

    Args:
        module: level flow, as captured.
    """
    calls = [op for op in entry(module).body.block.ops if isinstance(op, CallOp)]
    names = [call.callee.string_value() for call in calls]
    best: tuple[int, int, int] | None = None
    for period in range(1, MOST_IN_TURN + 1):
        start, count = _longest_run(names, period)
        # Of equally many calls those of the fewest blocks.
        if count > 1 and (best is None or count * period > best[1] * best[2]):
            best = start, count, period
    if best is None:
        return None
    start, count, period = best
    return Layers(tuple(calls[start : start + count * period]), period)


def _longest_run(names: Sequence[str], period: int) -> tuple[int, int]:
    """Return where the longest run of a period begins, and how often the period is in it.

    >>> _longest_run(["a", "b", "c", "b", "c", "b"], 2)
    (1, 2)
    """
    best, start = (0, 0), 0
    for end in range(1, len(names) + 1):
        if end == len(names) or (end - start >= period and names[end] != names[end - period]):
            count = (end - start) // period
            if count > best[1]:
                best = start, count
            start = max(start, end - period + 1)
    return best


def shortened(module: ModuleOp, count: int) -> ModuleOp:
    """Return a copy of a program with the first ``count`` layers alone.

    What later layers give is that of the last one that is kept; weights that nothing reads are no
    arguments any more.

    Args:
        module: level flow, as captured; it has a run of layers (:func:`layers_of`).
        count: 1 or more.
    """
    copy = module.clone()
    known = layers_of(copy)
    if known is None or count >= known.count:
        return copy
    func = entry(copy)
    kept = known.layer(count - 1)
    gone: set[SSAValue] = set()
    for number in range(count, known.count):
        gone.update(value for call in known.layer(number) for value in call.results)
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    # What a layer that is left out would move has no argument.
    named = zip(results(func), end.operands, strict=True)
    returned = [(named, v) for named, v in named if named[0] == "output" or v not in gone]
    values = [value for _, value in returned]
    set_results(func, values, [argument_attrs(role, name) for (role, name), _ in returned])
    for number in range(known.count - 1, count - 1, -1):
        for call, like in zip(known.layer(number), kept, strict=True):
            for value, other in zip(call.results, like.results, strict=True):
                value.replace_all_uses_with(other)
            call.detach()
            call.erase()
    drop_unread(func)
    _drop_arguments(copy)
    drop_uncalled(copy)
    return copy


def _drop_arguments(module: ModuleOp) -> None:
    """Erase weights that nothing reads."""
    func = entry(module)
    attrs = list(func.arg_attrs.data) if func.arg_attrs else []
    unread = [
        place
        for place, (role, _, value) in enumerate(arguments(func))
        if role in HELD and value.first_use is None
    ]
    for place in reversed(unread):
        func.body.block.erase_arg(func.body.block.args[place])
        del attrs[place]
    func.arg_attrs = ArrayAttr(attrs)
    func.update_function_type()
