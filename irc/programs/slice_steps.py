"""The slices of an output layer as stages of a training step: functions S and T, and a join."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial, reduce

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import argument_attrs, arguments, entry, results
from irc.dialects.flow import SliceOp, tensor
from irc.ops.derivative import PhaseBuilder
from irc.programs.stage_step import StageStep, stage_step
from irc.training.entry import set_results
from irc.training.recipe import Recipe
from irc.training.stages import BOUNDARY, GRADIENT, Crossing
from irc.training.vocabulary import Join, Slices

LETTERS = {"F": "S", "B": "T"}
"""What a schedule calls the forward of a slice, and its backward with the loss."""


def slice_steps(
    slices: Slices,
    first: int,
    recipe: Recipe,
    trained: Collection[str],
    *,
    loss: str,
    scale: float,
) -> list[StageStep]:
    """Turn the slices of an output layer into their parts of a step.

    Args:
        slices: of it.
        first: the part that is the first slice.
        recipe: how the model is trained.
        trained: names of all parameters that move.
        loss: name of the loss.
        scale: the gradient of one micro-batch's loss, which is its part of the batch.
    """
    own = {name for whole, cut in slices.weights.items() if whole in trained for name in cut.names}
    last = first + len(slices.parts) - 1
    steps: list[StageStep] = []
    for part, program in enumerate(slices.parts, first):
        here = [c for c in slices.crossings if part in (c.producer, c.consumer)]
        step = stage_step(
            program.clone(),
            here,
            (),
            recipe,
            own,
            scale=scale,
            loss=loss,
            late=[c.name for c in here if c.consumer == part and c.producer >= first],
            gives_loss=part == last and slices.join is None,
        )
        steps.append(replace(step, kinds=LETTERS))
    if slices.join is not None:
        steps.append(_join_step(slices.join, recipe, loss=loss, scale=scale))
    return steps


def _join_step(join: Join, recipe: Recipe, *, loss: str, scale: float) -> StageStep:
    """Return what gives the loss and the gradient of hidden rows: one function, a forward."""
    taken = [Crossing(name, 0, 1, True) for name in join.sums]
    taken += [Crossing(name, 0, 1, False) for name in join.products]
    step = stage_step(join.program.clone(), taken, (), recipe, (), scale=scale, loss=loss)
    func = entry(step.module)
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    returned = dict(zip((name for _, name in results(func)), end.operands, strict=True))
    values = {name: value for _, name, value in arguments(func)}
    end.detach()
    b = PhaseBuilder(func.body.block, "forward", prefix="join", loc="micro-batches")
    pieces = [
        _rows_gradient(b, returned[f"{GRADIENT}{sums}"], values[products])
        for sums, products in zip(join.sums, join.products, strict=True)
    ]
    total = b.cast(
        reduce(partial(b.pointwise, "add"), pieces), tensor(values[join.products[0]]).dtype
    )
    func.body.block.add_op(end)
    name = f"{GRADIENT}{join.hidden}"
    set_results(
        func,
        [returned[loss], total],
        [argument_attrs("output", loss), argument_attrs(BOUNDARY, name)],
    )
    for op in func.body.block.ops:
        if not isinstance(op, ReturnOp):
            op.attributes["phase"] = StringAttr("forward")
            op.attributes.pop("grad", None)
    return StageStep(step.module, (name,), step.batch)


def _rows_gradient(b: PhaseBuilder, gradient: SSAValue, products: SSAValue) -> SSAValue:
    """Append what a slice has of the gradient of hidden rows, of that of its sums."""
    (count, rows), (_, width) = tensor(gradient).static_shape(), tensor(products).static_shape()
    products = b.cast(products, tensor(gradient).dtype)
    pieces: list[SSAValue] = []
    for i in range(count):
        own = _part(b, gradient, (i, 0), (i + 1, rows))
        start = i * rows
        stop = start + (rows if i < 2 else 1)
        each = _part(b, products, (start, 0), (stop, width))
        pieces.append(b.pointwise("mul", b.reshape(own, (rows, 1)), each))
    return reduce(partial(b.pointwise, "add"), pieces)


def _part(
    b: PhaseBuilder, value: SSAValue, starts: tuple[int, int], stops: tuple[int, int]
) -> SSAValue:
    return b.op(SliceOp, [value], starts=starts, stops=stops, steps=(1, 1))
