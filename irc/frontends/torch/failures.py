"""Why a capture failed, in the user's terms: every cause that torch names, with its line."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from irc.errors import ErrorCollector, InternalError, IrcError
from irc.frontends.torch.locations import FRAME, OURS, inner, of_frames

HELP = {
    "control": "compute both results and choose with torch.where, or decide outside the module",
    "shape": "give the sizes that vary the same name in dynamic_shapes, or leave them fixed",
    "type": "take and return tensors, numbers, and lists, tuples, dicts or dataclasses of them",
    "other": "mend the line, or leave that part of the module out of the compiled function",
}

LOOPS = (
    "; a loop over experts is compiled where each is two Linear layers with SiLU, GELU or ReLU"
    " between them (with a gate and biases, or without) of rows that torch.where, nonzero or a"
    " boolean mask selects, times a weight of each row, added by index_add_ or out[rows] += .."
)
"""Added to the help where such a loop may have been meant."""

TELLING = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
TOLD = ("Unable to find user code", "failed while attempting to run meta for")
"""Who logs what the error says."""


@contextmanager
def explained(target: Callable[..., Any]) -> Iterator[None]:
    """Turn what torch raises while it traces into ``capture-failed`` or ``size-fixed``."""
    try:
        with _without_graphs():
            yield
    except (IrcError, InternalError):
        raise
    except Exception as error:  # torch.export raises whatever the module's own code raises
        last = traceback.extract_tb(error.__traceback__)[-1]
        # What watches the module's calls runs them itself.
        if last.filename.startswith(OURS) and last.name != "__torch_function__":
            raise
        collector = ErrorCollector()
        for cause in causes(error, target):
            collector.add(cause)
        collector.check()


@contextmanager
def _without_graphs() -> Iterator[None]:
    """Keep torch from printing the graph of a trace that fails: the error names the line.

    Only torch's own words are held back: what the module prints while it is traced is the user's.
    """
    # Whoever traces needs it, and takes seconds to import it; who only names errors does not.
    from torch.export import _trace

    def is_known(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(TOLD)

    loggers = [logging.getLogger(name) for name in TELLING]
    for logger in loggers:
        logger.addFilter(is_known)
    try:
        with mock.patch.object(_trace, "print", create=True):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_known)


def causes(error: BaseException, target: Callable[..., Any]) -> list[IrcError]:
    """Return one error per cause: each violated constraint by itself, else the error as it is."""
    text = _plain(str(error))
    where = of_error(error)
    violated = re.findall(
        r"^ *-? *(Not all values of .*|You marked .*|.*violated.*)$", text, re.MULTILINE
    )
    if type(error).__name__ in ("ConstraintViolationError", "UserError") and violated:
        return [
            _failed(f"dynamic shapes: {line.strip()}", where, "shape")
            for line in dict.fromkeys(violated)
        ]
    if _is_control(error, text):
        message = "the module's Python code depends on the values of a tensor"
        failed = _failed(message, where, "control", _first(text))
        failed.help += LOOPS if _has_list(target) else ""
        return [failed]
    if "not a known type" in text or "pytree" in text or "unsupported input type" in text.lower():
        return [
            _failed(
                "the module takes or returns an object that is no tensor",
                where,
                "type",
                _first(text),
            )
        ]
    if type(error).__name__ == "UserError" and "size" in text:
        return [_failed(f"dynamic shapes: {_first(text)}", where, "shape")]
    return [_failed(f"{type(error).__name__}: {_first(text)}", where, "other")]


def _has_list(target: Any) -> bool:
    children = target.modules() if hasattr(target, "modules") else ()
    return any(type(child).__name__ == "ModuleList" for child in children)


def _plain(text: str) -> str:
    """Say ``size 0 of 'x'`` where torch says ``L['x'].size()[0]``."""
    return re.sub(r"L\['([^']+)'\]\.(?:size\(\)|shape)\[(\d+)\]", r"size \2 of '\1'", text)


def depends_on_values(error: BaseException) -> bool:
    """Return whether a trace failed because Python code asks for values or sizes of tensors."""
    return _is_control(error, str(error))


def _is_control(error: BaseException, text: str) -> bool:
    names = (
        "GuardOnDataDependentSymNode",
        "DataDependentOutputException",
        "DynamicOutputShapeException",
    )
    return type(error).__name__ in names or "data-dependent" in text


def _failed(message: str, where: str, kind: str, because: str = "") -> IrcError:
    code = "size-fixed" if kind == "shape" else "capture-failed"
    return IrcError(code, message, where, because or (), HELP[kind])


def _first(text: str) -> str:
    return text.strip().split("\n\n")[0].strip()


def of_error(error: BaseException) -> str:
    """Return the user's line: torch's own note of it, else the innermost frame of traced code."""
    noted = re.findall(r"user code:\s*((?:.*\n)*)", str(error), re.IGNORECASE) or [""]
    if frames := FRAME.findall(noted[0]):
        return of_frames(frames)
    frames = [
        (f.filename, str(f.lineno), f.name) for f in traceback.extract_tb(error.__traceback__)
    ]
    traced = inner(frames)
    return of_frames(traced) if traced else ""
