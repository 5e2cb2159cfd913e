"""Pass ``fuse``: ops that belong in one kernel become one ``flow.fusion``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from irc.constraints.fusion import FusionStatement, named_ops, parse_fusion
from irc.constraints.pins import constraint_text
from irc.dialects.builder import cloned
from irc.dialects.flow import FlowOp, FusionOp, YieldOp, loc_of
from irc.dialects.literals import IotaOp
from irc.dialects.noted import noted_placements, result_id
from irc.errors import IrcError
from irc.kernels.compared import round_compared
from irc.kernels.fusion.groups import Grouping
from irc.kernels.fusion.profit import describe
from irc.kernels.fusion.units import Unit, in_order
from irc.kernels.fusion.wishes import Wish
from irc.kernels.gathers import move_gathers
from irc.kernels.holds import (
    FREE_OPS,
    SHAPE_OPS,
    has_kernel,
    is_unread,
    require_static,
)
from irc.kernels.schedule import require_target
from irc.kernels.weights.fixed import Fixed


@dataclass(frozen=True)
class FusePass(ModulePass):
    """Group ops into kernels: row passes (softmax, layer norm) and matmuls with what follows them.

    An intermediate that stays inside a kernel is never written to memory and read back, which is
    what pointwise ops and reductions spend their time on.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32> {
      %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32>
      %1 = flow.reduce(%0) {fn = "sum", dims = array<i64: 1>, keep_dims = true, loc = "m.py:4",
          id = "n1"} : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 1], f32>
      %2 = flow.pointwise(%0, %1) {fn = "div", loc = "m.py:5", id = "n2"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[8, 1], f32>) -> !flow.tensor<[8, 4], f32>
      func.return %2 : !flow.tensor<[8, 4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32> {
      %0 = flow.fusion(%x) {kind = "rows", loc = "m.py:5", id = "n2",
          why = "3 ops in one pass over rows, 1 reductions: 320 bytes less to move"}
          : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32> {
      ^bb0(%1: !flow.tensor<[8, 4], f32>):
        %2 = flow.pointwise(%1) {fn = "exp", loc = "m.py:3", id = "n0"}
            : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32>
        %3 = flow.reduce(%2) {fn = "sum", dims = array<i64: 1>, keep_dims = true, loc = "m.py:4",
            id = "n1"} : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 1], f32>
        %4 = flow.pointwise(%2, %3) {fn = "div", loc = "m.py:5", id = "n2"}
            : (!flow.tensor<[8, 4], f32>, !flow.tensor<[8, 1], f32>) -> !flow.tensor<[8, 4], f32>
        flow.yield(%4) : (!flow.tensor<[8, 4], f32>) -> ()
      }
      func.return %0 : !flow.tensor<[8, 4], f32>
    }
    ```

    It declines where a group would be no single loop nest (reductions over different dims, a cycle
    through a library op or a collective), where a costly function would be computed again for each
    point of a dim that it lacks, and where few rows would leave cores idle. Every other compute op
    becomes a fusion of one; attribute ``why`` says what was won.

    ``pins`` (text or the name of a file, ``grammar/sharding.lark``) goes before what pays: ``fuse
    n3, n4`` makes ops one kernel, or says by which rule they cannot be; ``keep n3, n4 apart`` parts
    them. ``irc explain plan PLAN --fusion`` shows the kernels, and why neighbours are two. With
    ``any_rows`` the groups are those of other sizes too: how long a tensor is decides nothing.
    """

    name = "fuse"
    level: ClassVar[str] = "spmd"

    pins: str = ""
    target: str = "cpu"
    any_rows: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target)
        for _, grouping in self.groupings(op):
            _Rebuild(grouping).run()
        text, source = constraint_text(self.pins)
        if parse_fusion(text, source):
            op.attributes[PINS] = StringAttr(text)

    def groupings(self, op: ModuleOp) -> list[tuple[FuncOp, Grouping]]:
        """Decide on the groups of each function; of its ops, only dead ones are changed.

        Raises:
            IrcError: ``size-unbound``; ``fusion-impossible``; ``input-mismatch`` for constraints
                that name no op.
        """
        funcs = [f for f in op.body.block.ops if isinstance(f, FuncOp) and not f.is_declaration]
        for func in funcs:
            require_static(func)
            move_gathers(func.body.block)
            round_compared(func.body.block)
            _drop_dead(func.body.block)
            _part_iotas(func.body.block)
        text, source = constraint_text(self.pins)
        wishes = _wishes(parse_fusion(text, source), op)
        fixed, known = Fixed(op), [wishes.get(f.sym_name.data, ()) for f in funcs]
        return [
            (f, Grouping(f.body.block, wished, self.target, fixed, any_rows=self.any_rows))
            for f, wished in zip(funcs, known, strict=True)
        ]


PINS = "irc.fusion"
"""The attribute of a module that keeps the constraints on its kernels."""


def _wishes(statements: Sequence[FusionStatement], module: ModuleOp) -> dict[str, list[Wish]]:
    """Resolve constraints to ops, by function.

    Raises:
        IrcError: ``fusion-impossible`` for a statement without meaning: a name that only ops have
            which compute nothing, or names that no function has all of.
    """
    wishes: dict[str, list[Wish]] = {}
    for statement in statements:
        sets: dict[str, list[set[Operation]]] = {}
        for place, name in enumerate(statement.names):
            named = named_ops(name, module)
            computing = [(f, op) for f, op in named if op.name not in SHAPE_OPS | FREE_OPS]
            if not computing:
                raise _computes_nothing(statement, name.glob, named[0][1])
            for function, op in computing:
                sets.setdefault(function, [set() for _ in statement.names])[place].add(op)
        whole = {function: parts for function, parts in sets.items() if all(parts)}
        if not whole:
            raise IrcError(
                "fusion-impossible",
                f"'{statement}' names ops of different functions",
                where=statement.where,
                because=f"{', '.join(sets)} each have some of them, and none has all",
                help="name ops of one function",
            )
        for function, parts in whole.items():
            kept = tuple(map(frozenset, parts))
            wish = Wish(statement.verb, kept, str(statement), statement.where)
            wishes.setdefault(function, []).append(wish)
    return wishes


def _computes_nothing(statement: FusionStatement, name: str, op: FlowOp) -> IrcError:
    return IrcError(
        "fusion-impossible",
        f"'{name}' in '{statement}' computes nothing",
        where=statement.where,
        because=f"{op.name} is no kernel: each kernel that reads it holds its own",
        help="name what reads it, or what it reads",
    )


def _drop_dead(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if is_unread(op):
            op.detach()
            op.erase()


def _part_iotas(block: Block) -> None:
    """Give every reader its own iota: rows against columns of one iota would be a diagonal."""
    for op in list(block.ops):
        if isinstance(op, IotaOp):
            # A reader that names it twice keeps one: that is no diagonal.
            readers = list(dict.fromkeys(use.operation for use in op.outputs[0].uses))
            for reader in readers[1:]:
                copy = op.clone()
                block.insert_op_after(copy, op)
                for index, value in enumerate(reader.operands):
                    if value is op.outputs[0]:
                        reader.operands[index] = copy.outputs[0]


class _Rebuild:
    """Writes a block anew, unit by unit; shape ops and literals stand where first read."""

    def __init__(self, grouping: Grouping) -> None:
        self.block = grouping.block
        self.grouping = grouping
        self.done: dict[SSAValue, SSAValue] = {arg: arg for arg in self.block.args}

    def run(self) -> None:
        """Rewrite the block in place."""
        old = list(self.block.ops)
        units = in_order(self.grouping.units, self.grouping.position)
        for op in old:
            op.detach()
        for unit in units:
            if unit.kind == "library":
                self._keep(unit.ops[0])
            else:
                self._fuse(unit)
        self._keep(old[-1])
        kept = set(self.block.ops)
        for op in reversed([op for op in old if op not in kept]):
            op.erase()

    def _keep(self, op: Operation) -> None:
        for index, value in enumerate(op.operands):
            op.operands[index] = self._value(value)
        self.block.add_op(op)
        self.done.update((value, value) for value in op.results)

    def _value(self, value: SSAValue) -> SSAValue:
        """Return what stands for an old value, writing shape ops and literals that it needs."""
        if value not in self.done:
            op = value.owner
            assert isinstance(op, FlowOp) and op.name in SHAPE_OPS | FREE_OPS, op
            if op.name in FREE_OPS and has_kernel(op):
                self._write([op], [value], "rows")
            else:
                self._keep_shape(op)
        return self.done[value]

    def _keep_shape(self, op: FlowOp) -> None:
        copy = op.clone({v: self._value(v) for v in op.inputs})
        self.block.add_op(copy)
        self.done[op.outputs[0]] = copy.results[0]

    def _fuse(self, unit: Unit) -> None:
        ops = self.grouping.members(unit.ops)
        self._write(ops, self.grouping.outputs(ops), unit.kind)

    def _write(self, ops: list[FlowOp], outputs: list[SSAValue], kind: str) -> None:
        inside = {value for op in ops for value in op.outputs}
        outside = list(dict.fromkeys(v for op in ops for v in op.inputs if v not in inside))
        block = Block(arg_types=[value.type for value in outside])
        values: dict[SSAValue, SSAValue] = dict(zip(outside, block.args, strict=True))
        for op in ops:
            block.add_op(cloned(op, values))
        block.add_op(YieldOp(operands=[[values[v] for v in outputs]], result_types=[[]]))
        last = next(op for op in reversed(ops) if op.outputs[0] in outputs)
        fusion = FusionOp.build_fusion(
            [self._value(value) for value in outside],
            [value.type for value in outputs],
            block,
            kind=kind,
            loc=loc_of(last),
            id=",".join(map(result_id, outputs)),
        )
        fusion.attributes["why"] = StringAttr(describe(kind, ops, outputs))
        if (placed := noted_placements(outputs)) is not None:
            fusion.attributes["sbp"] = placed
        self.block.add_op(fusion)
        self.done.update(zip(outputs, fusion.outputs, strict=True))
