"""Whether traced code draws from what gives something else each time, and is no generator of torch.

Those of Python and NumPy, the process's and objects of their classes, and iterators: a trace would
draw once, and no call again.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from irc.errors import IrcError

State: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]
"""What reads the state of a generator, and what sets it."""


def is_stream(value: object) -> bool:
    """True for a generator of random numbers, and for an iterator."""
    return hasattr(type(value), "__next__") or _state(value) is not None


class Streams:
    """Notes whether generators moved inside, and puts them back where they were.

    Attributes:
        effect: what the code inside did, in words; nothing where they stand where they stood.

    Args:
        read: the streams that the code has names for, besides those of the process.

    Raises:
        IrcError: ``capture-failed`` for an iterator, which could not be put back.
    """

    def __init__(self, read: Sequence[Any]) -> None:
        self.effect = ""
        numpy = sys.modules.get("numpy.random")
        every = (random, *([numpy] if numpy else ()), *read)
        self._states = [state for each in every if (state := _state(each)) is not None]
        if len(self._states) < len(every):
            raise IrcError(
                "capture-failed",
                "an iterator is read, which gives each item once",
                help="take items of it outside of what is compiled, and hand them over",
            )

    def __enter__(self) -> Self:
        self._were = [(now(), put) for now, put in self._states]
        self._seen = [pickle.dumps(was) for was, _ in self._were]
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for (now, put), (was, _), seen in zip(self._states, self._were, self._seen, strict=True):
            if pickle.dumps(now()) != seen:
                self.effect = "random numbers are drawn from a generator of Python's or NumPy's"
                put(was)


def _state(value: Any) -> State | None:
    """Return how the state of a generator is read and set; None for anything else."""
    if value is random or isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else (value.getstate, value.setstate)
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    if value is numpy or isinstance(value, numpy.RandomState):
        return lambda: value.get_state(legacy=False), value.set_state
    if isinstance(value, numpy.Generator):
        own = value.bit_generator
        return lambda: own.state, lambda state: setattr(own, "state", state)
    return None
