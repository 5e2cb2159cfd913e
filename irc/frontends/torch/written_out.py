"""Functions of torch that are written out before torch takes them apart, which loses eager's.

A trace and AOTAutograd take some functions apart by ways of torch's own, whatever irc has for the
ops. So calls of them are replaced where user code makes them: in a trace, and in Dynamo's graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from irc.frontends.torch import gaussian_loss, half_steps, margin_loss, normal_tail, unpooling

OWN: Mapping[Any, Callable[..., Tensor]] = {
    **margin_loss.OWN,
    **half_steps.OWN,
    **unpooling.OWN,
}
IN_TRACES: Mapping[Any, Callable[..., Tensor | None]] = {
    **OWN,
    **gaussian_loss.OWN,
    **normal_tail.OWN,
}
"""Those that are written out in a trace; None that they return leaves a call to torch."""


def written_out(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return what a traced call of such a function gives, None for all other calls."""
    own = IN_TRACES.get(function) if function in IN_TRACES and kwargs.get("out") is None else None
    return None if own is None else own(*args, **_named(kwargs))


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return named arguments as functions name them: ops of ATen call the first one ``self``."""
    named = {name: value for name, value in options.items() if name != "out"}
    return {"input" if name == "self" else name: value for name, value in named.items()}


def write_out(module: GraphModule) -> None:
    """Write such functions out in a graph, and in those that it runs."""
    for child in module.modules():
        if not isinstance(child, GraphModule):
            continue
        calls = [
            node
            for node in child.graph.nodes
            if node.op == "call_function" and node.target in OWN and node.kwargs.get("out") is None
        ]
        for node in calls:
            node.target, node.kwargs = OWN[node.target], _named(node.kwargs)
        if calls:
            child.recompile()
