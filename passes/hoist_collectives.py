"""Pass ``hoist-collectives``: collectives at the edges of a block move to its callers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from irc.dialects.builder import functions
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    CollectiveOp,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import FlowOp, PointwiseOp, id_of, phase_of
from irc.dialects.noted import noted_placement
from irc.errors import InternalError
from irc.sharding.split_function import split_at

MOVED = (AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp)


@dataclass(frozen=True)
class Pair:
    """A collective and its wait, at the beginning or the end of a block.

    Attributes:
        place: of the argument that it reads, or of the result that it gives.
        cast: of what it gives, behind which nothing else stands in the block.
    """

    start: CollectiveOp
    wait: WaitOp
    place: int
    cast: PointwiseOp | None = None

    @property
    def ops(self) -> tuple[FlowOp, ...]:
        """What moves, in its order."""
        return (self.start, self.wait) if self.cast is None else (self.start, self.wait, self.cast)


@dataclass(frozen=True)
class HoistCollectivesPass(ModulePass):
    """Move collectives on arguments and results of a block out to where it is called.

    Repeated layers and optimiser updates are functions, and ``order`` moves nothing over the edge
    of one: a gradient that an update reduces would be reduced when the update begins, however early
    it was there. Outside, it begins behind the backward pass of its layer, and
    ``bucket-collectives`` joins it with others.

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @step_0(%w: !flow.tensor<[4], f32>,
        %g: !flow.tensor<[4], f32> {sbp = #sbp.placement<[data = P(sum)]>})
        -> !flow.tensor<[4], f32> {
      %s = comm.all_reduce(%g) {axis = "data", fn = "sum", id = "arg1.box0.start", loc = "m.py:1",
              sbp = [#sbp.placement<[data = B]>]}
          : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %r = comm.wait(%s) {id = "arg1.box0", loc = "m.py:1", sbp = [#sbp.placement<[data = B]>]}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %n = flow.pointwise(%w, %r) {fn = "sub", id = "n0", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %n : !flow.tensor<[4], f32>
    }
    func.func @forward(%w: !flow.tensor<[4], f32>, %g: !flow.tensor<[4], f32>)
        -> !flow.tensor<[4], f32> {
      %n = func.call @step_0(%w, %g) {id = "n1", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %n : !flow.tensor<[4], f32>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @step_0(%w: !flow.tensor<[4], f32>,
        %r: !flow.tensor<[4], f32> {sbp = #sbp.placement<[data = B]>}) -> !flow.tensor<[4], f32> {
      %n = flow.pointwise(%w, %r) {fn = "sub", id = "n0", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %n : !flow.tensor<[4], f32>
    }
    func.func @forward(%w: !flow.tensor<[4], f32>, %g: !flow.tensor<[4], f32>)
        -> !flow.tensor<[4], f32> {
      %s = comm.all_reduce(%g) {axis = "data", fn = "sum", id = "n1.arg1.box0.start",
              loc = "m.py:1", sbp = [#sbp.placement<[data = B]>]}
          : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %r = comm.wait(%s) {id = "n1.arg1.box0", loc = "m.py:1", sbp = [#sbp.placement<[data = B]>]}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %n = func.call @step_0(%w, %r) {id = "n1", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %n : !flow.tensor<[4], f32>
    }
    }
    ```

    An argument that something else reads, too, and a result that has readers inside stay. Moved are
    all-reduce, all-gather, reduce-scatter and all-to-all of one operand, with a cast of what they
    give (sums are wider than what is kept of them). An optimizer's update that
    has one in its middle, as where ranks share the work of an update and each wants all of the
    weight, is cut in two there (:mod:`irc.sharding.split_function`).
    """

    name = "hoist-collectives"
    level: ClassVar[str] = "spmd"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        moving = True
        while moving:
            known, calls = functions(op), _calls(op)
            for name in _callees_first(known):
                # A boxing over two axes is two collectives, one behind the other.
                while calls[name] and _hoist(known[name], calls):
                    pass
            moving = any(_split(func, calls[name]) for name, func in known.items())


def _calls(module: ModuleOp) -> dict[str, list[CallOp]]:
    """Return the calls of each function."""
    calls: dict[str, list[CallOp]] = {name: [] for name in functions(module)}
    for each in module.walk():
        if isinstance(each, CallOp):
            calls[each.callee.string_value()].append(each)
    return calls


def _split(func: FuncOp, calls: Sequence[CallOp]) -> bool:
    """Cut an update at its first collective; return whether it has one that it can be cut at."""
    if not calls or any(phase_of(call) != "step" for call in calls):
        return False
    for start in func.body.block.ops:
        if (
            isinstance(start, MOVED)
            and isinstance(start.x.owner, Operation)
            and (wait := _wait(start)) is not None
        ):
            split_at(func, start, wait, calls)
            return True
    return False


def _callees_first(known: dict[str, FuncOp]) -> Iterator[str]:
    seen: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name in seen:
            return
        seen.add(name)
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                yield from visit(op.callee.string_value())
        yield name

    for name in known:
        yield from visit(name)


def _hoist(func: FuncOp, calls: dict[str, list[CallOp]]) -> bool:
    """Move the outermost collectives of a function; return whether there were any."""
    before, after = list(_on_arguments(func)), list(_on_results(func))
    if not before and not after:
        return False
    placed = [noted_placement(pair.start.x) for pair in after]
    name = func.sym_name.data
    calls[name] = [_called(call, before, after, placed) for call in calls[name]]
    for pair in before:
        argument = func.body.block.args[pair.place]
        pair.wait.outputs[0].replace_all_uses_with(argument)
        Rewriter.replace_value_with_new_type(argument, pair.wait.outputs[0].type)
        func.arg_attrs = _noted(func.arg_attrs, pair.place, _placement(pair.wait))
    end = _end(func)
    for pair, placement in zip(after, placed, strict=True):
        end.operands[pair.place] = pair.start.x
        func.res_attrs = _noted(func.res_attrs, pair.place, placement)
    for pair in (*before, *after):
        for op in reversed(pair.ops):
            op.detach()
            op.erase()
    func.properties["function_type"] = FunctionType.from_lists(
        [a.type for a in func.body.block.args], [v.type for v in end.operands]
    )
    return True


def _on_arguments(func: FuncOp) -> Iterator[Pair]:
    for place, argument in enumerate(func.body.block.args):
        use = argument.get_user_of_unique_use()
        if isinstance(use, MOVED) and (wait := _wait(use)) is not None:
            yield Pair(use, wait, place)


def _on_results(func: FuncOp) -> Iterator[Pair]:
    for place, value in enumerate(_end(func).operands):
        kept = value.owner if _is_cast(value.owner) else None
        awaited = value if kept is None else kept.a
        wait = awaited.owner
        if not isinstance(wait, WaitOp) or not value.has_one_use() or not awaited.has_one_use():
            continue
        start = wait.pending.owner
        # What reads an argument was moved by that; without a placement `irc check` could not tell.
        is_argument = isinstance(start, MOVED) and isinstance(start.x, BlockArgument)
        if isinstance(start, MOVED) and not is_argument and noted_placement(start.x):
            yield Pair(start, wait, place, kept)


def _is_cast(op: Operation | Block) -> TypeGuard[PointwiseOp]:
    return isinstance(op, PointwiseOp) and op.fn == "cast"


def _wait(start: CollectiveOp) -> WaitOp | None:
    wait = start.outputs[0].get_user_of_unique_use()
    return wait if isinstance(wait, WaitOp) else None


def _called(
    call: CallOp,
    before: Sequence[Pair],
    after: Sequence[Pair],
    placed: Sequence[Attribute | None],
) -> CallOp:
    """Put a call of the changed function, and the collectives around it, in the place of one."""
    block = call.parent
    assert block is not None
    inputs: list[SSAValue] = list(call.operands)
    for pair in before:
        inputs[pair.place] = _copied(pair, inputs[pair.place], call)
    types = [value.type for value in call.results]
    for pair in after:
        types[pair.place] = pair.start.x.type
    new_call = CallOp(call.callee, inputs, types)
    new_call.attributes = dict(call.attributes)
    if "sbp" in call.attributes:
        noted = cast("ArrayAttr[Attribute]", call.attributes["sbp"])
        own = list(noted.data)
        for pair, placement in zip(after, placed, strict=True):
            assert placement is not None
            own[pair.place] = placement
        new_call.attributes["sbp"] = ArrayAttr(own)
    block.insert_op_before(new_call, call)
    results: list[SSAValue] = list(new_call.results)
    for pair in after:
        results[pair.place] = _copied(pair, results[pair.place], call)
    for old, new in zip(call.results, results, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    call.detach()
    call.erase()
    return new_call


def _copied(pair: Pair, value: SSAValue, call: CallOp) -> SSAValue:
    """Write what moves in front of a call, of another value; return what that gives."""
    block = call.parent
    assert block is not None
    for op in pair.ops:
        (read,) = op.operands
        copy = op.clone({read: value})
        copy.attributes["id"] = StringAttr(f"{id_of(call)}.{id_of(op)}")
        block.insert_op_before(copy, call)
        value = copy.outputs[0]
    return value


def _placement(wait: FlowOp) -> Attribute | None:
    return noted_placement(wait.outputs[0])


def _noted(
    attrs: ArrayAttr[DictionaryAttr] | None, place: int, placement: Attribute | None
) -> ArrayAttr[DictionaryAttr] | None:
    """Return the attributes of arguments or results, one of which is placed otherwise now."""
    if attrs is None or placement is None:
        return attrs
    own = list(attrs.data)
    own[place] = DictionaryAttr({**own[place].data, "sbp": placement})
    return ArrayAttr(own)


def _end(func: FuncOp) -> ReturnOp:
    end = func.body.block.last_op
    if not isinstance(end, ReturnOp):
        raise InternalError(f"@{func.sym_name.data} does not return")
    return end
