"""The user's source line of a node in torch's graph."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import torch
from torch.fx.proxy import TracerBase

if TYPE_CHECKING:
    from torch.fx import Node

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
# With what ends a folder: the names of torchvision and of others begin with torch's.
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
LAYERS = f"{TORCH}nn{os.sep}"
PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
OURS = f"{Path(__file__).parent}{os.sep}"
EXPORT = str(Path(__file__).with_name("export.py"))
Frame = TypeVar("Frame", bound=tuple[Any, ...])
LIBRARIES = (TORCH, "/transformers/", "/site-packages/")


def location(node: Node) -> str:
    """Return ``file:line`` of a node, ``unknown`` where torch kept no trace."""
    trace = node.stack_trace
    return _of_trace(trace) if trace else "unknown"


@cache
def _of_trace(trace: str) -> str:
    return of_frames(FRAME.findall(trace))


def of_frames(frames: Sequence[tuple[str, str, str]]) -> str:
    """Return the innermost frame outside libraries, else outside torch, else the innermost.

    Where the user's module wraps one of a library, the line is that of the library's ``forward``:
    of the wrapper's all ops would have one.

    >>> of_frames([("a/model.py", "3", "forward"), ("/x/site-packages/y.py", "9", "f")])
    'a/model.py:3'
    >>> of_frames([("a/model.py", "3", "forward"), ("/x/site-packages/y/net.py", "9", "forward")])
    'y/net.py:9'
    """
    for path, line, name in reversed(frames):
        is_hidden = any(part in path for part in LIBRARIES)
        if not is_hidden or (name == "forward" and not path.startswith((TORCH, PACKAGE))):
            return f"{shown(path)}:{line}"
    for path, line, _ in reversed(frames):
        if TORCH not in path:
            return f"{shown(path)}:{line}"
    return f"{shown(frames[-1][0])}:{frames[-1][1]}" if frames else "unknown"


def innermost(frames: Sequence[tuple[str, str, str]]) -> str:
    """Return the innermost frame outside torch, the model's own line also where it is a library's.

    >>> innermost([("a/wrapper.py", "3", "forward"), ("/x/site-packages/y/net.py", "9", "f")])
    'y/net.py:9'
    >>> beside = f"{Path(torch.__file__).parent}vision/resnet.py"
    >>> innermost([("a/w.py", "3", "forward"), (beside, "9", "forward")]).rpartition("/")[2]
    'resnet.py:9'
    """
    own = [each for each in frames if TORCH not in each[0] and not each[0].startswith("<")]
    path, line, _ = (own or frames)[-1]
    return f"{shown(path)}:{line}"


@cache
def shown(path: str) -> str:
    """Return a path below the current folder, or its end: IR goes to other machines.

    >>> shown("/usr/lib/python3/site-packages/transformers/models/llama/modeling_llama.py")
    'llama/modeling_llama.py'
    """
    absolute = Path(path)
    if absolute.is_relative_to(Path.cwd()):
        return str(absolute.relative_to(Path.cwd()))
    return "/".join(absolute.parts[-2:]) if absolute.is_absolute() else path


def inner(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of traced code, below torch.export's call; of torch only its layers."""
    traced: list[Frame] = []
    for frame in reversed(frames):
        if frame[0] == EXPORT:
            break
        own = frame[0].startswith(LAYERS) and not frame[0].endswith("module.py")
        if own or not frame[0].startswith((OURS, TORCH, "<string>", "<eval_with_key>")):
            traced.append(frame)
    return traced[::-1]


@contextmanager
def user_frames() -> Iterator[None]:
    """Make torch keep every frame of the traced code.

    By itself it keeps those of functions named ``forward``: a line in a helper, or in a plain
    function, would be lost.
    """

    def keep(self: TracerBase, summary: traceback.StackSummary) -> traceback.StackSummary:
        traced = inner([(frame.filename, frame) for frame in summary])
        return traceback.StackSummary.from_list([frame for _, frame in traced])

    hook: Any = "_filter_traceback_frames"
    if not hasattr(TracerBase, hook):
        yield
        return
    with mock.patch.object(TracerBase, hook, keep):
        yield
