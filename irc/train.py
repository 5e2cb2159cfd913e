"""From a program that gives a loss to a program that is one step of training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp, tensor
from irc.ops.derivatives_extern import VJP
from irc.pipeline import run_passes
from irc.plugin import builtin_pass
from irc.program import Program

if TYPE_CHECKING:
    from torch import nn


def training_program(
    program: Program,
    *,
    trainable: str | nn.Module = "*",
    frozen: str = "",
    optimizer: str | Mapping[str, object] | None = "adamw",
    loss: str = "",
    recompute: str = "none",
    stream: bool = False,
) -> Program:
    """Return a program that computes a loss and trains on it.

    With an optimiser one call is one step: it takes the inputs and the learning rate ``lr``, gives
    the loss, and moves the parameters, whose memory is that of ``program.tensors``. Without one it
    gives the loss and a result of role ``gradient`` for each trained parameter.

    Args:
        program: as captured; its module is changed, its tensors are used in place.
        trainable: globs of parameter names, or the module, whose ``requires_grad`` then decides.
        frozen: globs of parameters that stay as they are.
        optimizer: a kind (``adamw``, ``adam``, ``sgd``, ``momentum``), or ``{"kind": .., ..}`` with
            options of pass ``add-optimizer``; None for gradients alone.
        loss: name of the result to train on; not needed where only one is a real scalar.
        recompute: what the backward pass computes again instead of having it saved: ``none``,
            ``cheap``, ``selective``, ``full``, or globs (pass ``recompute``).
        stream: compute losses of linear layers by blocks of rows (pass ``stream-cross-entropy``).

    Raises:
        IrcError: ``loss-unknown``, ``option-value``, or all that is ``not-differentiable`` at once.
    """
    import torch

    from irc.runtime.dtypes import dtypes

    add_training(
        program,
        trainable=trainable,
        frozen=frozen,
        optimizer=optimizer,
        loss=loss,
        recompute=recompute,
        stream=stream,
    )
    tensors = dict(program.tensors)
    # A program that is planned elsewhere than it runs has no memory here, and neither have states.
    device = "meta" if any(t.is_meta for t in tensors.values()) else "cpu"
    for role, name, value in arguments(entry(program.module)):
        if role == "state" and name not in tensors:
            kind = tensor(value)
            tensors[name] = torch.zeros(
                kind.static_shape(), dtype=dtypes()[kind.dtype], device=device
            )
    return Program(program.module, tensors, program.source)


def add_training(
    program: Program,
    *,
    trainable: str | nn.Module = "*",
    frozen: str = "",
    optimizer: str | Mapping[str, object] | None = "adamw",
    loss: str = "",
    recompute: str = "none",
    stream: bool = False,
) -> None:
    """Make a program one of training in place; its states have no tensors yet.

    See :func:`training_program` for the arguments and errors.
    """
    if not isinstance(trainable, str):
        named = trainable.named_parameters(remove_duplicate=False)
        still = [name for name, value in named if not value.requires_grad]
        frozen = ",".join([*filter(None, [frozen]), *(n for n in still if n in program.tensors)])
        trainable = "*"
    options = {"loss": loss, "trainable": trainable, "frozen": frozen}
    passes = [builtin_pass("canonicalize")()]
    if stream:
        passes.append(builtin_pass("stream-cross-entropy")())
    passes.append(builtin_pass("differentiate")(**options))
    again: dict[str, object] = {"policy": recompute}
    passes.append(builtin_pass("recompute")(**again))
    if optimizer is not None:
        given = {"kind": optimizer} if isinstance(optimizer, str) else dict(optimizer)
        passes.append(builtin_pass("add-optimizer")(**given))
    run_passes(program.module, passes)
    check_vjp(program.module)


def check_vjp(module: ModuleOp) -> None:
    """Refuse ops of libraries whose derivative does not run; all at once.

    Raises:
        IrcError: ``not-differentiable``.
    """
    from irc.runtime import vjp

    vjp.check([_call(op) for op in module.walk() if _is_vjp(op)])


def _is_vjp(op: Operation) -> bool:
    if not isinstance(op, ExternOp) or op.plain["target"] != VJP:
        return False
    # Without numbers for all sizes the first run has to tell.
    return all(isinstance(d, int) for value in op.inputs for d in tensor(value).shape)


def _call(op: Operation) -> tuple[Any, list[tuple[tuple[int, ...], str]]]:
    assert isinstance(op, ExternOp)
    kinds = [(tensor(value).static_shape(), tensor(value).dtype) for value in op.inputs]
    return json.loads(op.plain["arguments"]), kinds
