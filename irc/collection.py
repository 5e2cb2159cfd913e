"""Python's collector of cycles, held back while a program is compiled.

Compiling makes some hundred thousand objects that live on. Each time their number has grown by a
quarter the collector walks all objects of the process, those of every imported module included, and
finds nothing: a fifth of the time of compiling a transformer.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holders = 0
_was_enabled = False


@contextmanager
def collection_held() -> Iterator[None]:
    """Hold automatic collection back; it is as it was after the last of nested or parallel uses.

    Cycles that are dropped in between are collected later, as soon as allocation asks for it.
    """
    global _holders, _was_enabled
    with _lock:
        if _holders == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()
