"""The user's source line of a node in torch's graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx import Node

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
TORCH = str(Path(torch.__file__).parent)
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

    >>> of_frames([("a/model.py", "3", "forward"), ("/x/site-packages/y.py", "9", "f")])
    'a/model.py:3'
    """
    if not frames:
        return "unknown"
    for hidden in (LIBRARIES, (TORCH,)):
        for path, line, _ in reversed(frames):
            if not any(part in path for part in hidden):
                return f"{shown(path)}:{line}"
    path, line, _ = frames[-1]
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
