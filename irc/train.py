"""From a program that gives a loss to a program that is one step of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.pipeline import run_passes
from irc.pipeline.training import Training, check_vjp
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
    training = training_of(
        program,
        trainable=trainable,
        frozen=frozen,
        optimizer=optimizer,
        loss=loss,
        recompute=recompute,
        stream=stream,
    )
    run_passes(program.module, training.passes)
    check_vjp(program.module)


def training_of(
    program: Program,
    *,
    trainable: str | nn.Module = "*",
    frozen: str = "",
    optimizer: str | Mapping[str, object] | None = "adamw",
    loss: str = "",
    recompute: str = "none",
    stream: bool = False,
) -> Training:
    """Return what makes a program one of training, as options of a pipeline take it.

    See :func:`training_program` for the arguments.
    """
    if not isinstance(trainable, str):
        named = trainable.named_parameters(remove_duplicate=False)
        still = [name for name, value in named if not value.requires_grad]
        frozen = ",".join([*filter(None, [frozen]), *(n for n in still if n in program.tensors)])
        trainable = "*"
    optimizer_options = {"kind": optimizer} if isinstance(optimizer, str) else optimizer
    return Training(
        stream={} if stream else None,
        differentiate={
            "loss": loss,
            "trainable": trainable,
            "frozen": frozen,
            **({"scaled": True} if optimizer_options and optimizer_options.get("scaled") else {}),
        },
        recompute=recompute,
        optimizer=optimizer_options,
    )
