"""An optimizer takes no step in a trace: traced tensors would be its state from then on."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from irc.errors import IrcError


@contextmanager
def without_steps() -> Generator[None]:
    """Refuse what this thread traces where an optimizer takes a step, before it changes anything.

    Raises:
        IrcError: ``capture-failed``, by the step.
    """
    thread = threading.get_ident()

    def refuse(optimizer: Any, *_: Any) -> None:
        if threading.get_ident() == thread:
            raise IrcError(
                "capture-failed",
                f"an optimizer takes a step in a call: {type(optimizer).__name__}",
                because="what it keeps between steps is no part of a program",
                help="train with irc.compile_step(..., optimizer=...), or step where Python runs",
            )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
