"""Graphs that are called where derivatives go forward: torch runs them, as its results need.

Kernels give values alone. In a ``dual_level()`` of ``torch.autograd.forward_ad`` an argument or a
parameter may have a tangent, and eager's ops give their results theirs. Dynamo has no guard for
such a level: a graph of before is called in it, and one that was traced in it is called behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from irc.calls.modes import FORWARD, forward
from irc.pipeline import Options
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import count_left


def with_tangents(gm: GraphModule, run: Flat, options: Options) -> Flat:
    """Return what runs a graph: torch does where a tensor may have a tangent.

    Args:
        gm: of Dynamo.
        run: runs it elsewhere.
        options: with ``strict`` nothing is left to torch.
    """

    def either(*args: Any) -> Sequence[Any]:
        if forward._current_level < 0:
            return run(*args)
        count_left(options, "graph", FORWARD)
        return gm.forward(*args)

    return either
