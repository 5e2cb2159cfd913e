"""``flow.extern`` of target ``irc::vjp``: the derivative of a library op, by torch's autograd.

The op runs again with gradients on; what comes back is the given results' gradients times the
Jacobian, for each operand that is asked for. An operand that does not matter gets zeros.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.errors import ErrorCollector, IrcError
from irc.ops import names
from irc.ops.custom import declaration
from irc.runtime.derivative import declared_gradients
from irc.runtime.flow_ops.extern import called_with, own_op

if TYPE_CHECKING:
    from irc.runtime.flow_ops.signature import Attrs, Results

if TYPE_CHECKING:
    import torch

    Run: TypeAlias = Callable[[str, Attrs, Sequence[torch.Tensor], Results], list[torch.Tensor]]

TARGET = names.VJP


def run(
    arguments: Sequence[Any], values: Sequence[torch.Tensor], run_op: Run
) -> list[torch.Tensor]:
    """Return the gradients of the wanted operands.

    Args:
        arguments: name, attributes, number of operands, results given, operands wanted.
        values: the operands, then the gradients of the given results.
        run_op: runs any flow op, :func:`irc.runtime.library.run`.

    Raises:
        IrcError: ``not-differentiable``, where torch has no derivative of the op.
    """
    import torch

    name, attrs, count, with_gradients, wanted = arguments
    gradients = list(values[count:])
    if (declared := _declared(name, attrs)) is not None:
        return _by_declaration(declared, arguments, values[:count], gradients)
    with torch.inference_mode(False), torch.enable_grad():
        operands: list[Any] = [value.detach().clone() for value in values[:count]]
        for index in wanted:
            operands[index].requires_grad_(True)
        results: list[Any] = _forward(name, attrs, operands, with_gradients, gradients, run_op)
        roots = [results[i] for i in with_gradients]
        if not all(value.requires_grad for value in roots) and name == names.EXTERN:
            # The reference is no torch code; the op itself may know its derivative.
            results = _by_own_op(attrs, operands) or results
            roots = [results[i] for i in with_gradients]
        if stuck := [
            i for i, value in zip(with_gradients, roots, strict=True) if not value.requires_grad
        ]:
            because = f"result {stuck[0]} does not depend on the operands that need a gradient"
            raise _not_differentiable(name, attrs, because)
        try:
            back: Any = torch.autograd.grad(
                roots,
                [operands[i] for i in wanted],
                [g.to(value.dtype) for g, value in zip(gradients, roots, strict=True)],
                allow_unused=True,
            )
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise _not_differentiable(name, attrs, str(error)) from error
    return [
        torch.zeros_like(operands[i]).detach() if g is None else g.detach()
        for i, g in zip(wanted, back, strict=True)
    ]


def _declared(name: str, attrs: Mapping[str, Any]) -> Callable[..., Any] | None:
    known = declaration(attrs["target"]) if name == names.EXTERN else None
    return known.differentiate() if known else None


def _by_declaration(
    derivative: Callable[..., Any],
    arguments: Sequence[Any],
    operands: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Ask the op's declaration for the gradients of all operands, and give the wanted ones."""
    import torch

    wanted: Sequence[int]
    _, attrs, _, with_gradients, wanted = arguments
    by_result: list[torch.Tensor | None] = [None] * (max(with_gradients) + 1)
    for index, gradient in zip(with_gradients, gradients, strict=True):
        by_result[index] = gradient
    positional, keywords = called_with(json.loads(attrs["arguments"]), operands)
    target = attrs["target"]
    by_operand = declared_gradients(derivative, target, by_result, positional, keywords, operands)
    back = [by_operand[i] for i in wanted]
    return [
        torch.zeros_like(operands[i]) if gradient is None else gradient
        for i, gradient in zip(wanted, back, strict=True)
    ]


