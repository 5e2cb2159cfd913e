"""What a backward pass keeps of arguments that the forward pass writes to.

The partition of torch's that computes again what is cheap may keep an argument itself, for a
comparison of it, say. Where the call writes to that argument, autograd refuses what was kept:
its version is another by then. What is kept is a copy of what the argument was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

HALVES = (torch.float16, torch.bfloat16)
COMPARISONS = frozenset(
    getattr(getattr(torch.ops.aten, name), kind)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
)


def keep_copies(forward: GraphModule, gm: GraphModule, seen: Any, visible: int) -> None:
    """Keep copies of the arguments that a call writes to.

    Args:
        forward: a forward pass, whose results after the ``visible`` ones are what is kept; it is
            changed.
        gm: the graph of Dynamo, with its writes and the values of its trace.
        seen: what AOTAutograd knows of it (``ViewAndMutationMeta``), or None.
        visible: tokens and what the caller or AOTAutograd sees.
    """
    values = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    # Views of one memory count its writes together; writes by way of `.data` are not counted.
    written = {i for i, value in enumerate(values) if _is_counted(value)}
    infos = seen.input_info if seen else ()
    written |= {i for i, info in enumerate(infos) if info.mutates_data}
    if not written:
        return
    # Tokens of ops with effects come before the arguments.
    arguments = forward.graph.find_nodes(op="placeholder")[len(seen.tokens) if seen else 0 :]
    if len(arguments) == len(values):  # a tensor of a subclass is several of them
        arguments = [each for i, each in enumerate(arguments) if i in written]
    _copy_kept(forward, frozenset(arguments), visible)


def save_compared(joint: GraphModule) -> None:
    """Let a backward pass keep what it compares, where that is of a half type.

    A kernel computes half types in float32. What it computes again is not the rounded value that
    forward has given: where that is the largest of a row, backward is to see which element it was.

    Args:
        joint: forward and backward in one graph; it is changed.
    """
    for node in joint.graph.nodes:
        if node.target in COMPARISONS:
            for each in node.all_input_nodes:
                value = each.meta.get("val")
                if each.op != "placeholder" and getattr(value, "dtype", None) in HALVES:
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_counted(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference() and value._version > 0


def _copy_kept(forward: GraphModule, written: frozenset[Node], visible: int) -> None:
    """Keep copies of arguments in their place, made before anything else runs.

    Args:
        forward: its results after the ``visible`` ones are what is kept.
        written: arguments.
        visible: a number of results.
    """
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    kept = {each for each in results[visible:] if isinstance(each, Node) and each in written}
    if not kept:
        return
    last = forward.graph.find_nodes(op="placeholder")[-1]
    copies: dict[Any, Node] = {}
    for node in kept:
        with forward.graph.inserting_after(last):
            copies[node] = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
        copies[node].meta = dict(node.meta)
    results[visible:] = [copies.get(each, each) for each in results[visible:]]
    output.args = (type(output.args[0])(results),)
    forward.recompile()
