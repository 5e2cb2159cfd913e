"""Where Dynamo breaks a graph, and what it could not trace at all, watched while a call runs."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from irc.frontends.torch.locations import innermost, of_frames
from irc.process_wide import ProcessWide

LOGGERS = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.variables.tensor",
    "torch._subclasses.fake_tensor",
)
"""What tells of breaks and failed traces by logging; irc's own warning tells the user."""


class Break(NamedTuple):
    """Why a graph ends before its function does, and the line, ``""`` where torch names none.

    ``where`` is in the user's own files where there is one; ``line`` is where it happens, also in
    a library that the model is from.
    """

    reason: str
    where: str
    line: str = ""


@dataclass
class Seen:
    """What Dynamo did while a call ran.

    Attributes:
        breaks: where graphs were broken, or frames left to Python.
        errors: what Dynamo could not trace a frame for; Python has run the frame.
    """

    breaks: list[Break] = field(default_factory=list[Break])
    errors: list[BaseException] = field(default_factory=list[BaseException])


def breaks_so_far() -> int:
    """Return how many breaks Dynamo has noted: what grows while a call runs is that call's."""
    return len(reasons_so_far())


def reasons_so_far() -> list[Any]:
    """Return what Dynamo has noted of each break: its own list, which has no types."""
    from torch._dynamo import utils

    untyped: Any = utils
    return untyped.graph_break_reasons


@dataclass
class _Listener:
    """What a watched call hears in its thread: of failed traces, and of frames that are left."""

    errors: list[BaseException]
    told: list[Break] = field(default_factory=list[Break])

    def hear(self, record: logging.LogRecord) -> None:
        """Note the error that a record is about, if it is about any."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        if record.levelno >= logging.WARNING:
            self.errors.append(error)
        stack = getattr(error, "real_stack", None) or ()
        self.told.append(Break(reason_of(str(error)), _of_stack(stack), _line_of(stack)))


_here = threading.local()


def _listen() -> Callable[[], None]:
    """Hear what torch logs in threads that listen; what others log is as it would be."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    lowered = loggers[0]
    before, parent = lowered.level, lowered.parent

    def is_shown(record: logging.LogRecord) -> bool:
        listeners: Sequence[_Listener] = getattr(_here, "listeners", ())
        for each in listeners:
            each.hear(record)
        if listeners or record.name != lowered.name:
            return not listeners
        return record.levelno >= (before or (parent.getEffectiveLevel() if parent else 0))

    for logger in loggers:
        logger.addFilter(is_shown)
    # A frame that is left for a reason that Dynamo knows is told of in a lower voice.
    if is_lowered := lowered.getEffectiveLevel() > logging.INFO:
        lowered.setLevel(logging.INFO)

    def undo() -> None:
        for logger in loggers:
            logger.removeFilter(is_shown)
        if is_lowered and lowered.level == logging.INFO:  # nobody has set another one
            lowered.setLevel(before)

    return undo


_listening = ProcessWide(_listen)
"""Loggers are the process's: they change for the first thread that listens, until the last one."""


@contextmanager
def watched() -> Generator[Seen]:
    """Watch Dynamo; torch's own words about breaks and failed traces are held back."""
    from torch._dynamo.utils import counters

    seen = Seen()
    listener, others = _Listener(seen.errors), getattr(_here, "listeners", ())
    reasons = reasons_so_far()
    noted, left = len(reasons), _left(counters)
    with _listening():
        _here.listeners = (*others, listener)
        try:
            yield seen
        finally:
            _here.listeners = others
            for each in reasons[noted:]:
                stack = each.user_stack
                seen.breaks.append(Break(reason_of(each.reason), _of_stack(stack), _line_of(stack)))
            if not seen.breaks and _left(counters) > left:
                # A frame that cannot go on after a break is left whole, and has no entry there.
                seen.breaks += listener.told or [Break("Dynamo leaves the function to Python", "")]


def _left(counters: Any) -> int:
    """Return how many frames Dynamo has left to Python."""
    frames = cast("dict[str, int]", counters["frames"])
    return frames.get("total", 0) - frames.get("ok", 0)


def _of_stack(stack: Sequence[traceback.FrameSummary]) -> str:
    frames = [(f.filename, str(f.lineno), f.name) for f in stack]
    return of_frames(frames) if frames else ""


def _line_of(stack: Sequence[traceback.FrameSummary]) -> str:
    frames = [(f.filename, str(f.lineno), f.name) for f in stack]
    return innermost(frames) if frames else ""


def reason_of(text: str) -> str:
    """Return why a graph breaks, in a line."""
    line = text.strip().split("\n")[0].strip()
    return BRANCH if line.startswith("generic_jump") else line


BRANCH = "a branch depends on the values of a tensor"


def _let_python_run() -> Callable[[], None]:
    import torch._dynamo.config as config

    before, config.suppress_errors = config.suppress_errors, True

    def undo() -> None:
        config.suppress_errors = before

    return undo


lenient = ProcessWide(_let_python_run)
"""Python runs a frame that Dynamo fails on, so that errors are those of eager mode."""
