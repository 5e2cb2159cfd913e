"""Where a pipeline's stages begin: the cut with the fastest slowest stage, or what a user fixes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import arguments, functions, results
from irc.dialects.flow import ContractOp, ExternOp, FlowOp, loc_of
from irc.dialects.literals import RandomOp
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.dialects.windows import ConvolutionOp
from irc.errors import IrcError
from irc.ops.rule import RuleError
from irc.ops.work import VIEWS, bytes_moved
from irc.training.projections import known_names
from irc.training.stage_names import named_by, unknown_name

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
        from irc.cost.kernels import computed_in, op_work
        from irc.cost.roofline import roofline_s

        self._device = find_cluster(cluster).device
        self._roofline, self._work, self._dtype = roofline_s, op_work, computed_in
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
            work, moved = self._work(self._device, op), bytes_moved(op)
        except (RuleError, KeyError, ValueError):
            work, moved = 0.0, sum(map(num_bytes, (*op.inputs, *op.outputs)))
        # A loss is one real of f32, and its products are those of the weight.
        dtype = self._dtype(op)
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
        if isinstance(op, ReturnOp | RandomOp | ExternOp):
            continue
        if all(value in free for value in op.operands) and not _is_costly(op):
            free.update(op.results)
            chosen.add(op)
    return chosen


def _is_costly(op: Operation) -> bool:
    # A whole block of inputs alone is work, not bookkeeping.
    return isinstance(op, CallOp | ContractOp | ConvolutionOp)


@dataclass(frozen=True)
class _Line:
    """The ops that are cut, in program order.

    Attributes:
        ops: in program order.
        crossing: the bytes that cross each position between them.
        whole: the positions where nothing can be cut.
    """

    ops: tuple[Operation, ...]
    crossing: tuple[int, ...]
    whole: frozenset[int]


def ops_in_line(func: FuncOp) -> list[Operation]:
    """Return the ops that are in one stage each, in program order."""
    free = everywhere(func)
    return [o for o in func.body.block.ops if not isinstance(o, ReturnOp) and o not in free]


def _line(func: FuncOp) -> _Line:
    ops = ops_in_line(func)
    place = {op: i for i, op in enumerate(ops)}
    change = [0] * (len(ops) + 2)
    for op in ops:
        for value in op.results:
            readers = [place[u.operation] for u in value.uses if u.operation in place]
            if readers and max(readers) > place[op]:
                change[place[op] + 1] += num_bytes(value)
                change[max(readers) + 1] -= num_bytes(value)
    return _Line(tuple(ops), tuple(accumulate(change[: len(ops) + 1])), _whole(func, place))


def _whole(func: FuncOp, place: Mapping[Operation, int]) -> frozenset[int]:
    """Return the positions where a cut would part what one stage alone can have.

    These are what reads a buffer and what moves it, since stages work on different micro-batches at
    one time, and what reads the slices of one weight.
    """
    held = {name: value for role, name, value in arguments(func) if role == "buffer"}
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    chosen: set[int] = set()
    for (role, name), moved in zip(results(func), end.operands, strict=True):
        if role == "state" and name in held:
            using = [*(use.operation for use in held[name].uses), moved.owner]
            places = [place[op] for op in using if isinstance(op, Operation) and op in place]
            chosen.update(range(min(places) + 1, max(places) + 1) if places else ())
    for values in _slices(func).values():
        using = [use.operation for value in values for use in value.uses]
        places = [place[op] for op in using if op in place]
        chosen.update(range(min(places) + 1, max(places) + 1) if places else ())
    return frozenset(chosen)


def _slices(func: FuncOp) -> dict[str, list[SSAValue]]:
    """Return the slices of each weight that has some, by its name."""
    slices: dict[str, list[SSAValue]] = {}
    known = known_names(func)
    for _, name, value in arguments(func):
        if known[value] != name:
            slices.setdefault(known[value], []).append(value)
    return slices


def balanced(
    func: FuncOp,
    costs: Costs,
    count: int,
    fixed: Mapping[Operation, int] | None = None,
    own_costs: Sequence[Costs] = (),
) -> dict[Operation, int]:
    """Return the stage of each op that is cut: the slowest stage as fast as can be.

    O(count * n^2) in the ops between which something is computed.

    Args:
        func: the entry.
        costs: of its ops.
        count: of stages.
        fixed: the stage of ops of which a user says it.
        own_costs: of the ops in each stage, where stages are on unequal devices.

    Raises:
        IrcError: ``pipeline-stages`` for more stages than there are ops with work, and for
            fixed ops that leave a stage without work.
    """
    line, fixed = _line(func), fixed or {}
    times = [costs.seconds(op) for op in line.ops]
    n, before = len(times), [0.0, *accumulate(times)]
    befores = [[0.0, *accumulate(map(own.seconds, line.ops))] for own in own_costs]
    befores = befores or [before] * count
    cuts = [i for i in range(1, n) if before[i] > before[i - 1] and i not in line.whole]
    points = [0, *cuts, n]
    working = sum(1 for a, b in pairwise(points) if before[b] > before[a])
    if count > max(working, 1):
        raise IrcError(
            "pipeline-stages",
            f"{count} stages, and the model has {working} ops and blocks to share among them",
            because="a block of a repeated layer, and all that moves a buffer, is in one stage",
            help=f"choose at most {working} stages",
        )
    price = [0.0 if i in (0, n) else costs.transfer(line.crossing[i]) for i in points]

    def stage(k: int, a: int, b: int) -> float:
        return befores[k][points[b]] - befores[k][points[a]] + price[a] + price[b]

    def foreign(k: int) -> list[int]:
        """Count, before each point, what is pinned to another stage than k."""
        others = [fixed.get(op, k) != k for op in line.ops]
        so_far = [0, *accumulate(others)]
        return [so_far[p] for p in points]

    last = len(points) - 1
    best = [(inf, inf)] * (last + 1)
    best[0] = (0.0, 0.0)
    origins: list[list[int]] = []
    for k in range(count):
        others = foreign(k) if fixed else [0] * (last + 1)
        row = [(inf, inf)] * (last + 1)
        origin = [-1] * (last + 1)
        for b in range(1, last + 1):
            for a in range(b - 1, -1, -1):
                own = befores[k][points[b]] - befores[k][points[a]]
                if own > row[b][0]:
                    break
                if own <= 0 or best[a][0] == inf or others[a] != others[b]:
                    continue
                candidate = (max(best[a][0], stage(k, a, b)), best[a][1] + price[a])
                if candidate < row[b]:
                    row[b], origin[b] = candidate, a
        best = row
        origins.append(origin)
    if best[last][0] == inf:
        raise _too_tight(line.ops, fixed, times, count)
    bounds, at = [n], last
    for origin in reversed(origins):
        at = origin[at]
        bounds.append(points[at])
    bounds.reverse()
    return {op: _stage_at(i, bounds) for i, op in enumerate(line.ops)}


def _stage_at(position: int, bounds: Sequence[int]) -> int:
    return max(k for k in range(len(bounds) - 1) if bounds[k] <= position)


def _too_tight(
    ops: Sequence[Operation],
    fixed: Mapping[Operation, int],
    times: Sequence[float],
    count: int,
) -> IrcError:
    """Return the error for constraints that leave some stage without work."""
    ends = [(-1, -1), *((i, fixed[op]) for i, op in enumerate(ops) if op in fixed)]
    ends.append((len(ops), count))
    for (first, low), (last, high) in pairwise(ends):
        room = sum(seconds > 0 for seconds in times[first + 1 : last])
        between = range(low + 1, high)
        if len(between) > room:
            said = ", ".join(map(str, between))
            return IrcError(
                "pipeline-stages",
                f"what is fixed leaves {room} ops and blocks for stage{'s' * (len(between) > 1)} "
                f"{said}",
                because="a stage computes at least one, in the order of the model",
                help="name less, or fewer stages",
            )
    return IrcError(
        "pipeline-stages",
        "no cut keeps to what is fixed",
        because="some stage would compute nothing",
        help="name less, or fewer stages",
    )


def pinned(func: FuncOp, costs: Costs, text: str, count: int) -> dict[Operation, int]:
    """Return the stage of each op as a user fixes it, by names of parameters.

    Raises:
        IrcError: ``pipeline-stages`` where the text names other things than the model has, or
            stages through which values would go backward.
    """
    named = known_names(func)
    held = [value for role, _, value in arguments(func) if role in ("parameter", "buffer")]
    names = list(dict.fromkeys(named[value] for value in held))
    stages = [part.strip() for part in text.split(";")]
    if len(stages) != count:
        raise IrcError(
            "pipeline-stages",
            f"stages names {len(stages)}, and the mesh and the schedule have {count}",
            help="write one part for each, with ';' between them",
        )
    owners: dict[str, list[int]] = {}
    for stage, part in enumerate(stages):
        for word in filter(None, (w.strip() for w in part.split(","))):
            chosen = named_by(word, names)
            if not chosen:
                raise unknown_name(word, stage, names)
            for name in chosen:
                owners.setdefault(name, []).append(stage)
    line = _line(func)
    stage_of: dict[Operation, int] = {}
    read: dict[str, set[int]] = {}
    for op in line.ops:
        own = {n: owners[n] for v in op.operands if (n := named.get(v, "")) in owners}
        # What reads a tied weight again is where the values that it works on are, or where the
        # weight is named again.
        start = max(_stages_read(op, stage_of), default=0)
        again = (next((s for s in at if s >= start), at[-1]) for at in own.values())
        stage_of[op] = max((start, *again))
        for name in own:
            read.setdefault(name, set()).add(stage_of[op])
    _check_used(stage_of, count, stages)
    _check_read(owners, read)
    return stage_of


def _check_read(owners: Mapping[str, Sequence[int]], read: Mapping[str, Collection[int]]) -> None:
    """Refuse what is named in a stage that would not read it."""
    for name, stages in owners.items():
        here = read.get(name, stages)
        idle = [stage for stage in stages if stage not in here]
        if not idle:
            continue
        if len(set(stages)) > 1:
            raise IrcError(
                "pipeline-stages",
                f"stages {stages[0]} and {stages[1]} both name '{name}', and stage {idle[0]} would "
                "not read it",
                because="only a weight that several layers share is in several stages",
                help="name it in one of them",
            )
        raise IrcError(
            "pipeline-stages",
            f"stage {idle[0]} is to have '{name}', and it is read in stage {min(here)}",
            because="an op, or a block of a repeated layer, is in one stage: the latest that one "
            "of its weights or values is in",
            help="name blocks whole, in the order in which the model runs them",
        )


def _stages_read(op: Operation, stage_of: Mapping[Operation, int]) -> list[int]:
    return [
        stage_of[value.owner]
        for value in op.operands
        if not isinstance(value.owner, Block) and value.owner in stage_of
    ]


def _check_used(stage_of: Mapping[Operation, int], count: int, stages: Sequence[str]) -> None:
    used = set(stage_of.values())
    for stage in range(count):
        if stage not in used:
            first = next(iter(stage_of), None)
            raise IrcError(
                "pipeline-stages",
                f"stage {stage} ('{stages[stage]}') would compute nothing",
                where=loc_of(first) if first is not None else "",
                because="an op goes to the latest stage of what it reads",
                help="name the layers in the order in which the model runs them",
            )
