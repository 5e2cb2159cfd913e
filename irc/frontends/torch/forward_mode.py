"""Ways of torch to differentiate forward that no trace of what is trained runs.

``torch.autograd.functional.jacobian(strategy="forward-mode")`` is ``torch.func.jacfwd`` there.
``torch.func.linearize`` traces what it is given by itself, and keeps a part of the gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch.autograd import functional

from irc.errors import IrcError
from irc.frontends.torch.own_backward import is_differentiated
from irc.process_wide import ProcessWide

_here = threading.local()
_functional: Any = functional
"""torch's derivatives of functions, whose types are unknown in part."""
_jacfwd, _disallowed = _functional._jacfwd, eager_transforms.lazy_dynamo_disallow


@contextmanager
def forward_modes() -> Generator[None]:
    """Let a trace below autograd, in this thread, differentiate forward in all of torch's ways."""
    with watched_forward_modes():
        outer, _here.is_on = getattr(_here, "is_on", False), True
        try:
            yield
        finally:
            _here.is_on = outer


def _is_on() -> bool:
    return getattr(_here, "is_on", False)


def _jacobian(
    function: Callable[..., Any], inputs: Any, strict: bool = False, vectorize: bool = False
) -> Any:
    if strict or not vectorize or not _is_on():
        return _jacfwd(function, inputs, strict, vectorize)
    is_one = isinstance(inputs, torch.Tensor)
    operands = (inputs,) if is_one else tuple(inputs)
    jacobian = torch.func.jacfwd(function, tuple(range(len(operands))))(*operands)
    if not is_one:
        return jacobian
    by_result = isinstance(jacobian[0], tuple)
    return tuple(each[0] for each in jacobian) if by_result else jacobian[0]


def _run_by_linearize(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``linearize`` calls: what traces a function, and folds constants of the trace."""
    if is_differentiated():
        raise IrcError(
            "capture-failed",
            "torch.func.linearize is called in what is trained",
            because="it keeps as constants what does not depend on the tangents, so that a part of "
            "the gradient is lost",
            help="call torch.func.jvp, which gives the same derivative, with all of its gradient",
        )
    return _disallowed(function)


def _watch() -> Callable[[], None]:
    _functional._jacfwd, eager_transforms.lazy_dynamo_disallow = _jacobian, _run_by_linearize

    def undo() -> None:
        _functional._jacfwd, eager_transforms.lazy_dynamo_disallow = _jacfwd, _disallowed

    return undo


watched_forward_modes = ProcessWide(_watch)
"""While a trace is made; it changes nothing for other threads."""
