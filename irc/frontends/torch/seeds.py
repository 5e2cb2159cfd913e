"""Whether traced code seeds torch's generator, which a trace would do once and no call again."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

from irc.frontends.torch.locations import LAYERS, OURS, TORCH
from irc.process_wide import ProcessWide

MARK = 0x5EED_0F_17AC_E
"""A seed that no program sets: one that is still there was not replaced."""

BETWEEN = (torch.random.__file__, contextlib.__file__)
"""What stands between traced code and the generator."""


class Seeds:
    """Notes whether the generator of the CPU was seeded inside, and puts it back as it was.

    Code that seeds and then puts the state back, as ``torch.random.fork_rng`` does, leaves nothing
    behind: its calls are noted while they are made.

    Attributes:
        effect: what the code inside did, in words; nothing where it left the generator alone.
    """

    def __init__(self) -> None:
        self.effect = ""

    def __enter__(self) -> Self:
        self._inside = _watched()
        self._inside.__enter__()
        self._outer = getattr(_here, "seeds", None)
        _here.seeds = self
        with _disable_current_modes():
            self._before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(MARK)
            self._marked = torch.default_generator.get_state()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _disable_current_modes():
            if not torch.equal(torch.default_generator.get_state(), self._marked):
                self.effect = EFFECT
            torch.default_generator.set_state(self._before)
        _here.seeds = self._outer
        self._inside.__exit__(kind, error, trace)


EFFECT = "torch's generator is seeded, or its state is set or read"

_here = threading.local()


class _Generator:
    """The generator of the CPU, for the functions of ``torch.random``."""

    def __getattr__(self, name: str) -> Any:
        seeds = getattr(_here, "seeds", None)
        if seeds is not None and _is_traced_code():
            seeds.effect = EFFECT
        return getattr(torch.default_generator, name)


def _is_traced_code() -> bool:
    """True where traced code itself asks; torch keeps the state while it traces, too."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename in BETWEEN:
        frame = frame.f_back
    file = frame.f_code.co_filename
    return file.startswith(LAYERS) or not file.startswith((TORCH, OURS))


def _watch() -> Callable[[], None]:
    module: Any = torch.random  # which does not say that it exports the generator
    own = module.default_generator
    module.default_generator = _Generator()

    def undo() -> None:
        module.default_generator = own

    return undo


_watched = ProcessWide(_watch)
