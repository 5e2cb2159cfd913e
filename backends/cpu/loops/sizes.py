"""Sizes that a kernel takes when it runs.

As torch's SymInt does, a :class:`irc.dialects.size.Size` stands where a nest holds an integer.
What is added or multiplied goes on as a polynomial, and ``Builder.i64`` computes it; what has to be
known when code is written (is there a tail, how many registers) takes its general form where
:func:`is_named`, and what is only a matter of speed is decided for a :func:`typical` number. Where
neither is done, the size raises ``UnboundSizeError``: such a kernel is made for each number.
"""

from __future__ import annotations

from irc.dialects.size import Dim, Size, bind

TYPICAL = 101
"""What a name stands for where only speed depends on it: no multiple of any vector."""


def is_named(size: Dim) -> bool:
    """True for a size that is known only when the kernel runs."""
    return isinstance(size, Size)


def typical(size: Dim) -> int:
    """Return a number to estimate with.

    >>> from irc.dialects.size import symbol
    >>> typical(4), typical(symbol("S") * 4)
    (4, 404)
    """
    if isinstance(size, int):
        return size
    estimate = bind(size, dict.fromkeys(size.names(), TYPICAL))
    assert isinstance(estimate, int)
    return max(estimate, 1)
