"""What the backend has done since it was imported, and what of it a call's record is told."""

from __future__ import annotations

from collections import Counter

from torch.fx import GraphModule, Node

from irc.calls.noted import note_left
from irc.frontends.torch.locations import FRAME, innermost
from irc.pipeline import Options
from irc.record import FallBack

counters: Counter[str] = Counter()
"""What was done: graphs, forward, backward, ``backward run by torch``, ``library NAME``..."""


def count_left(options: Options, kind: str, reason: str, node: Node | None = None) -> None:
    """Count and note what torch runs.

    Args:
        options: of the compilation.
        kind: ``graph``, ``region`` or ``backward``.
        reason: why.
        node: of the graph, whose line is told.

    Raises:
        IrcError: ``left-to-torch`` with ``strict``.
    """
    counters[WORDS[kind][0]] += 1
    note_left(options, FallBack(kind, WORDS[kind][1], reason, line_of(node)))


WORDS = {
    "graph": ("graphs run by torch", "a graph"),
    "region": ("regions run by torch", "a part of a graph"),
    "backward": ("backward run by torch", "a backward pass"),
}
"""The counter of each kind, and what it is called."""


def first_line(module: GraphModule) -> str:
    """Return the line of the first call of a graph whose line is known."""
    return next((line for line in map(line_of, module.graph.nodes) if line), "")


def line_of(node: Node | None) -> str:
    """Return the line of a node, of a library's too; empty where torch kept none."""
    frames = FRAME.findall(node.stack_trace or "") if node is not None else []
    return innermost(frames) if frames else ""
