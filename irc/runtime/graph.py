"""CUDA graphs of segments: what was launched one by one is launched as one.

A graph holds addresses, so there is one for each base table that comes again. torch's allocator
gives a program that repeats itself the same memory, so in a loop the tables do come again; the
first call with a table launches one by one, the second one records.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from typing import Any

import torch

from irc.runtime.segments import Segment

MAX_GRAPHS = 8
"""Graphs of a segment that are kept, those used last."""
MAX_SEEN = 64
"""Tables that are remembered until they come again."""


_recording = threading.local()
_of_callers: list[Any] = []


def hold(memory: Any) -> None:
    """Keep device memory as long as the graph that this thread records, if it records one.

    A caller's own graph may be replayed as long as the process runs.
    """
    held = getattr(_recording, "held", None)
    if held is not None:
        held.append(memory)
    elif torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        _of_callers.append(memory)


class GraphedSegment:
    """A segment that is replayed as a CUDA graph where its addresses come again.

    Args:
        segment: what launches kernels on torch's current stream.
        num_bases: words of the base table.
    """

    def __init__(self, segment: Segment, num_bases: int) -> None:
        self.segment, self.num_bytes = segment, 8 * num_bases
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def run(self, table: int) -> None:
        """Launch all kernels, by a graph where there is one."""
        if torch.cuda.is_current_stream_capturing():
            # The caller records a graph of its own.
            self.segment.run(table)
            return
        key = ctypes.string_at(table, self.num_bytes)
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen:
                self._remember(key)
                self.segment.run(table)
                return
            graph = self._record(table)
            self._graphs[key] = graph
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            self._graphs.move_to_end(key)
        graph[0].replay()

    def _remember(self, key: bytes) -> None:
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def _record(self, table: int) -> tuple[Any, list[Any]]:
        """Record the launches, and the memory that they hold; nothing runs yet.

        Other threads may use the device meanwhile.
        """
        graph, held = torch.cuda.CUDAGraph(), list[Any]()
        _recording.held = held
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.segment.run(table)
        finally:
            _recording.held = None
        return graph, held
