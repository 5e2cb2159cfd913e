"""Pass ``differentiate``: a program that gives a loss also gives the gradients of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
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
    set_results,
)
from irc.training.sweep import Sweep


@dataclass(frozen=True)
class DifferentiatePass(ModulePass):
    """Append the backward pass of a loss, and give the gradients as results.
    """

    name = "differentiate"
    level: ClassVar[str] = "flow"

    loss: str = ""
    trainable: str = "*"
    frozen: str = ""
    inputs: str = ""
    outputs: str = "loss"
    seeds: str = "loss"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Differentiate the entry."""
        _check_choice("outputs", self.outputs, ("loss", "all"))
        _check_choice("seeds", self.seeds, ("loss", "inputs"))
        func = entry(op)
        trained = choose(func, "parameter", self.trainable, self.frozen, "trainable or frozen")
        wanted = {n: v for n, v in trained.items() if not is_frozen(func, v)}
        wanted |= choose(func, "input", self.inputs, "", "inputs")
        loss = loss_index(func, self.loss) if self.seeds == "loss" else None

        def insert(made: FuncOp) -> None:
            op.body.block.insert_op_before(made, func)

        blocks = Blocks(functions(op), insert)
        held = [value for role, _, value in arguments(func) if role in HELD]
        sweep = Sweep(func.body.block, list(wanted.values()), held, blocks.errors, blocks.sweep_call)
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
            line = "unknown" if isinstance(value.owner, type(func.body.block)) else loc_of(value.owner)
            b = PhaseBuilder(func.body.block, "backward", prefix="loss.g", loc=line)
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
            if (found := sweep.gradient(value)) is not None:
                kept.append((found, argument_attrs("gradient", name)))
        set_results(func, [value for value, _ in kept], [attrs for _, attrs in kept])


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise IrcError(
            "option-value",
            f"differentiate takes no {option}='{value}'",
            help=did_you_mean(value, allowed),
        )
