"""Python's collector of cycles, held back while a program is compiled.

Compiling makes some hundred thousand objects that live on. Each time their number has grown by a
quarter the collector walks all objects of the process, those of every imported module included, and
finds nothing: a fifth of the time of compiling a transformer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager

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

MANY = 1_000_000
"""So many objects more than before may wait to be looked at: some hundred megabytes."""


@contextmanager
def collected_in_turn() -> Generator[None]:
    """Hold collection back in a block, or around a function, that is one of many such.

    Within a longer block that holds it back, as a search of many plans is, cycles among new objects
    are collected behind it where those are :data:`MANY`. Python alone would walk over all modules
    again and again meanwhile: a tenth of the time of a search.
    """
    with collection_held():
        yield
        if gc.get_count()[0] > MANY:
            gc.collect(0)
