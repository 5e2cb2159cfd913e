"""Where a pipeline's stages begin: the cut with the fastest slowest stage, or what a user fixes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import arguments, functions, results
from irc.dialects.flow import FlowOp, loc_of
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.errors import IrcError, did_you_mean
from irc.ops.rule import RuleError
from irc.ops.work import VIEWS, bytes_moved, flops

BACKWARD = 2.0
"""What backward takes relative to forward: two products for each one."""


class Costs:
    """Seconds of the ops of a module, forward and backward, and of what crosses between stages.

    Args:
        module: level flow.
        cluster: preset or file of the machines.
    """

    def __init__(self, module: ModuleOp, cluster: str) -> None:
        from irc.cluster.load import find_cluster
        from irc.cost.roofline import roofline_s

        self._device = find_cluster(cluster).device
        self._roofline = roofline_s
        self._functions = functions(module)
        self._calls: dict[str, float] = {}

    def seconds(self, op: Operation) -> float:
        """Return what an op takes, forward and backward, whole, on one device."""
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            if name not in self._calls:
                body = self._functions[name].body.block
                self._calls[name] = sum(map(self.seconds, body.ops))
            return self._calls[name]
        if not isinstance(op, FlowOp) or op.name in VIEWS:
            return 0.0
        try:
            work, moved = flops(op), bytes_moved(op)
        except (RuleError, KeyError, ValueError):
            work, moved = 0, sum(map(num_bytes, (*op.inputs, *op.outputs)))
        dtype = next((v.type.dtype for v in op.outputs if isinstance(v.type, TensorType)), "f32")
        forward = self._roofline(self._device, flops=work, num_bytes=moved, dtype=dtype)
        return (1 + BACKWARD) * forward

    def transfer(self, crossing: int) -> float:
        """Return the seconds of bytes that go forward over a cut, and of their gradient back."""
        return 2 * crossing / self._device.bytes_per_s


def num_bytes(value: SSAValue) -> int:
    """Return the bytes of a whole tensor; 0 where a size is a name, or the value no tensor."""
    kind = value.type
    if not isinstance(kind, TensorType) or not all(isinstance(d, int) for d in kind.shape):
        return 0
    size = ITEM_BYTES[kind.dtype]
    for dim in kind.static_shape():
        size *= dim
    return size


def everywhere(func: FuncOp) -> set[Operation]:
    """Return the ops that each stage computes for itself: of inputs and constants alone.

    Nothing random, and nothing of a buffer that the program moves.
    """
    moved = {name for role, name in results(func) if role == "state"}
    free: set[SSAValue] = {
        value
        for role, name, value in arguments(func)
        if role in ("input", "constant") or (role == "buffer" and name not in moved)
    }
    chosen: set[Operation] = set()
    for op in func.body.block.ops:
        if isinstance(op, ReturnOp) or op.name in ("flow.random", "flow.extern"):
            continue
        if all(value in free for value in op.operands) and not _is_costly(op):
            free.update(op.results)
            chosen.add(op)
    return chosen


def _is_costly(op: Operation) -> bool:
    # A whole block of inputs alone is work, not bookkeeping.
    return isinstance(op, CallOp) or op.name in ("flow.contract", "flow.convolution")


@dataclass(frozen=True)
class _Line:
    """The ops that are cut, in program order, and what crosses each position between them."""

    ops: tuple[Operation, ...]
    crossing: tuple[int, ...]


def _line(func: FuncOp) -> _Line:
    free = everywhere(func)
    ops = [o for o in func.body.block.ops if not isinstance(o, ReturnOp) and o not in free]
    place = {op: i for i, op in enumerate(ops)}
    change = [0] * (len(ops) + 2)
    for op in ops:
        for value in op.results:
            readers = [place[u.operation] for u in value.uses if u.operation in place]
            if readers and max(readers) > place[op]:
                change[place[op] + 1] += num_bytes(value)
                change[max(readers) + 1] -= num_bytes(value)
    return _Line(tuple(ops), tuple(accumulate(change[: len(ops) + 1])))


def balanced(func: FuncOp, costs: Costs, count: int) -> dict[Operation, int]:
    """Return the stage of each op that is cut: the slowest stage as fast as can be.

    O(count * n^2) in the ops between which something is computed.

    Raises:
        IrcError: ``pipeline-stages`` for more stages than there are ops with work.
    """
    line = _line(func)
    times = [costs.seconds(op) for op in line.ops]
    working = sum(1 for seconds in times if seconds > 0)
    if count > max(working, 1):
        raise IrcError(
            "pipeline-stages",
            f"{count} stages, and the model has {working} ops and blocks to share among them",
            because="a block of a repeated layer is computed by one stage",
            help=f"choose at most {working} stages",
        )
    n, before = len(times), [0.0, *accumulate(times)]
    cuts = [i for i in range(1, n) if before[i] > before[i - 1] or i == n]
    points = [0, *cuts, n]
    price = [0.0 if i in (0, n) else costs.transfer(line.crossing[i]) for i in points]

    def stage(a: int, b: int) -> float:
        return before[points[b]] - before[points[a]] + price[a] + price[b]

    last = len(points) - 1
    best = [(inf, inf)] * (last + 1)
    best[0] = (0.0, 0.0)
    origins: list[list[int]] = []
    for _ in range(count):
        row = [(inf, inf)] * (last + 1)
        origin = [-1] * (last + 1)
        for b in range(1, last + 1):
            for a in range(b - 1, -1, -1):
                own = before[points[b]] - before[points[a]]
                if own > row[b][0]:
                    break
                if own <= 0 or best[a][0] == inf:
                    continue
                found = (max(best[a][0], stage(a, b)), best[a][1] + price[a])
                if found < row[b]:
                    row[b], origin[b] = found, a
        best = row
        origins.append(origin)
    bounds, at = [n], last
    for origin in reversed(origins):
        at = origin[at]
        bounds.append(points[at])
    bounds.reverse()
    return {op: _stage_at(i, bounds) for i, op in enumerate(line.ops)}


def _stage_at(position: int, bounds: Sequence[int]) -> int:
    return max(k for k in range(len(bounds) - 1) if bounds[k] <= position)


def pinned(func: FuncOp, costs: Costs, text: str, count: int) -> dict[Operation, int]:
    """Return the stage of each op as a user fixes it, by names of parameters.

    Raises:
        IrcError: ``pipeline-stages`` where the text names other things than the model has, or
            stages through which values would go backward.
    """
    names = [name for role, name, _ in arguments(func) if role in ("parameter", "buffer")]
    stages = [part.strip() for part in text.split(";")]
    if len(stages) != count:
        raise IrcError(
            "pipeline-stages",
            f"stages names {len(stages)}, and the mesh and the schedule have {count}",
            help="write one part for each, with ';' between them",
        )
    owner: dict[str, int] = {}
    for stage, part in enumerate(stages):
        for word in filter(None, (w.strip() for w in part.split(","))):
            chosen = [name for name in names if _is_in(name, word)]
            if not chosen:
                known = sorted({name.rpartition(".")[0] or name for name in names})
                raise IrcError(
                    "pipeline-stages",
                    f"stage {stage} is to have '{word}', and no parameter has such a name",
                    help=did_you_mean(word, known),
                )
            owner.update(dict.fromkeys(chosen, stage))
    line = _line(func)
    named = {value: name for _, name, value in arguments(func)}
    found: dict[Operation, int] = {}
    latest = 0
    for op in line.ops:
        own = [owner[named[v]] for v in op.operands if v in named and named[v] in owner]
        # What reads a tied weight again is where the values that it works on are.
        stage = max((*own, *_stages_read(op, found)), default=0)
        found[op] = stage
        latest = max(latest, stage)
    _check_used(found, count, stages)
    return found


def _stages_read(op: Operation, found: Mapping[Operation, int]) -> list[int]:
    return [
        found[value.owner]
        for value in op.operands
        if not isinstance(value.owner, Block) and value.owner in found
    ]


def _check_used(found: Mapping[Operation, int], count: int, stages: Sequence[str]) -> None:
    used = set(found.values())
    for stage in range(count):
        if stage not in used:
            first = next(iter(found), None)
            raise IrcError(
                "pipeline-stages",
                f"stage {stage} ('{stages[stage]}') would compute nothing",
                where=loc_of(first) if first is not None else "",
                because="an op goes to the latest stage of what it reads",
                help="name the layers in the order in which the model runs them",
            )


def _is_in(name: str, word: str) -> bool:
    """Return whether a parameter is of a module, or of a range of modules ``l.0-l.3``."""
    first, dash, last = word.partition("-")
    if not dash:
        return name == word or name.startswith(f"{word}.")
    low, high = (
        re.fullmatch(r"(.*?)(\d+)", first.strip()),
        re.fullmatch(r"(.*?)(\d+)", last.strip()),
    )
    if low is None or high is None or low[1] != high[1]:
        return name == word or name.startswith(f"{word}.")
    here = re.match(re.escape(low[1]) + r"(\d+)(?:\.|$)", name)
    return here is not None and int(low[2]) <= int(here[1]) <= int(high[2])
