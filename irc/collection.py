"""Python's collector of cycles, held back while a program is compiled.

Compiling makes some hundred thousand objects that live on. Each time their number has grown by a
quarter the collector walks all objects of the process, those of every imported module included, and
finds nothing: a fifth of the time of compiling a transformer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from irc.process_wide import ProcessWide


def _hold() -> Callable[[], None]:
    if not gc.isenabled():
        return lambda: None
    gc.disable()
    return gc.enable


collection_held = ProcessWide(_hold)
"""Holds automatic collection back in a block, or around a function (``@collection_held()``).

Cycles that are dropped in between are collected later, as soon as allocation asks for it.
"""
