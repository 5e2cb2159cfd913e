"""A step of the first few layers of a model, from which pieces of it are planned.

It depends on the size of a micro-batch, on what is recomputed, and on whether projections are split
into their parts, but on no mesh: pieces on many meshes begin with it (:mod:`irc.programs.blocks`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry
from irc.dialects.types import TensorType
from irc.pipeline import run_passes
from irc.pipeline.training import Training
from irc.program import Program
from irc.programs.make import loss_of, shared_of, steps_of, trained_of
from irc.programs.stage_step import StageStep
from irc.search.layers import Layers, layers_of, shortened
from irc.training.projections import in_slices, slices_in
from irc.training.recipe import Recipe
from irc.training.stage_choice import everywhere
from irc.training.stages import stages_of

LEAST = 3
"""Layers of a model: the middle one takes what each does in a deep one, since weights are gathered
for the next layer meanwhile, and gradients of the one before are summed."""
MOST = 8
"""Layers that are planned: with fewer, what the last ops gain outweighs what each layer loses where
it is placed otherwise. They are one function, so that eight take little longer than three."""

Where: TypeAlias = Literal["each", "first", "layer", "last"]
FIRST_ID = re.compile(r"[^/,]+")
"""What begins with the op of the entry in the id of an action, ``n4.g`` in ``n4.g/b0n3.box0``."""


@dataclass(frozen=True)
class ShortStep:
    """A step of the first :data:`MOST` layers of a model, or of all where it has fewer, as a stage.

    Attributes:
        step: its program; it stays as it is.
        micro_batches: of the whole step.
        ops: which piece each op is of.
        handed: types of what a layer hands to the next.
    """

    step: StageStep
    micro_batches: int
    ops: LayerOps
    handed: tuple[TensorType, ...]


def short_step(
    program: Program, recipe: Recipe, split: Mapping[str, object] | None = None
) -> ShortStep | None:
    """Return a step of the first few layers of a model.

    Args:
        program: the forward pass of one micro-batch; it stays as it is.
        recipe: how it is trained, with the inputs that are cut and the number of micro-batches.
        split: of pass ``split-projections``, as :func:`irc.programs.make.split_option` gives it.

    Returns:
        The step; None where the model has no :data:`LEAST` equal layers in a row, each of which
        reads what the one before gives.

    Raises:
        IrcError: what the passes raise.
    """
    known = layers_of(program.module)
    if known is None or known.count < LEAST:
        return None
    count = min(known.count, MOST)
    module = shortened(program.module, count)
    loss = loss_of(module, recipe)
    trained = trained_of(Program(module), recipe)
    run_passes(module, Training(stream={}, split=split).of_model)
    projections = slices_in(entry(module))
    trained |= {n for name in trained & projections.keys() for n in projections[name].names}
    recipe = in_slices(recipe, projections)
    layers = layers_of(module)
    if layers is None or layers.count != count or (ops := LayerOps.of(module, layers)) is None:
        return None
    values = [value for call in layers.layer(0) for value in call.results]
    later = set(layers.layer(1))
    handed = [v for v in values if any(use.operation in later for use in v.uses)]
    kinds = [value.type for value in handed if isinstance(value.type, TensorType)]
    if not kinds or len(kinds) < len(handed):
        return None
    stages = stages_of(module)
    scale = 1 / recipe.micro_batches
    steps = steps_of(stages, recipe, trained, shared_of(stages), {}, loss, scale, set())
    return ShortStep(steps[0], recipe.micro_batches, ops, tuple(kinds))


@dataclass(frozen=True)
class LayerOps:
    """Which piece each op of the entry is of, by id, and each weight, by name; which layer.

    Attributes:
        ops: the piece of each op.
        weights: the piece of each weight.
        layers: the number of the layer of an op that is of one.
        holders: that of a weight that a layer is the first to read.
    """

    ops: Mapping[str, Where]
    weights: Mapping[str, Where]
    layers: Mapping[str, int]
    holders: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, module: ModuleOp, layers: Layers) -> LayerOps | None:
        """Return them; None where a layer reads what none before it gives, or passes over one."""
        func = entry(module)
        calls, free = set[Operation](layers.calls), everywhere(func)
        ops: dict[str, Where] = {}
        readers: dict[SSAValue, tuple[Where, str]] = {}
        at: Where = "first"
        for op in func.body.block.ops:
            if isinstance(op, ReturnOp):
                break
            where: Where = "each" if op in free else "layer" if op in calls else at
            at = "last" if op in calls else at
            ops[_id(op)] = where
            for value in op.operands:
                readers.setdefault(value, (where, _id(op)))
        if not calls.isdisjoint(free) or _passes_over(func, layers, ops):
            return None
        none: tuple[Where, str] = ("last", "")
        held = {name: readers.get(value, none) for _, name, value in arguments(func)}
        numbers = {_id(call): n for n in range(layers.count) for call in layers.layer(n)}
        return cls(
            ops,
            {name: where for name, (where, _) in held.items()},
            numbers,
            {name: numbers[reader] for name, (_, reader) in held.items() if reader in numbers},
        )

    @property
    def num_layers(self) -> int:
        """How many there are."""
        return max(self.layers.values()) + 1

    def where(self, name: str) -> Where:
        """Return the piece of an action or of a saved value, by the id of its op."""
        op = self._op(name)
        return "last" if op is None else self.ops[op]

    def layer(self, name: str) -> int | None:
        """Return the number of the layer of an action; None for one of no layer."""
        op = self._op(name)
        return None if op is None else self.layers.get(op)

    def _op(self, name: str) -> str | None:
        """Return the op of the entry in an id: the longest, since a part of ``n4`` is ``n4.1``."""
        match = FIRST_ID.search(name.lstrip("."))
        parts = match[0].split(".") if match else []
        heads = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((head for head in heads if head in self.ops), None)

    def is_known(self, name: str) -> bool:
        """Whether the id of an action begins with an op of the entry."""
        return self._op(name) is not None

    def is_backward(self, name: str) -> bool:
        """Whether an action computes a derivative of an op, ``n4.g/b0n3.g1`` that of ``n4``."""
        op = self._op(name)
        return op is not None and name.lstrip(".").startswith(f"{op}.g")

    def holder(self, name: str) -> Where:
        """Return the piece of a weight, or of a state or sum of it, whose name has the weight's."""
        own = self._weight(name)
        return "last" if own is None else self.weights[own]

    def holding_layer(self, name: str) -> int | None:
        """Return the number of the layer that reads a weight first; None where no layer does."""
        own = self._weight(name)
        return None if own is None else self.holders.get(own)

    def _weight(self, name: str) -> str | None:
        return max((each for each in self.weights if each in name), key=len, default=None)


