"""What a rank waits in: the collective, the line of the model that it is for, the user's own line.

Nothing is noted while a program runs: the frames of the interpreter say it where somebody asks.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import linecache
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from irc.plan.schema import Start

OWN = f"{Path(__file__).parents[1]}/"
TORCH = f"{Path(torch.__file__).parent}/"
WAITS = (f"{OWN}runtime/", f"{TORCH}distributed/")
"""Where the innermost frame of a thread is that waits for other ranks."""

BUSY = 0.05
"""Of the time between two looks, what a thread may compute that waits."""


@dataclass(frozen=True)
class Pending:
    """What a rank waits in.

    Attributes:
        call: the function of irc or torch that the user called.
        what: the collective, and which op of the model it is for.
        line: the user's own line.
    """

    call: str
    what: str
    line: str

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.what or self.call, self.line]))


def pending_of(frames: Sequence[FrameType]) -> Pending:
    """Say what frames wait in, the innermost first."""
    what = ""
    for place, frame in enumerate(frames):
        what = what or _collective(frame)
        if not _is_ours(frame.f_code):
            call = frames[place - 1].f_code.co_qualname if place else ""
            return Pending(call, what or _of_torch(frames), _line(frame))
    return Pending("", what or _of_torch(frames), "")


def own_pending() -> Pending | None:
    """Say what the main thread is in; None where that is not known."""
    frames = main_frames()
    return pending_of(frames) if frames else None


def pending_in(error: BaseException) -> Pending:
    """Say what an error was raised in, in the thread that asks."""
    inner = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    outer = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    # The frames of a context manager that caught it stand between the two.
    known = {id(frame) for frame in inner}
    return pending_of([*reversed(inner), *(f for f in outer if id(f) not in known)])


def main_frames() -> list[FrameType]:
    """Return the frames of the main thread, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return [] if frame is None else [each for each, _ in traceback.walk_stack(frame)]


class Looks:
    """Looks at the main thread from time to time: for how long has it waited in one collective?

    A thread that waits takes no time of the processor, and stays in its frame.
    """

    def __init__(self) -> None:
        self._frame: tuple[int, int] | None = None
        self._spent = self._at = self._since = 0.0

    def waited_s(self) -> float:
        """Return the seconds since the first look at which the main thread was where it is now.

        It is 0 where that is not in a collective.
        """
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        now, spent = time.monotonic(), _main_spent()
        if frame is None or spent is None or not frame.f_code.co_filename.startswith(WAITS):
            self._frame = None
            return 0.0
        key = id(frame), frame.f_lasti
        same = key == self._frame and spent - self._spent <= BUSY * (now - self._at)
        if not same:
            self._since = now
        self._frame, self._spent, self._at = key, spent, now
        return now - self._since


def _main_spent() -> float | None:
    """Return the time that the main thread has had of a processor; None where that is not said."""
    ident = threading.main_thread().ident
    clock = getattr(time, "pthread_getcpuclockid", None)
    return None if clock is None or ident is None else time.clock_gettime(clock(ident))


def _collective(frame: FrameType) -> str:
    """Say which collective of a plan a frame waits for, if it does."""
    if not frame.f_code.co_filename.startswith(OWN):
        return ""
    if frame.f_code.co_filename.endswith("call_agreement.py"):
        return "the comparison of what ranks are given"
    seen = frame.f_locals
    action: Any = seen.get("waited", seen.get("action"))
    if isinstance(action, Start):
        name = action.op.removeprefix("comm.")
        loc = "" if action.loc == "unknown" else f" for {action.loc}"
        return f"{name} over '{action.attrs.get('axis', '')}'{loc}"
    key: tuple[Any, ...] | None = seen.get("key")
    if frame.f_code.co_name == "wait" and isinstance(key, tuple) and len(key) == 2:
        return f"the transfer of '{key[0]}' of micro-batch {key[1]} between stages"
    return ""


def _of_torch(frames: Sequence[FrameType]) -> str:
    """Return the name of the function of torch.distributed that was called."""
    name = ""
    for frame in frames:
        if not frame.f_code.co_filename.startswith(f"{TORCH}distributed/"):
            break
        name = frame.f_code.co_name if frame.f_code.co_name != "wrapper" else name
    return name


def _is_ours(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith((OWN, TORCH, "<frozen")) or "/contextlib.py" in name


def _line(frame: FrameType) -> str:
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    return f"{Path(path).name}:{number}" + (f": {text}" if text else "")
