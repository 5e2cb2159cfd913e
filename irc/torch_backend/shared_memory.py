"""Graphs that write to an argument, called with others in its memory.

Dynamo guards which arguments are one tensor, and AOTAutograd which of them share memory, where some
did when it traced. What was compiled for arguments that lie apart reads one that lies in a written
one as it was before. Torch runs such a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from irc.frontends.torch.overlapping_writes import meet_elsewhere, written_by
from irc.frontends.torch.tensor_memory import memory_of
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import counters


def apart(gm: GraphModule, run: Flat) -> Flat:
    """Return what runs a graph: torch does where something lies in an argument that is written.

    Args:
        gm: of Dynamo, as traced.
        run: runs it for arguments that lie apart.
    """
    tensors = {
        i: node.meta["example_value"]
        for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if _varies(node)
    }
    memories = {memory_of(x) for node in gm.graph.nodes for x in written_by(node)} - {None}
    written = [i for i, x in tensors.items() if memory_of(x) in memories]
    if not written or len(tensors) < 2:
        return run
    pairs = [(i, j) for i in written for j in tensors if j > i or (j < i and j not in written)]
    sizes = [_bytes_of(x) for x in tensors.values()]
    if None in sizes:  # open ones
        return _run_apart(gm, run, lambda args: any(_meet(args[i], args[j]) for i, j in pairs))
    # Dynamo guards sizes and strides: where the tensors start tells that they lie apart.
    places, order = [*tensors], {i: n for n, i in enumerate(tensors)}
    near = [(order[i], order[j]) for i, j in pairs if sizes[order[i]] and sizes[order[j]]]
    spans = [(n, m, -(sizes[n] or 0), sizes[m] or 0) for n, m in near]

    def meet(args: Sequence[Any]) -> bool:
        starts = [args[i].data_ptr() for i in places]
        for n, m, least, most in spans:
            if least < starts[n] - starts[m] < most:
                return any(_meet(args[i], args[j]) for i, j in pairs)
        return False

    return _run_apart(gm, run, meet)


def _run_apart(gm: GraphModule, run: Flat, meet: Callable[[Sequence[Any]], bool]) -> Flat:
    def run_apart(*args: Any) -> Sequence[Any]:
        if meet(args):
            counters["graphs run by torch"] += 1
            return gm.forward(*args)
        return run(*args)

    return run_apart


def _varies(node: Node) -> bool:
    """True for a tensor of the caller, not of a module, which is the same at each call."""
    told: Mapping[str, Any] = node.meta.get("tensor_dict") or {}
    value = node.meta.get("example_value")
    return memory_of(value) is not None and "_dynamo_static_input_type" not in told


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for two tensors with an element in common; columns of one memory have none."""
    (first, end), (start, last) = _ends(one), _ends(other)
    if first >= last or start >= end:
        return False
    # Two memories may be parts of an array of NumPy.
    return memory_of(one) != memory_of(other) or meet_elsewhere(one, other, apart=True)


def _bytes_of(value: torch.Tensor) -> int | None:
    """Return from a tensor's first byte to that behind its last; None where sizes are open."""
    steps = [*value.shape, *value.stride()]
    if not all(type(each) is int for each in steps):
        return None
    return _span(value)


def _ends(value: torch.Tensor) -> tuple[int, int]:
    start = value.data_ptr() if value.numel() else 0
    return start, start + _span(value)


def _span(value: torch.Tensor) -> int:
    if not value.numel():
        return 0
    steps = zip(value.shape, value.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * value.itemsize
