"""Tensors and modules that ranks hold in parts, put together."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils import _pytree as pytree

from irc.runtime.held import is_held


def whole(tree: Any) -> Any:
    """Return a tensor, or a structure of them, with every tensor whole on every rank.

    Of a module it returns a copy with plain parameters, of the class that it had before
    ``irc.compile``. Every process calls it; ranks gather what they hold in parts.
    """
    if isinstance(tree, nn.Module):
        from irc.runtime.sharded_parameters import whole_module

        return whole_module(tree, getattr(tree, "_irc_original", type(tree)))
    return pytree.tree_map(_whole_leaf, tree)


def _whole_leaf(leaf: Any) -> Any:
    return leaf.full_tensor() if is_held(leaf) else leaf
