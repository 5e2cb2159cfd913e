"""What forward saves for backward, channels last where both convolve it.

Kernels of convolutions read and write images with their channels side by side. A graph of
AOTAutograd hands an image from forward to backward as a tensor [N, C, spatial..]; how it lies in
memory is nobody else's business, so it stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

_permute = torch.ops.aten.permute.default
_WINDOWS = frozenset({"aten::convolution", "aten::convolution_backward"})


@dataclass(frozen=True)
class Turned:
    """A value of a graph that is handed over with its channels last.

    Attributes:
        name: of the node, in both graphs.
        shape, strides, dtype: as the other graph sees it.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def turn_saved(module: GraphModule, visible: int | None) -> Mapping[int, Turned]:
    """Let a forward graph give its saved images channels last; by position of the output.

    Args:
        module: the graph, of which the output node changes.
        visible: how many outputs callers see: the others are saved for backward.
    """
    if visible is None or not _convolves(module):
        return {}
    (output,) = module.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    seen = set(outputs[:visible])
    turned: dict[int, Turned] = {}
    for index, node in enumerate(outputs):
        if index < visible or node in seen or not _is_image(node):
            continue
        seen.add(node)
        with module.graph.inserting_before(output):
            outputs[index], turned[index] = _turned(module, node)
    output.args = (tuple(outputs),)
    return turned


def turn_given(module: GraphModule, turned: Collection[Turned]) -> Mapping[int, tuple[int, ...]]:
    """Let a backward graph take saved images channels last: by position, how dims are turned."""
    names = {image.name: image for image in turned}
    orders: dict[int, tuple[int, ...]] = {}
    placeholders = module.graph.find_nodes(op="placeholder")
    for index, node in enumerate(placeholders):
        image = names.get(node.name)
        if image is None or tuple(node.meta["val"].shape) != image.shape:
            continue
        last, first = _orders(len(image.shape))
        value = node.meta["val"]
        with value.fake_mode:
            node.meta["val"] = value.permute(last).contiguous()
            seen = node.meta["val"].permute(first)
        with module.graph.inserting_after(placeholders[-1]):
            back = module.graph.call_function(_permute, (node, list(first)))
        back.meta["val"] = seen

        def is_other(user: Node, own: Node = back) -> bool:
            return user is not own

        node.replace_all_uses_with(back, delete_user_cb=is_other)
        orders[index] = last
    module.recompile()
    return orders


def _turned(module: GraphModule, node: Node) -> tuple[Node, Turned]:
    value = node.meta["val"]
    last, first = _orders(value.ndim)
    permuted = module.graph.call_function(_permute, (node, list(last)))
    with value.fake_mode:
        permuted.meta["val"] = value.permute(last).contiguous()
    strides = permuted.meta["val"].permute(first).stride()
    return permuted, Turned(node.name, tuple(value.shape), tuple(strides), value.dtype)


def _orders(ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims of an image channels last, and those of such a tensor in their own order."""
    return (0, *range(2, ndim), 1), (0, ndim - 1, *range(1, ndim - 1))


def _convolves(module: GraphModule) -> bool:
    return any(map(_is_window, module.graph.nodes))


def _is_window(node: Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, OpOverload):
        return False
    return op._schema.name in _WINDOWS  # pyright: ignore[reportPrivateUsage]


def _is_image(node: object) -> bool:
    """True for what the graph computes [N, C, spatial..], of several channels and places."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim not in (4, 5):
        return False
    shape: list[Any] = [*value.shape]  # some may be SymInts
    sizes = [size for size in shape if isinstance(size, int)]
    return len(sizes) == value.ndim and 0 not in sizes and sizes[1] > 1 and max(sizes[2:]) > 1
