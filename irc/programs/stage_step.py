"""A stage's part of a training step: forward, backward, the sum of gradients, the update.

One program of one micro-batch, in which a gradient is added to its accumulator and the optimiser
reads the sum, so that one search places all of it. Afterwards it is split into the functions that a
schedule runs (:mod:`irc.training.functions`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import argument_attrs, arguments, entry, results
from irc.dialects.flow import phase_of, tensor
from irc.dialects.text import dump
from irc.ops.derivative import PhaseBuilder, stamp
from irc.pipeline.run import run_passes
from irc.pipeline.training import Training
from irc.training.accumulators import accumulate
from irc.training.batch_sums import take_batch_sums
from irc.training.entry import add_argument, drop_unread, set_results
from irc.training.loss_scale import KIND, SCALE
from irc.training.recipe import Recipe
from irc.training.stages import BOUNDARY, GRADIENT, Crossing


@dataclass(frozen=True)
class StageStep:
    """One stage's program of a step.

    Attributes:
        module: level flow; its entry takes ``lr``, and ``norm`` where norms are clipped or the loss
            is scaled.
        sent: names of what it sends, values forward and gradients back.
        batch: functions of sums over the whole batch, by kind (:mod:`irc.training.batch_sums`).
        kinds: what its functions F and B are called, where a schedule has other letters for them.
    """

    module: ModuleOp
    sent: tuple[str, ...]
    batch: Mapping[str, ModuleOp]
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def text(self) -> str:
        """The text of the module, which stays as it is."""
        return dump(self.module)


def stage_step(
    module: ModuleOp,
    crossings: Sequence[Crossing],
    expected: Collection[str],
    recipe: Recipe,
    trained: Collection[str],
    *,
    scale: float,
    loss: str = "",
    uncounted: Collection[str] = (),
    elsewhere: Collection[str] = (),
    late: Collection[str] = (),
    gives_loss: bool = True,
) -> StageStep:
    """Turn the forward program of a stage into its part of a step, in place.

    Args:
        module: of the stage.
        crossings: those that begin or end in it.
        expected: names of values whose gradients later stages send back.
        recipe: how the model is trained.
        trained: names of all parameters that move.
        scale: the gradient of one micro-batch's loss, which is its part of the batch.
        loss: name of the loss, in the stage that has it.
        uncounted: parameters whose gradients another stage counts in the common norm.
        elsewhere: parameters that another stage on the same ranks moves: here their gradients are
            added to the sum alone.
        late: names of values that arrive after F has run: what is computed of them is backward's.
        gives_loss: whether the loss is a result; several stages may compute it.
    """
    func = entry(module)
    own = [n for role, n, _ in arguments(func) if role == "parameter" and n in trained]
    taken = [n for role, n, _ in arguments(func) if role == BOUNDARY]
    smooth = {c.name for c in crossings if c.is_smooth}
    rough = {c.name for c in crossings if not c.is_smooth}
    _rename(func, {name: ("input", name) for name in taken})
    _as_outputs(func, loss, {n for r, n in results(func) if r == BOUNDARY} - rough)
    asked = [name for name in taken if name in smooth]
    chosen: dict[str, object] = {"trainable": ",".join(own), "inputs": ",".join(asked)}
    chosen |= {"outputs": "all", "seeds": "inputs"}
    apart: dict[str, object] = {"uncounted": ",".join(uncounted), "norm_apart": True}
    is_scaled = recipe.precision.is_scaled
    counted = apart if recipe.numbers.get("clip_norm") or is_scaled else {}
    training = Training(
        differentiate=chosen,
        recompute=recipe.recompute,
        optimizer={**recipe.optimizer, **counted},
    )
    run_passes(module, training.of_gradients)
    func = entry(module)
    _seed(func, expected, loss, scale, is_scaled=is_scaled)
    drop_unread(func)
    _erase_unread(func, GRADIENT)
    _compute_late(func, late)
    _name_boundaries(func, set(taken), loss)
    if not gives_loss:
        others = [r for r in _returned(func) if r[:2] != ("output", loss)]
        set_results(func, [v for *_, v in others], [argument_attrs(r, n) for r, n, _ in others])
    batch = take_batch_sums(module, recipe.split, scale)
    accumulate(module, recipe.micro_batches)
    func = entry(module)
    kept = [r for r in _returned(func) if r[0] != "gradient" or r[1] not in elsewhere]
    set_results(func, [v for *_, v in kept], [argument_attrs(role, name) for role, name, _ in kept])
    if any(role == "gradient" for role, _ in results(func)):
        run_passes(module, training.of_update)
    func = entry(module)
    sent = tuple(n for role, n in results(func) if role == BOUNDARY)
    return StageStep(module, sent, batch)


def _rename(func: FuncOp, names: Mapping[str, tuple[str, str]]) -> None:
    known = func.arg_attrs.data if func.arg_attrs else ()
    changed: list[DictionaryAttr] = []
    for attrs, (_, name, _value) in zip(known, arguments(func), strict=True):
        if name in names:
            role, new = names[name]
            fields = {"role": StringAttr(role), "name": StringAttr(new)}
            attrs = DictionaryAttr({**attrs.data, **fields})
        changed.append(attrs)
    func.arg_attrs = ArrayAttr(changed)


def _returned(func: FuncOp) -> list[tuple[str, str, SSAValue]]:
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    return [(role, name, v) for (role, name), v in zip(results(func), end.operands, strict=True)]


def _as_outputs(func: FuncOp, loss: str, smooth: Collection[str]) -> None:
    """Keep the loss, states and what crosses; other results have no reader in a step."""
    kept = [
        (value, argument_attrs("output" if name in smooth else role, name))
        for role, name, value in _returned(func)
        if role != "output" or name == loss
    ]
    set_results(func, [v for v, _ in kept], [a for _, a in kept])


def _seed(
    func: FuncOp, expected: Collection[str], loss: str, scale: float, *, is_scaled: bool
) -> None:
    """Give the gradients that nobody sends: of the loss its share, of what is not smooth zero."""
    block = func.body.block
    first, end = block.first_op, block.last_op
    assert first is not None
    assert end is not None
    for _, name, value in list(arguments(func)):
        if not name.startswith(GRADIENT):
            continue
        of = name.removeprefix(GRADIENT)
        if of in expected or value.first_use is None:
            continue
        kind = tensor(value)
        number = scale if of == loss else 0.0
        b = PhaseBuilder(block, "backward", prefix=f"seed.{of}.", loc="micro-batches")
        b.part = "input"
        seed = b.constant([number], kind.shape, kind.dtype)
        if is_scaled and of == loss:
            factor = b.cast(add_argument(func, KIND, "input", SCALE), kind.dtype)
            seed = b.pointwise("mul", seed, factor)
        while (op := end.next_op) is not None:
            op.detach()
            block.insert_op_before(op, first)
        value.replace_all_uses_with(seed)


def _compute_late(func: FuncOp, late: Collection[str]) -> None:
    """Mark what depends on values that arrive late as a part of backward."""
    reached = {value for _, name, value in arguments(func) if name in late}
    for op in func.body.block.ops if reached else ():
        if any(value in reached for value in op.operands):
            reached |= set(op.results)
            if phase_of(op) == "forward":
                for value in op.results:
                    stamp(value, "backward", "input")


def _erase_unread(func: FuncOp, prefix: str) -> None:
    """Take off arguments that nothing reads."""
    known = list(func.arg_attrs.data) if func.arg_attrs else []
    gone = [
        i
        for i, (_, name, value) in enumerate(arguments(func))
        if name.startswith(prefix) and value.first_use is None
    ]
    for i in reversed(gone):
        func.body.block.erase_arg(func.body.block.args[i])
        del known[i]
    func.arg_attrs = ArrayAttr(known)
    func.update_function_type()


def _name_boundaries(func: FuncOp, taken: Collection[str], loss: str) -> None:
    """Give values and gradients that cross their role, and backward results their names."""
    crossing = [
        name
        for role, name, _ in arguments(func)
        if role == "input" and (name in taken or name.startswith(GRADIENT))
    ]
    _rename(func, {name: (BOUNDARY, name) for name in crossing})
    named: list[tuple[SSAValue, DictionaryAttr]] = []
    for role, name, value in _returned(func):
        if role == "gradient" and name in taken:
            named.append((value, argument_attrs(BOUNDARY, f"{GRADIENT}{name}")))
        elif role == "output" and name != loss:
            named.append((value, argument_attrs(BOUNDARY, name)))
        else:
            named.append((value, argument_attrs(role, name)))
    set_results(func, [v for v, _ in named], [a for _, a in named])
