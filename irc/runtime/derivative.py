"""A derivative that an op's declaration gives: called, and held against what it must return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irc.errors import IrcError

if TYPE_CHECKING:
    import torch


def declared_gradients(
    derivative: Callable[..., Any],
    target: str,
    result_gradients: Sequence[torch.Tensor | None],
    positional: Sequence[Any],
    keywords: Mapping[str, Any],
    operands: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Return the gradient of each tensor operand, None where it is zero.

    Args:
        derivative: as :func:`irc.register_op` takes it.
        target: the op, for messages.
        result_gradients: the gradient of each result, None where a result has none.
        positional: what the op was called with.
        keywords: what the op was called with by name.
        operands: its tensors, in order.

    Raises:
        IrcError: ``not-differentiable`` where the derivative raises, or what it returns is not a
            gradient for each operand in the operand's shape.
    """
    import torch

    try:
        returned = derivative(tuple(result_gradients), *positional, **keywords)
    except IrcError:
        raise
    except Exception as error:  # the user's own code raises what it likes
        because = f"{type(error).__name__}: {error}"
        raise _wrong(target, "fails", because) from error
    gradients: list[Any] = [*returned] if isinstance(returned, tuple | list) else [returned]
    if len(gradients) != len(operands):
        because = f"the op has {len(operands)} tensor operands"
        raise _wrong(target, f"gives {len(gradients)} gradients", because)
    for index, (gradient, operand) in enumerate(zip(gradients, operands, strict=True)):
        if gradient is None:
            continue
        if not isinstance(gradient, torch.Tensor):
            raise _wrong(target, f"gives {type(gradient).__name__} for operand {index}", "")
        if gradient.shape != operand.shape:
            raise _wrong(
                target,
                f"gives a gradient of shape {list(gradient.shape)} for operand {index}",
                f"the operand has shape {list(operand.shape)}",
            )
    return [None if g is None else g.to(x.dtype) for g, x in zip(gradients, operands, strict=True)]


def _wrong(target: str, what: str, because: str) -> IrcError:
    return IrcError(
        "not-differentiable",
        f"the derivative declared for {target} {what}",
        because=because or (),
        help="it is called with a tuple of the results' gradients and then as the op is, and"
        " returns one gradient for each tensor operand, None for those without",
    )
