"""Angles of complex numbers lie in order in eager mode; torch's fake tensors lie as the operand."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule

from irc.frontends.torch.overlapping_writes import name_of


def order_angles(gm: GraphModule) -> None:
    """Put ``contiguous()`` behind each angle of complex numbers, as its kernel does (torch 2.13).

    Args:
        gm: a graph of Dynamo; it is changed.
    """
    for node in [n for n in gm.graph.nodes if n.op.startswith("call") and name_of(n) == "angle"]:
        operand = node.args[0].meta.get("example_value") if node.args else None
        value = node.meta.get("example_value")
        if not (isinstance(operand, Tensor) and operand.is_complex()):
            continue
        with gm.graph.inserting_after(node):
            ordered = gm.graph.call_method("contiguous", (node,))
        others = [user for user in node.users if user is not ordered]
        for user in others:
            user.replace_input_with(node, ordered)
        if isinstance(value, Tensor):
            ordered.meta["example_value"] = value.contiguous()
    gm.recompile()
