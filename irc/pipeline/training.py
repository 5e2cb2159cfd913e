"""The passes that make a step of training of a program that gives a loss.

They come first in the list (:mod:`irc.pipeline.order`). Where a model is cut into stages, the
``model`` is prepared and cut as a whole, and each stage is differentiated and updated by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from irc.dialects.flow import ExternOp, tensor
from irc.ops.derivatives_extern import VJP
from irc.plugin import builtin_pass

if TYPE_CHECKING:
    from irc.pipeline.options import Options


@dataclass(frozen=True)
class Training:
    """How a program that gives a loss becomes a step of training; options of the passes.

    Attributes:
        pad: of ``pad-parameters``; None: parameters are stored as they are.
        stream: of ``stream-cross-entropy``; None: losses are left as they are.
        split: of ``split-projections``; None: projections are left as they are.
        cut: of ``cut-stages``; None: the model is one stage.
        differentiate: of ``differentiate``.
        recompute: the policy of pass ``recompute``; None: the pass is left out.
        optimizer: of ``add-optimizer``; None: gradients are results.
    """

    pad: Mapping[str, object] | None = None
    stream: Mapping[str, object] | None = None
    split: Mapping[str, object] | None = None
    cut: Mapping[str, object] | None = None
    differentiate: Mapping[str, object] = field(default_factory=dict[str, object])
    recompute: str | None = "none"
    optimizer: Mapping[str, object] | None = None

    @property
    def passes(self) -> list[ModulePass]:
        """All of them, in order."""
        return [*self.of_model, *self.of_cut, *self.of_gradients, *self.of_update]

    @property
    def of_model(self) -> list[ModulePass]:
        """Those on the whole model, as captured."""
        pad = [] if self.pad is None else [_made("pad-parameters", self.pad)]
        stream = [] if self.stream is None else [_made("stream-cross-entropy", self.stream)]
        split = [] if self.split is None else [_made("split-projections", self.split)]
        return [_made("canonicalize", {"keep_detached": True}), *pad, *stream, *split]

    @property
    def of_cut(self) -> list[ModulePass]:
        """Those that cut it into stages."""
        return [] if self.cut is None else [_made("cut-stages", self.cut)]

    @property
    def of_gradients(self) -> list[ModulePass]:
        """Those that make the backward pass of a stage, or of the model."""
        again = [] if self.recompute is None else [_made("recompute", {"policy": self.recompute})]
        return [_made("differentiate", self.differentiate), *again]

    @property
    def of_update(self) -> list[ModulePass]:
        """Those that move its parameters."""
        return [] if self.optimizer is None else [_made("add-optimizer", self.optimizer)]


def padding(options: Options) -> Mapping[str, object] | None:
    """Return the options of ``pad-parameters`` for a step on a mesh; None where there is none."""
    if options.mesh.num_ranks == 1:
        return None
    chosen: dict[str, object] = {
        "mesh": str(options.mesh),
        "layout": options.layout,
        "pins": options.pins,
    }
    chosen |= {"short": True} if options.stored_bytes is not None else {}
    return {name: value for name, value in chosen.items() if value}


def _made(name: str, options: Mapping[str, object] | None = None) -> ModulePass:
    return builtin_pass(name)(**(options or {}))


def check_vjp(module: ModuleOp) -> None:
    """Refuse ops of libraries whose derivative does not run; all at once.

    Raises:
        IrcError: ``not-differentiable``.
    """
    from irc.runtime import library, vjp

    vjp.check([_call(op) for op in module.walk() if _is_vjp(op)], library.run)


def _is_vjp(op: Operation) -> bool:
    if not isinstance(op, ExternOp) or op.target != VJP:
        return False
    # Without numbers for all sizes the first run has to tell.
    return all(isinstance(d, int) for value in op.inputs for d in tensor(value).shape)


def _call(op: Operation) -> tuple[Any, list[tuple[tuple[int, ...], str]]]:
    assert isinstance(op, ExternOp)
    kinds = [(tensor(value).static_shape(), tensor(value).dtype) for value in op.inputs]
    return json.loads(op.arguments), kinds
