"""A kind of call that goes by Dynamo, though nothing in it wants gradients.

What a program gives back are numbers. Where results share memory with arguments or with each other,
and writes to that memory are part of the module, AOTAutograd sorts out whose memory is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from irc.frontends.torch.guards import Guards


class HandedOn:
    """Hands on calls that meet its guards; :class:`irc.calls.version.Version` runs a plan.

    Args:
        guards: of the trace that was made of such a call.
        run: takes positional and keyword arguments.

    Attributes:
        direct: None: calls go the whole way.
    """

    direct = None

    def __init__(
        self, guards: Guards, run: Callable[[Sequence[Any], Mapping[str, Any]], Any]
    ) -> None:
        self._guards = guards
        self._run = run

    def mismatch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return None where the call is handed on, else the first reason why not."""
        return self._guards.check(args, kwargs)

    def resized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, int, int, int] | None:
        """Return the argument, the dim and its two sizes where only that differs."""
        return self._guards.resized(args, kwargs)

    def shared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Dynamo sees by itself which arguments lie over each other."""
        return None

    def refresh(self) -> None:
        """There is nothing packed."""

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments that meet the guards."""
        return self._run(args, kwargs)