def _by_own_op(
    attrs: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """Run torch's own op; None where this process has none."""
    import torch

    op = own_op(attrs["target"])
    if op is None:
        return None
    positional, keywords = called_with(json.loads(attrs["arguments"]), operands)
    returned = op(*positional, **keywords)
    flat: list[Any] = [*returned] if isinstance(returned, tuple | list) else [returned]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _forward(
    name: str,
    attrs: Mapping[str, Any],
    operands: list[torch.Tensor],
    with_gradients: Sequence[int],
    gradients: Sequence[torch.Tensor],
    run_op: Run,
) -> list[torch.Tensor]:
    from irc.runtime.dtypes import dtype_names

    # Only results that have gradients matter, and those have their gradients' shapes.
    stated: list[tuple[tuple[int, ...], str]] = [((), "f32")] * (max(with_gradients) + 1)
    for index, gradient in zip(with_gradients, gradients, strict=True):
        stated[index] = (tuple(gradient.shape), dtype_names()[gradient.dtype])
    if name in SMOOTH:
        return [SMOOTH[name](attrs, operands, stated, run_op)]
    return run_op(name, attrs, operands, stated)


def _pool(
    attrs: Mapping[str, Any], operands: list[torch.Tensor], stated: Any, run_op: Run
) -> torch.Tensor:
    """Pool as torch does, whose maximum gives the gradient to the first of equals."""
    import torch
    from torch.nn import functional

    (x,), window = operands, list(attrs["window"])
    count = len(window)
    if attrs["fn"] != "max" or count > 3:
        return run_op(names.POOL, attrs, operands, stated)[0]
    lead, shape = x.shape[: x.ndim - count], stated[0][0]
    pad: list[int] = []
    for i in reversed(range(count)):
        low, step = attrs["low"][i], attrs["strides"][i]
        span = (shape[x.ndim - count + i] - 1) * step + attrs["dilations"][i] * (window[i] - 1) + 1
        pad += [low, span - low - x.shape[x.ndim - count + i]]
    wide = functional.pad(x, pad, value=-torch.inf).reshape(-1, 1, *_padded(x, pad, count))
    pool: Callable[..., torch.Tensor] = getattr(functional, f"max_pool{count}d")
    pooled = pool(wide, window, list(attrs["strides"]), 0, list(attrs["dilations"]))
    return pooled.reshape(*lead, *pooled.shape[2:])


def _padded(x: torch.Tensor, pad: Sequence[int], count: int) -> list[int]:
    return [
        size + pad[2 * (count - 1 - i)] + pad[2 * (count - 1 - i) + 1]
        for i, size in enumerate(x.shape[x.ndim - count :])
    ]


SMOOTH: Mapping[str, Callable[..., torch.Tensor]] = {names.POOL: _pool}
"""Ops whose meaning is written another way here, for the derivative that torch gives it."""


def _not_differentiable(name: str, attrs: Mapping[str, Any], because: str) -> IrcError:
    target = attrs.get("target", name)
    return IrcError(
        "not-differentiable",
        f"torch has no derivative of {target}",
        because=because,
        help="detach its operand in the module, or freeze the parameters before it",
    )


def check(
    calls: Sequence[tuple[Sequence[Any], Sequence[tuple[tuple[int, ...], str]]]], run_op: Run
) -> None:
    """Refuse, all at once, the calls that torch cannot differentiate.

    They run on tensors without memory; an op that cannot do that is left to its first real run.

    Args:
        calls: the arguments of each call, and shape and dtype of its values.
        run_op: as of :func:`run`.

    Raises:
        IrcError: ``not-differentiable``.
    """
    import torch

    from irc.runtime.dtypes import dtypes

    errors = ErrorCollector()
    for arguments, kinds in calls:
        values = [torch.empty(shape, dtype=dtypes()[d], device="meta") for shape, d in kinds]
        try:
            run(arguments, values, run_op)
        except IrcError as error:
            errors.add(error)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            continue
    errors.check()
