"""How often a module is compiled, and what happens when that does not end.

A plan is for fixed sizes. A size that grows with every call, such as that of a key-value cache
which concatenates, would compile every call: the user is told which one it is, and after
``MAX_VERSIONS`` versions further calls run eagerly, as with torch's recompile limit.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field

from irc.calls.left import as_warning
from irc.calls.open_plans import Work

MAX_VERSIONS = 8
"""Versions of one module; a call for which there is none runs eagerly then."""

NOTABLE = 2
"""So many versions for other sizes of one dim are worth a warning."""


class RecompileWarning(UserWarning):
    """A module is compiled again and again, or no longer."""


@dataclass(frozen=True)
class Statistics:
    """What became of the calls of one compiled module or function.

    Attributes:
        compilations: versions compiled.
        reasons: why each but the first was.
        eager_calls: calls that ran uncompiled: there were too many versions, what the call writes
            to shares memory with another argument, there were hooks on all modules, torch was
            under a mode, or its default device is another than the CPU's.
        open_sizes: of the versions that leave sizes open, what was done for them.
        left: kinds of calls that torch runs, because their first timing says that it is faster.
    """

    compilations: int
    reasons: tuple[str, ...]
    eager_calls: int
    open_sizes: tuple[Work, ...] = ()
    left: int = 0


@dataclass
class Recompiles:
    """Counts, and warns.

    Attributes:
        is_open: sizes were to be left open already: to advise that is of no use.
        reasons: why each version but the first was compiled.
        eager_calls: calls that ran uncompiled.
    """

    reasons: list[str] = field(default_factory=list[str])
    eager_calls: int = 0
    is_open: bool = False
    _has_shared: bool = False
    _has_hooks_on_all: bool = False
    _has_modes: bool = False
    _latest: tuple[str, int] = ("x", 0)
    _sizes: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    def add(self, reason: str, resized: tuple[str, int, int, int] | None) -> None:
        """Note one more version; warn where it is not the first for another size of one dim.

        Args:
            reason: what the last version's guards say.
            resized: the argument, the dim and its two sizes, where it is about sizes.
        """
        self.reasons.append(reason)
        if resized is None:
            return
        name, dim, was, now = resized
        self._latest = name, dim
        self._sizes[name, dim] += 1
        if self._sizes[name, dim] == NOTABLE:
            _warn(
                f"'{name}' has another size with every call: dim {dim} was {was}, is {now}",
                "each size is a program of its own; compiling takes as long every time",
                self._remedy(),
            )

    def add_eager(self, reason: str | None) -> None:
        """Note a call that runs uncompiled; the first one is warned of."""
        self.eager_calls += 1
        if self.eager_calls == 1:
            _warn(
                f"calls that none of {len(self.reasons) + 1} versions fits run eagerly from now on",
                reason or "",
                self._remedy(),
            )

    def _remedy(self) -> str:
        return PAD if self.is_open else f"{OPEN % self._latest}; or {PAD}"

    def add_fixed(self, reason: str) -> None:
        """Note that sizes were to be left open and cannot be: each is compiled by itself."""
        _warn(
            "a call's sizes are compiled as they are, though they were to be left open",
            reason,
            "name those that vary: dynamic={'x': {0: 'batch'}}",
        )

    def add_hooks_on_all(self) -> None:
        """Note a call that runs uncompiled for hooks on all modules; warn of the first."""
        self.eager_calls += 1
        if not self._has_hooks_on_all:
            self._has_hooks_on_all = True
            _warn(
                "a call runs eagerly while there are hooks on all modules, now and whenever so",
                "torch.nn.modules.module.register_module_..._hook wants to see each module's call",
                "put hooks on the layers that matter: layer.register_forward_hook",
            )

    def add_under_mode(self, mode: str) -> None:
        """Note a call that runs uncompiled under a mode of torch; warn of the first."""
        self.eager_calls += 1
        if not self._has_modes:
            self._has_modes = True
            _warn(
                "a call runs eagerly under a mode of torch, now and whenever there is one",
                f"{mode}, and what is compiled calls no op that it could see",
                "nothing, or leave the mode for the call",
            )

    def add_shared(self, reason: str) -> None:
        """Note a call that runs uncompiled because arguments share memory; warn of the first."""
        self.eager_calls += 1
        if not self._has_shared:
            self._has_shared = True
            _warn(
                "a call whose arguments share memory runs eagerly, now and whenever they do",
                reason,
                "give a copy: tensor.clone()",
            )


OPEN = "leave it open: irc.compile(..., dynamic={'%s': {%d: 'n'}}), or dynamic=True"
"""What to do about a size that varies: the argument and the dim are filled in."""

PAD = "pad what varies to a few sizes; for generation, cache_implementation='static'"
"""What else."""


def _warn(message: str, because: str, remedy: str) -> None:
    text = as_warning("recompile-limit", message, because=because, remedy=remedy)
    warnings.warn(text, RecompileWarning, stacklevel=2)
