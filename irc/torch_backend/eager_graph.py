"""What runs a graph of Dynamo as eager mode does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule


def forward_of(gm: GraphModule) -> Callable[..., Any]:
    """Return the function of a graph, as it is now.

    Dynamo's graphs are written out as Python when they first run, and ``gm.forward`` of before goes
    through the module at each call: that takes some microseconds, and prints a traceback of torch's
    own beside the error that a user's call raises.
    """
    write_out: Callable[[], object] | None = getattr(gm, "real_recompile", None)
    if write_out is not None:
        write_out()
    return gm.forward
