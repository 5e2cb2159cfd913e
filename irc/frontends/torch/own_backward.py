"""Functions with a backward pass of their own (``torch.autograd.Function``) in what is trained.

A trace has what ``forward`` computes, and a step takes the derivative of that. A function may say
otherwise: gradients that are reversed, straight-through estimators, surrogates of steps. So its own
gradients are compared with that derivative, at random numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

from irc.errors import IrcError
from irc.process_wide import ProcessWide

_library: Any = torch
"""torch's generators, whose types are unknown in part."""

_here = threading.local()


@contextmanager
def as_differentiated(*, from_all: bool = False, loss: str = "") -> Generator[None]:
    """Refuse functions whose own gradients are not the derivatives of what they compute.

    Those of torch itself, such as reentrant checkpoints, are taken at their word.

    Args:
        from_all: gradients may come from any result, and not from the loss alone.
        loss: name of the result that is trained on; empty where only one is a real scalar.

    Raises:
        IrcError: ``not-differentiable``, in a trace inside of the block.
    """
    outer = getattr(_here, "is_on", False), is_from_all(), loss_name()
    with _watched():
        _here.is_on, _here.is_from_all, _here.loss = True, from_all, loss
        try:
            yield
        finally:
            _here.is_on, _here.is_from_all, _here.loss = outer


def is_differentiated() -> bool:
    """True in a trace of what is trained."""
    return getattr(_here, "is_on", False)


def is_from_all() -> bool:
    """True in a trace of what is trained by any of its results."""
    return getattr(_here, "is_from_all", False)


def loss_name() -> str:
    """Return the name of the result that a trace is trained by; empty where none is named."""
    return getattr(_here, "loss", "")


def _watch() -> Callable[[], None]:
    own = vars(Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if is_differentiated() and not cls.__module__.startswith("torch."):
            _here.is_on = False
            try:
                _compare(cls, args, lambda *operands: own.__func__(cls, *operands, **kwargs))
            finally:
                _here.is_on = True
        return own.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(apply)  # pyright: ignore[reportAttributeAccessIssue]

    def undo() -> None:
        Function.apply = own

    return undo


_watched = ProcessWide(_watch)


def _compare(cls: Any, args: Sequence[Any], apply: Callable[..., Any]) -> None:
    try:
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),  # pyright: ignore[reportPrivateUsage]
            _library.random.fork_rng(devices=[]),
            torch.enable_grad(),
        ):
            _library.manual_seed(0)
            operands = [_drawn(arg) for arg in args]
            own = _gradients(apply, operands)
            derived = _gradients(lambda *each: _forward(cls, each), operands)
            alike = all(map(_alike, own, derived))
    except Exception as error:
        raise _refusal(cls, f"comparing the two failed: {type(error).__name__}: {error}") from error
    if not alike:
        raise _refusal(cls, "the two differ, and a compiled step takes the latter")


def _refusal(cls: Any, because: str) -> IrcError:
    return IrcError(
        "not-differentiable",
        f"'{cls.__name__}' has a backward pass of its own beside the derivative of its forward",
        because=because,
        help="train it by irc.compile(model), without mesh=, and an optimizer of torch's, which "
        "runs that backward pass, or write it with detach: y = x + (rounded(x) - x).detach()",
    )


def _drawn(arg: Any) -> Any:
    """Return a tensor of random numbers for one of a trace; all else as it is."""
    if not isinstance(arg, torch.Tensor):
        return arg
    shape = [int(size) for size in arg.shape]
    if arg.dtype.is_floating_point or arg.dtype.is_complex:
        return torch.randn(shape, dtype=arg.dtype)
    return (
        torch.rand(shape) < 0.5 if arg.dtype is torch.bool else torch.zeros(shape, dtype=arg.dtype)
    )


def _gradients(run: Callable[..., Any], args: Sequence[Any]) -> list[torch.Tensor]:
    """Return a function's gradients by its operands, zeros where there is none.

    Those of its results are random.
    """
    operands = [_leaf(arg) for arg in args]
    _library.manual_seed(1)
    results = [y for y in pytree.tree_leaves(run(*operands)) if isinstance(y, torch.Tensor)]
    _library.manual_seed(2)
    weights = [torch.randn(y.shape, dtype=y.dtype) if _is_inexact(y) else None for y in results]
    pairs = [(y, w) for y, w in zip(results, weights, strict=True) if y.requires_grad]
    leaves = [x for x in operands if isinstance(x, torch.Tensor) and x.requires_grad]
    if not pairs or not leaves:
        return [torch.zeros(x.shape, dtype=x.dtype) for x in leaves]
    gradients: Any = torch.autograd.grad(
        [y for y, _ in pairs], leaves, [w for _, w in pairs], allow_unused=True
    )
    return [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True)]


def _leaf(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor) and _is_inexact(arg):
        return arg.clone().requires_grad_()
    return arg


def _is_inexact(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    scale = float(other.abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 0.0
    unit = torch.finfo(one.dtype).eps
    return torch.allclose(one, other, rtol=0.0, atol=(1 + scale) * unit**0.5, equal_nan=True)


class _Context:
    """Stands for what ``forward`` keeps for its backward pass."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *_: Any) -> None: ...

    def save_for_forward(self, *_: Any) -> None: ...

    def mark_dirty(self, *_: Any) -> None: ...

    def mark_non_differentiable(self, *_: Any) -> None: ...

    def set_materialize_grads(self, _: bool) -> None: ...


def _forward(cls: Any, args: Sequence[Any]) -> Any:
    if cls.setup_context is not Function.setup_context:
        return cls.forward(*args)
    context = _Context()
    context.needs_input_grad = tuple(isinstance(x, torch.Tensor) for x in args)
    return cls.forward(context, *args)
