"""Which thread traces a module now: what a call does there is what the user wrote."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import threading

import torch


class Tracing:
    """Held while a module is traced: torch.export puts fake parameters into the module itself.

    Its flag ``is_compiling`` is the process's, too; this one knows which thread it is about.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads: list[int] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.pop()
        self._lock.release()

    def is_elsewhere(self) -> bool:
        """True, after it has ended, where another thread traced."""
        if self._threads in ([], [threading.get_ident()] * len(self._threads)):
            return False
        with self._lock:
            return True


TRACING = Tracing()


def is_traced() -> bool:
    """True where the call is part of a trace: what is traced is then what the user wrote."""
    if (compiler := torch.compiler).is_dynamo_compiling():
        return True
    # What is_compiling() and is_exporting() return: each call asks, and to call them takes longer.
    tracing = compiler._is_compiling_flag or compiler._is_exporting_flag
    return tracing and not TRACING.is_elsewhere()
