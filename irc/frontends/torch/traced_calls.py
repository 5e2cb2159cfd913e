"""One mode for all that is asked of the calls that traced code makes of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch.overrides import TorchFunctionMode

Ask: TypeAlias = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Looks at a call before it runs; what it returns, unless that is None, is the call's result.

An exception that it returns is raised.
"""

Seen: TypeAlias = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any], Any]
"""Looks at a call that has run; takes its result, and returns the one to go on with, likewise."""


class TracedCalls(TorchFunctionMode):
    """Asks of each call inside, in order; runs it where nobody has its result.

    Args:
        before: looks at calls before they run.
        after: looks at calls that have run, and at their results.
        read: looks at what is read of a tensor, such as its dtype, instead of those: torch itself
            does so at every turn, and nothing is computed.
    """

    def __init__(
        self, before: Sequence[Ask], after: Sequence[Seen] = (), read: Sequence[Ask] = ()
    ) -> None:
        super().__init__()
        self._before = before
        self._after = after
        self._read = read

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a call."""
        named = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":
            for ask in self._read:
                if (value := ask(func, args, named)) is not None:
                    return value
            return func(*args, **named)
        for ask in self._before:
            if (value := ask(func, args, named)) is not None:
                break
        else:
            value = func(*args, **named)
            for seen in self._after:
                value = seen(func, args, named, value)
        if isinstance(value, Exception):
            raise value
        return value
