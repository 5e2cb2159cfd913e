"""Pass ``differentiate``: a program that gives a loss also gives its parameters' gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import argument_attrs, arguments, entry, functions, results
from irc.dialects.flow import loc_of, tensor
from irc.errors import IrcError, did_you_mean
from irc.ops.derivative import PhaseBuilder
from irc.ops.derivatives import is_smooth
from irc.training.blocks import Blocks, added_seeds
from irc.training.entry import (
    HELD,
    add_argument,
    choose,
    distinguish_ids,
    drop_uncalled,
    drop_unread,
    is_frozen,
    loss_index,
    refuse_complex,
    set_results,
)
from irc.training.loss_scale import KIND, SCALE
from irc.training.sweep import Sweep


@dataclass(frozen=True)
class DifferentiatePass(ModulePass):
    """Append the backward pass of a loss, and give the gradients as results.

    Whatever is planned after it (placements, recompute, schedules) then sees one program, in which
    a gradient is a value like any other: a batch that is split leaves partial sums, which boxing
    reduces once.

    Options: ``loss`` names the result to differentiate; not needed where only one is a real scalar.
    ``trainable`` and ``frozen`` are globs of parameter names, ``inputs`` of inputs that get a
    gradient too. ``outputs=all`` keeps the results beside the loss. With ``seeds=inputs`` the
    gradients of all real outputs are further inputs, ``gradient.NAME``, instead of 1 for the loss.
    With ``scaled`` the gradient of the loss is an input, ``loss_scale``, a number in float32.

    Every op gets ``phase = "forward" | "backward"``, and a backward op ``grad = "weight"`` where it
    serves a weight's gradient alone, ``"input"`` where earlier layers wait for it. A block that is
    called becomes ``@block_forward``, which also returns what is saved, and ``@block_backward``:
    the program is no longer for more layers.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[5], f32> {role = "parameter", name = "w"})
        -> (!flow.tensor<[], f32> {role = "output", name = "loss"}) {
      %h = flow.contract(%x, %w) {spec = "bk,k->b", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[3], f32>
      %a = flow.pointwise(%h) {fn = "exp", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[3], f32>) -> !flow.tensor<[3], f32>
      %l = flow.reduce(%a) {fn = "sum", dims = array<i64: 0>, keep_dims = false, loc = "m.py:3",
          id = "n2"} : (!flow.tensor<[3], f32>) -> !flow.tensor<[], f32>
      func.return %l : !flow.tensor<[], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[5], f32> {role = "parameter", name = "w"})
        -> (!flow.tensor<[], f32> {role = "output", name = "loss"},
            !flow.tensor<[5], f32> {role = "gradient", name = "w"}) {
      %h = flow.contract(%x, %w) {spec = "bk,k->b", loc = "m.py:1", id = "n0", phase = "forward"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[3], f32>
      %a = flow.pointwise(%h) {fn = "exp", loc = "m.py:2", id = "n1", phase = "forward"}
          : (!flow.tensor<[3], f32>) -> !flow.tensor<[3], f32>
      %l = flow.reduce(%a) {fn = "sum", dims = array<i64: 0>, keep_dims = false, loc = "m.py:3",
          id = "n2", phase = "forward"} : (!flow.tensor<[3], f32>) -> !flow.tensor<[], f32>
      %0 = flow.constant() {value = array<f64: 1.0>, loc = "m.py:3", id = "loss.g0",
          phase = "backward"} : () -> !flow.tensor<[], f32>
      %1 = flow.reshape(%0) {loc = "m.py:3", id = "n2.g0", phase = "backward", grad = "input"}
          : (!flow.tensor<[], f32>) -> !flow.tensor<[1], f32>
      %2 = flow.broadcast(%1) {loc = "m.py:3", id = "n2.g1", phase = "backward", grad = "input"}
          : (!flow.tensor<[1], f32>) -> !flow.tensor<[3], f32>
      %3 = flow.pointwise(%2, %a) {fn = "mul", loc = "m.py:2", id = "n1.g0", phase = "backward",
          grad = "input"} : (!flow.tensor<[3], f32>, !flow.tensor<[3], f32>)
          -> !flow.tensor<[3], f32>
      %4 = flow.contract(%3, %x) {spec = "b,bk->k", loc = "m.py:1", id = "n0.g0",
          phase = "backward", grad = "weight"}
          : (!flow.tensor<[3], f32>, !flow.tensor<[3, 5], f32>) -> !flow.tensor<[5], f32>
      func.return %l, %4 : !flow.tensor<[], f32>, !flow.tensor<[5], f32>
    }
    ```

    A frozen parameter, or one with ``trainable = false``, costs nothing; one that the loss does not
    depend on has no result, as torch leaves its ``grad`` at None. It refuses, all at once, the ops
    whose derivative neither irc nor their library knows.
    """

    name = "differentiate"
    level: ClassVar[str] = "flow"

    loss: str = ""
    trainable: str = "*"
    frozen: str = ""
    inputs: str = ""
    outputs: str = "loss"
    seeds: str = "loss"
    scaled: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Differentiate the entry."""
        _check_choice("outputs", self.outputs, ("loss", "all"))
        _check_choice("seeds", self.seeds, ("loss", "inputs"))
        func = entry(op)
        trained = choose(func, "parameter", self.trainable, self.frozen, "trainable or frozen")
        wanted = {n: v for n, v in trained.items() if not is_frozen(func, v)}
        refuse_complex(func, self.trainable, self.frozen)
        wanted |= choose(func, "input", self.inputs, "", "inputs")
        loss = loss_index(func, self.loss) if self.seeds == "loss" else None

        def insert(function: FuncOp) -> None:
            op.body.block.insert_op_before(function, func)

        blocks = Blocks(functions(op), insert)
        held = [value for role, _, value in arguments(func) if role in HELD]
        sweep = Sweep(
            func.body.block, list(wanted.values()), held, blocks.errors, blocks.sweep_call
        )
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        # Backward ops go to the end of the body, so the return leaves it until they are there.
        end.detach()
        sweep.run(self._seeds(func, end, sweep, loss))
        blocks.errors.check()
        func.body.block.add_op(end)
        self._finish(func, sweep, wanted, loss)
        drop_unread(func)
        drop_uncalled(op)
        distinguish_ids(op)

    def _seeds(
        self, func: FuncOp, end: ReturnOp, sweep: Sweep, loss: int | None
    ) -> dict[SSAValue, SSAValue]:
        if loss is not None:
            value = end.operands[loss]
            line = "unknown" if isinstance(value.owner, Block) else loc_of(value.owner)
            b = PhaseBuilder(func.body.block, "backward", prefix="loss.g", loc=line)
            if self.scaled:
                scale = add_argument(func, KIND, "input", SCALE)
                return {value: b.cast(scale, tensor(value).dtype)}
            return {value: b.scalar(1, tensor(value).dtype)}
        named = list(zip(results(func), end.operands, strict=True))
        gradients = [
            add_argument(func, tensor(value), "input", f"gradient.{name}")
            if role == "output" and is_smooth(value)
            else None
            for (role, name), value in named
        ]
        return added_seeds(sweep, list(end.operands), gradients)

    def _finish(
        self, func: FuncOp, sweep: Sweep, wanted: dict[str, SSAValue], loss: int | None
    ) -> None:
        end = func.body.block.last_op
        assert end is not None
        kept: list[tuple[SSAValue, DictionaryAttr]] = []
        for i, ((role, name), value) in enumerate(zip(results(func), end.operands, strict=True)):
            if role != "output" or self.outputs == "all" or i == loss:
                kept.append((value, argument_attrs(role, name)))
        for name, value in wanted.items():
            if (gradient := sweep.gradient(value)) is not None:
                kept.append((gradient, argument_attrs("gradient", name)))
        set_results(func, [value for value, _ in kept], [attrs for _, attrs in kept])


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise IrcError(
            "option-value",
            f"differentiate takes no {option}='{value}'",
            help=did_you_mean(value, allowed),
        )
