"""Nodes in an order in which they can be computed, for files whose nodes stand in another one.

The specification asks for such an order, and the checker of onnx for it too; ONNX Runtime sorts
nodes itself, so tools that append nodes at the end (casts around float16) go unnoticed there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort the nodes of a graph and of its bodies; those that are in order stay as they are.

    Of nodes that could come next, the first of the file does (Kahn's algorithm, with a heap).
    Nodes that wait for each other are left to the checker.
    """
    for node in graph.node:
        for body in _bodies(node):
            sort_nodes(body)
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    before = [
        {producers[name] for name in reads(node) if producers.get(name, i) != i}
        for i, node in enumerate(graph.node)
    ]
    if all(other < i for i, others in enumerate(before) for other in others):
        return
    readers: list[list[int]] = [[] for _ in before]
    for i, others in enumerate(before):
        for other in others:
            readers[other].append(i)
    waiting = [len(others) for others in before]
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(i := heapq.heappop(ready))
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(before):
        return
    nodes = [graph.node[i] for i in order]
    kept = onnx.GraphProto()
    kept.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and those that its bodies read from around them."""
    yield from node.input
    for body in _bodies(node):
        own = {formal.name for formal in body.input} | {t.name for t in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        for inner in body.node:
            yield from (name for name in reads(inner) if name not in own)
        yield from (out.name for out in body.output if out.name not in own)
