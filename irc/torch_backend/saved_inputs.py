"""What a backward pass keeps of arguments that the forward pass writes to.

The partition of torch's that computes again what is cheap may keep an argument itself, for a
comparison of it, say. Where the call writes to that argument, autograd refuses what was kept:
its version is another by then. What is kept is a copy of what the argument was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node

Halves = tuple[GraphModule, GraphModule]


def partition_of(gm: GraphModule) -> Callable[..., Halves]:
    """Return what divides the joint graph of a graph into its forward and its backward pass.

    Args:
        gm: of Dynamo, with its writes and the values of its trace.
    """
    written = _written(gm)

    def partition(
        joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> Halves:
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
        if written:
            _keep_copies(forward, written, num_fwd_outputs)
        return forward, backward

    return partition


def _written(gm: GraphModule) -> frozenset[str]:
    """Return AOTAutograd's names of the arguments that a graph writes to, by way of views too."""
    values = (node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder"))
    return frozenset(
        f"primals_{number}"
        for number, value in enumerate(values, 1)
        if isinstance(value, torch.Tensor) and not value.is_inference() and value._version
    )


def _keep_copies(forward: GraphModule, written: frozenset[str], num_fwd_outputs: int) -> None:
    """Keep copies of arguments in their place, made before anything else runs.

    Args:
        forward: its results after the first ``num_fwd_outputs`` are what is kept.
        written: names of arguments.
        num_fwd_outputs: of results.
    """
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    kept = {
        each
        for each in results[num_fwd_outputs:]
        if isinstance(each, Node) and each.op == "placeholder" and each.target in written
    }
    if not kept:
        return
    last = forward.graph.find_nodes(op="placeholder")[-1]
    copies: dict[Any, Node] = {}
    for node in kept:
        with forward.graph.inserting_after(last):
            copies[node] = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
        copies[node].meta = dict(node.meta)
    results[num_fwd_outputs:] = [copies.get(each, each) for each in results[num_fwd_outputs:]]
    output.args = (type(output.args[0])(results),)
    forward.recompile()
