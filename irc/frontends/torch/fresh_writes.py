"""In-place ops on a graph's own values become ops that return new ones, without another trace.

Residual additions are often written ``x += y``. Where the memory that such an op writes to was made
in the graph, and nothing but the op's result reads it afterwards, ``op_(x, y)`` and ``op(x, y)``
are the same. Making a whole graph functional, as torch does it, takes as long as tracing it did.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import guard_or_true
from torch.utils import _pytree as pytree

from irc.frontends.torch.repeat import LAYERS
from irc.frontends.torch.result_memory import RENEWED
from irc.frontends.torch.tensor_memory import memory_of

FRESH = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "matmul", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "batch_norm",
        "layer_norm", "group_norm", "instance_norm", "rms_norm", "max_pool2d", "embedding",
        "scaled_dot_product_attention", "silu", "where", "softmax", "log_softmax",
    )
)  # fmt: skip
"""Composite ops whose result is always new memory."""

RESIZING = frozenset({torch.ops.aten.resize.default, torch.ops.aten.resize_as.default})
"""Ops whose in-place forms leave their operand with another shape."""

ENTER = torch.ops.irc_capture.enter.default
"""The mark in front of a layer that is traced for others like it."""


def renew(graph: Graph) -> int:
    """Replace the in-place ops of a traced graph that may be; the others stay as they are.

    Args:
        graph: of torch.export, each node with its fake value. Repeated layers may be stubs.

    A value lies in the memory of another where their fake values do. What goes into a layer that is
    a stub, or traced for others (:mod:`irc.frontends.torch.repeat`), and what comes out of it, may
    lie in each other's: the stub's fake values cannot say. New nodes keep the fake values of those
    that they replace, with the strides that the user sees; so earlier values still seem to lie in
    the same memory.

    Returns:
        how many were replaced.
    """
    renewed = 0
    memory = _Memory(graph)
    for node in list(graph.nodes):
        functional = _functional(node)
        if functional is None or not memory.is_overwritten_unseen(node):
            continue
        if _leaves_as_much(functional, node):
            _replace(graph, node, functional, memory)
            renewed += 1
    return renewed


def resized_in_order(graph: Graph) -> Node | None:
    """Return the first resize in place to a memory format that is not the order of the dims.

    Where torch makes a graph functional, it leaves the format out: other numbers than eager's.
    """
    return next((node for node in graph.nodes if _is_resized_in_order(node)), None)


def _is_resized_in_order(node: Node) -> bool:
    if node.target not in (torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default):
        return False
    value = node.meta.get("val")
    is_told = node.kwargs.get("memory_format") not in (None, torch.contiguous_format)
    return is_told and not (isinstance(value, Tensor) and value.is_contiguous())


def _functional(node: Node) -> torch._ops.OpOverload | None:
    """Return the op that returns what an op writes into its first operand, None for others."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, _, name = target._schema.name.partition("::")
    if namespace != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    written = [a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments]
    if written != [True] + [False] * (len(written) - 1) or not isinstance(node.args[0], Node):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    functional = getattr(packet, target._overloadname, None)
    if functional is None or functional._schema.is_mutable:
        return None
    same = [(a.name, str(a.type)) for a in functional._schema.arguments] == [
        (a.name, str(a.type)) for a in target._schema.arguments
    ]
    returns = [str(each.type) for each in functional._schema.returns]
    return functional if same and returns == ["Tensor"] else None


def _leaves_as_much(functional: torch._ops.OpOverload, node: Node) -> bool:
    """True where an op gives a tensor as the in-place op leaves it.

    It does not for half += float, nor where the operand lies with gaps, as a part of other memory.
    """
    first = node if functional in RESIZING else node.args[0]
    operand = first.meta.get("val") if isinstance(first, Node) else None
    if not isinstance(operand, FakeTensor):
        return False
    args, kwargs = pytree.tree_map_only(Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    with operand.fake_mode:
        result = functional(*args, **kwargs)
    return (result.dtype, result.shape, result.device, _steps(result)) == (
        operand.dtype, operand.shape, operand.device, _steps(operand)
    )  # fmt: skip


def _steps(tensor: Tensor) -> list[Any]:
    """Return the strides of dims that have some."""
    return [
        step
        for step, size in zip(tensor.stride(), tensor.shape, strict=True)
        if guard_or_true(size != 1)
    ]


def _replace(graph: Graph, node: Node, functional: Any, memory: _Memory) -> None:
    operand = node.args[0]
    assert isinstance(operand, Node)
    with graph.inserting_before(node):
        new = graph.call_function(functional, node.args, node.kwargs)
    new.meta = {**node.meta, RENEWED: True}
    memory.put(new, node)
    operand.replace_all_uses_with(new, delete_user_cb=lambda user: memory.is_after(user, new))
    node.replace_all_uses_with(new)
    graph.erase_node(node)


class _Memory:
    """Which values of a graph may lie in one memory, each a class of a union-find."""

    def __init__(self, graph: Graph) -> None:
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        self._parent = [*range(len(self._place))]
        first: dict[int, int] = {}
        for node, place in self._place.items():
            for storage in _storages(node.meta.get("val")):
                self._join(place, first.setdefault(storage, place))
            for operand in _shared(node):
                self._join(place, self._place[operand])
        self._members: dict[int, list[Node]] = {}
        self._given: set[int] = set()
        for node, place in self._place.items():
            root = self._root(place)
            self._members.setdefault(root, []).append(node)
            # What a layer is given is another value at each of its calls.
            if node.op != "call_function" or node.target is ENTER:
                self._given.add(root)

    def is_overwritten_unseen(self, write: Node) -> bool:
        """True where nothing reads, after an in-place op, what it overwrites, but its result.

        Not so for memory that the graph or a layer is given: somebody else reads it.
        """
        operand = write.args[0]
        root = self._root(self._place[write])
        return root not in self._given and not any(
            self.is_after(user, write)
            for member in self._members[root]
            # What is made later is made of the result, or of a member that is read later.
            if member is not operand and not self.is_after(member, write) and member is not write
            for user in member.users
        )

    def is_after(self, node: Node, other: Node) -> bool:
        """True where a node comes after another."""
        return self._place[node] > self._place[other]

    def put(self, new: Node, old: Node) -> None:
        """Let a node that replaces another take its place."""
        self._place[new] = self._place[old]
        self._members[self._root(self._place[old])].append(new)

    def _join(self, one: int, other: int) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _root(self, place: int) -> int:
        while self._parent[place] != place:
            self._parent[place] = place = self._parent[self._parent[place]]
        return place


def _shared(node: Node) -> list[Node]:
    """Return the operands whose memory a node's result may lie in, whatever its fake value says."""
    target = node.target
    if node.op != "call_function" or target is getitem:
        return []
    if not isinstance(target, torch._ops.OpOverload) or target.namespace == LAYERS:
        return node.all_input_nodes
    name = target._schema.name
    # Composite ops may return an operand itself (dropout does) without saying so in their schema.
    if name not in FRESH and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    ):
        return node.all_input_nodes
    told = [each.alias_info is not None for each in target._schema.arguments]
    return [x for x, shares in zip(node.args, told, strict=False) if shares and isinstance(x, Node)]


def _storages(value: Any) -> Iterator[int]:
    for leaf in pytree.tree_leaves(value):
        if (memory := memory_of(leaf)) is not None:
            yield memory
