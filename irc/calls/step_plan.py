"""From a module and a batch to the plan of a training step: capture, differentiate, plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.noted import line_of, noted_plan
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.examples import positional
from irc.frontends.torch.in_precision import computing
from irc.frontends.torch.loss import with_loss
from irc.frontends.torch.own_backward import as_differentiated
from irc.frontends.torch.tensor_checks import warn_of_checks
from irc.pipeline import Options
from irc.pipeline.training import padding
from irc.plan.load import LoadedPlan
from irc.plan.training import training_files
from irc.program import Program
from irc.train import training_of
from irc.training.loss_scale import SCALE
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe
from irc.training.summed_losses import divides_by_tokens, summed_terms, weigh_terms

Loss: TypeAlias = Callable[..., Any]
LR = "lr"
"""The input of a step that is its learning rate."""


def captured_step(
    module: nn.Module,
    loss: Loss | None,
    recipe: Recipe,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    less: int = 0,
    own: Collection[int] = (),
    widened: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[Captured, tuple[str, ...]]:
    """Capture the forward pass of one micro-batch of a batch.

    Args:
        module: what is trained.
        loss: a function of the module's output, where the module itself gives none.
        recipe: says how many micro-batches there are.
        args: the whole batch.
        kwargs: the module's keyword arguments.
        less: samples that it has fewer than the largest of micro-batches: 1 for the smaller ones
            where they do not share the batch equally, -1 for one that is larger than any.
        own: the leaves of the arguments of which there is a part on each rank.
        widened: gives such a leaf the shape that all parts have together.

    Returns:
        It, and the names of the inputs that are cut into micro-batches.

    Raises:
        IrcError: ``input-mismatch`` where the batch cannot be cut; what capture raises.
    """
    leaves, spec = pytree.tree_flatten((positional(args), dict(kwargs)))
    cut = _cut(leaves, recipe.micro_batches)
    small = [_first(leaf, -(-len(leaf) // recipe.micro_batches) - less) if i in cut else leaf
             for i, leaf in enumerate(leaves)]  # fmt: skip
    if widened is not None:
        small = [widened(leaf) if i in own else leaf for i, leaf in enumerate(small)]
    micro_args, micro_kwargs = pytree.tree_unflatten(small, spec)
    face = module if loss is None else with_loss(module, loss, micro_args, micro_kwargs)
    with as_differentiated(loss=recipe.loss):
        captured = capture(computing(face, recipe.precision), micro_args, micro_kwargs)
    warn_of_checks(captured.effect, "a compiled step")
    names = captured.program.input_names
    taken = {LR: "learning rate"}
    if recipe.precision.is_scaled:
        taken[SCALE] = "loss scale"
    for name in taken.keys() & set(names):
        raise IrcError(
            "input-mismatch",
            f"an input of the module is called '{name}', as the {taken[name]} of a step is",
            help="call it otherwise",
        )
    split = [n for n, i in zip(names, captured.tensor_leaves, strict=True) if i in cut]
    return captured, tuple(split)


def captured_micro_batch(
    module: nn.Module,
    loss: Loss | None,
    recipe: Recipe,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    less: int = 0,
    **local: Any,
) -> tuple[Captured, tuple[str, ...]]:
    """Capture a micro-batch whose loss, averaged over all of them, is that of the batch.

    What it takes, gives and raises is that of :func:`captured_step`. Where the loss is no mean over
    tokens, a second capture of another size tells which of its terms are sums over samples
    (:mod:`irc.training.summed_losses`); where torch computes the two by other ops, as one sample
    often is, a third, which is compared with the second. A module that takes no other size is
    warned of: its loss counts as a mean.
    """
    batch = (module, loss, recipe, args, kwargs)
    captured, split = captured_step(*batch, less=less, **local)
    program = captured.program
    if not split or divides_by_tokens(program, recipe.loss, split):
        return captured, split
    leaves = pytree.tree_leaves((positional(args), dict(kwargs)))
    samples = len(leaves[min(_cut(leaves, recipe.micro_batches))])
    size = -(-samples // recipe.micro_batches) - less

    def of(rows: int) -> Program:
        return captured_step(*batch, less=less + size - rows, **local)[0].program

    more = 2 * size
    try:
        other = of(more)
        terms = summed_terms(program, other, recipe.loss, 2.0)
        if terms is None:
            terms = summed_terms(other, of(2 * more), recipe.loss, 2.0)
    except IrcError as error:
        _warn_of_loss(size, f"{more} of them at once cannot be captured to compare: {error}")
        return captured, split
    if terms is None or not weigh_terms(program, terms.sums, recipe.loss, size / samples):
        _warn_of_loss(size, f"{more} of them at once are computed by other ops")
    elif terms.unknown:
        _warn_of_loss(size, "a term of it is neither a mean nor a sum, as far as can be told")
    return captured, split


class LossWarning(UserWarning):
    """Whether a loss is a sum or a mean over samples cannot be told."""


def _warn_of_loss(size: int, why: str) -> None:
    text = (
        f"micro-batches of {size} samples: the loss is taken for a mean over samples, since {why}"
    )
    warnings.warn(text, LossWarning, stacklevel=3)


def _first(leaf: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first samples of a batch, which start again where it has fewer."""
    return torch.cat([leaf] * -(-rows // len(leaf)))[:rows] if rows > len(leaf) else leaf[:rows]


def _cut(leaves: Sequence[Any], count: int) -> set[int]:
    """Return which leaves have the batch as their first dim, as the first tensor has it."""
    shaped_leaves = {i: leaf for i, leaf in enumerate(leaves)
                     if isinstance(leaf, torch.Tensor) and leaf.ndim}  # fmt: skip
    if count == 1 or not shaped_leaves:
        return set()
    size = len(next(iter(shaped_leaves.values())))
    if size < count:
        raise IrcError(
            "input-mismatch",
            f"a batch of {size} cannot be cut into {count} micro-batches",
            because="each has one sample or more",
            help=f"give {count} samples or more, or make a step of fewer micro-batches",
        )
    return {i for i, leaf in shaped_leaves.items() if len(leaf) == size}


def batch_samples(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the samples of a batch: the first dim of its first tensor that has one, or 1."""
    leaves, _ = pytree.tree_flatten((positional(args), dict(kwargs)))
    shaped = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim)
    return next(map(len, shaped), 1)


def uneven_samples(args: Sequence[Any], kwargs: Mapping[str, Any], count: int) -> int:
    """Return the samples of a batch that micro-batches do not share equally; 0 where they do."""
    leaves, _ = pytree.tree_flatten((positional(args), dict(kwargs)))
    cut = _cut(leaves, count)
    samples = len(leaves[min(cut)]) if cut else 0
    return samples if samples % count else 0


def training_plan(
    program: Program,
    recipe: Recipe,
    options: Options,
    module: nn.Module | str,
    *,
    keep_ir: bool = False,
) -> LoadedPlan:
    """Plan a step of one program, from that of its forward pass, which is changed.

    Args:
        program: as captured.
        recipe: how the module is trained.
        options: of the pipeline.
        module: says which parameters require a gradient, or globs of their names do.
        keep_ir: keep the text after every pass, and the model, which ``irc run`` trains eagerly.
    """
    forward = dump(program.module) if keep_ir else ""
    options = training_options(program, recipe, options, module)
    extra = training_files(recipe, forward) if keep_ir else None
    line = "" if isinstance(module, str) else line_of(module.forward)
    return noted_plan(program, options, line, keep_ir=keep_ir, extra=extra)


def training_options(
    program: Program, recipe: Recipe, options: Options, module: nn.Module | str
) -> Options:
    """Return the options of the pipeline for a step of one program; see :func:`training_plan`."""
    training = training_of(
        program,
        trainable=module,
        frozen=recipe.frozen,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        recompute=recipe.recompute,
        stream=True,
    )
    # Means of rows and columns, which Adafactor keeps, would count the padding; and without an eps
    # its zeros would be divided by zeros.
    told = [recipe.numbers, *(group.numbers for group in recipe.groups)]
    divides = any(numbers.get("eps") == 0 for numbers in told)
    pad = None if OPTIMIZERS[recipe.kind].factors or divides else padding(options)
    return replace(options, training=replace(training, pad=pad))


def check_device(module: nn.Module, *, planned: bool = False) -> None:
    """Refuse a module without values, or on another device.

    Args:
        module: what is trained.
        planned: a plan alone is made, which needs no values: all may be on the meta device.

    Raises:
        IrcError: ``input-mismatch``.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    for name, value in named:
        if not value.is_cpu and not (planned and value.is_meta):
            raise IrcError(
                "input-mismatch",
                f"'{name}' is on {value.device}; a training step starts from values on the CPU",
            )