def layer_ops(module: ModuleOp) -> LayerOps | None:
    """Return which layer each op of a program is of, by the ids that it has in a step of training.

    Args:
        module: the forward pass, as captured; it stays as it is.

    Returns:
        None where it has no :data:`LEAST` equal layers in a row, or a layer reads what another than
        the one before gives.
    """
    own = module.clone()
    run_passes(own, Training(stream={}).of_model)
    layers = layers_of(own)
    return None if layers is None or layers.count < LEAST else LayerOps.of(own, layers)


def _passes_over(func: FuncOp, layers: Layers, ops: Mapping[str, Where]) -> bool:
    """True where a value passes over a layer, so that it would go through stages between.

    An encoder's result that all layers of a decoder read is one.
    """
    number: dict[Operation, int] = {op: n for n in range(layers.count) for op in layers.layer(n)}
    for op in func.body.block.ops:
        for owner in (value.owner for value in op.operands):
            if not isinstance(owner, Operation) or ops[_id(owner)] == "each":
                continue
            before = number.get(owner, layers.count if ops[_id(owner)] == "last" else -1)
            if op in number:
                is_far = number[op] > 0 and before < number[op] - 1
            else:
                is_far = ops.get(_id(op), "last") == "last" and before < layers.count - 1
            if is_far:
                return True
    return False


def _id(op: Operation) -> str:
    attr = op.attributes.get("id")
    return getattr(attr, "data", "")
