"""Whether traced code seeds torch's generator, which a trace would do once and no call again."""

# pyright: basic
from __future__ import annotations

from types import TracebackType
from typing import Self

import torch
from torch.utils._python_dispatch import _disable_current_modes

MARK = 0x5EED_0F_17AC_E
"""A seed that no program sets: one that is still there was not replaced."""


class Seeds:
    """Notes whether the generator of the CPU was seeded inside, and puts it back as it was.

    Attributes:
        effect: what the code inside did, in words; nothing where it left the generator alone.
    """

    def __init__(self) -> None:
        self.effect = ""

    def __enter__(self) -> Self:
        with _disable_current_modes():
            self._before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(MARK)
            self._marked = torch.default_generator.get_state()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with _disable_current_modes():
            if not torch.equal(torch.default_generator.get_state(), self._marked):
                self.effect = "torch's generator is seeded, or its state set"
            torch.default_generator.set_state(self._before)
