"""What irc does, as it happens: ``IRC_LOGS=graph,fallback`` prints it to stderr, a line a fact.

The environment variable ``IRC_LOGS`` has topics with commas between them:

* ``graph``: each program that is compiled, with its text as it was captured;
* ``fusion``: each kernel, and the ops that it fuses, with their lines;
* ``fallback``: what torch or Python runs in irc's place, with its line and why;
* ``recompile``: which guard has changed where a call is compiled again;
* ``cache``: files of machine code that are read or kept;
* ``all``: all of them.

Facts go through the standard ``logging`` module, at level INFO, by loggers of the names
``irc.graph``, ``irc.fallback``, ... A program may route them as any others, with ``IRC_LOGS`` or
without: ``logging.getLogger("irc.fallback").setLevel(logging.INFO)`` and a handler. Where it has
set a handler up before the first compilation, ``IRC_LOGS`` adds none of its own.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from irc.errors import IrcError, did_you_mean

VARIABLE = "IRC_LOGS"
ALL = "all"
TOPIC_NAMES = ("graph", "fusion", "fallback", "recompile", "cache")

PROGRESS = logging.getLogger("irc.progress")
"""Is told at level INFO what is begun, in a few words; commands that take long show it."""
SHARE = "share"
"""What a record of it has as an attribute, where a step is one of several that take equally long:
its number, and how many there are."""
_LOGGERS = {name: logging.getLogger(f"irc.{name}") for name in TOPIC_NAMES}
_read: str | None = None


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        super().emit(record)


def tell_share(what: str, number: int, of: int) -> None:
    """Tell :data:`PROGRESS` of a step that is one of several that take equally long.

    Args:
        what: a step is.
        number: of the step, from 1.
        of: how many there are.
    """
    PROGRESS.info("%s %d of %d", what, number, of, extra={SHARE: (number, of)})


def topics_of(text: str) -> tuple[str, ...]:
    """Return the topics that a value of ``IRC_LOGS`` names.

    >>> topics_of("fallback, graph")
    ('fallback', 'graph')

    Raises:
        IrcError: ``option-value`` for a name that is no topic.
    """
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in names:
        if name not in (*TOPIC_NAMES, ALL):
            raise IrcError(
                "option-value",
                f"{VARIABLE} has no topic '{name}'",
                f"{VARIABLE}={text}",
                help=did_you_mean(name, (*TOPIC_NAMES, ALL)),
            )
    return TOPIC_NAMES if ALL in names else tuple(dict.fromkeys(names))


def ready() -> None:
    """Set the loggers up as ``IRC_LOGS`` says; once for each of its values.

    Raises:
        IrcError: ``option-value``.
    """
    global _read
    text = os.environ.get(VARIABLE, "")
    if text == _read:
        return
    for name in topics_of(text):
        logger = _LOGGERS[name]
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            handler = _Stderr()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
    _read = text


def is_told(topic: str) -> bool:
    """True where somebody listens to a topic."""
    return _LOGGERS[topic].isEnabledFor(logging.INFO)


def tell(topic: str, text: str) -> None:
    """Give a fact to the logger of its topic."""
    _LOGGERS[topic].info("%s", text)
