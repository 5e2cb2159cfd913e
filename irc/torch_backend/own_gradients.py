"""What :func:`irc.register_op` says of an op's derivative, told to torch's autograd.

AOTAutograd traces the backward pass through autograd itself, which knows no declaration of irc's.
An op that torch has no formula for gets one before it is traced: the declared derivative, else the
derivative of the formula or the reference. Torch's own formula, where there is one, stays.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library import custom_ops
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from irc.ops.custom import LIBRARIES, Declaration, declaration
from irc.runtime.derivative import declared_gradients
from irc.runtime.formula import on_tensors

_library: Any = torch.library
_custom_ops: Any = custom_ops
_PACKET: Any = torch._ops.OpOverloadPacket
"""torch's way to add ops, whose types are unknown in part."""

_told: set[str] = set()
"""Ops that have their formula from here, which reads the declaration anew at each call."""


def tell_autograd(graph: GraphModule) -> None:
    """Give torch a formula for each declared op of a graph that it has none for."""
    for node in graph.graph.nodes:
        for op in _overloads(node.target) if node.op == "call_function" else ():
            if op.namespace not in LIBRARIES:
                _tell(op)


def _overloads(target: Any) -> list[torch._ops.OpOverload]:
    """Return what a call may mean: of a packet, which overload is chosen by its arguments."""
    if isinstance(target, _PACKET):
        return [getattr(target, name) for name in target.overloads()]
    return [target] if isinstance(target, torch._ops.OpOverload) else []


def _tell(op: torch._ops.OpOverload) -> None:
    name = op._schema.name
    known = declaration(name)
    if name in _told or known is None:
        return
    if known.derivative is None and known.reference is None and known.formula is None:
        return
    if _has_formula(op):
        return
    _told.add(name)
    _library.register_autograd(name, _backward(name), setup_context=_keep)


def _has_formula(op: torch._ops.OpOverload) -> bool:
    if (own := _custom_ops.OPDEFS.get(op._schema.name)) is not None:
        return own._backward_fn is not None
    keys = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in keys)


def _keep(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
    leaves, ctx.spec = pytree.tree_flatten((tuple(inputs), dict(keyword_only_inputs or {})))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ctx.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    ctx.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    ctx.save_for_backward(*tensors)


def _backward(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *result_gradients: Any) -> Any:
        known = declaration(name)
        assert known is not None
        leaves = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            leaves[place] = tensor
        operand_gradients = _gradients(known, result_gradients, leaves, ctx)
        leaf_gradients: list[torch.Tensor | None] = [None] * len(leaves)
        for place, gradient in zip(ctx.places, operand_gradients, strict=True):
            leaf_gradients[place] = gradient
        args, _ = pytree.tree_unflatten(leaf_gradients, ctx.spec)
        return args if len(args) != 1 else args[0]

    return backward


def _gradients(
    known: Declaration, result_gradients: Sequence[Any], leaves: Sequence[Any], ctx: Any
) -> Sequence[torch.Tensor | None]:
    operands = [leaves[place] for place in ctx.places]
    if (derivative := known.differentiate()) is not None:
        args, kwargs = pytree.tree_unflatten(list(leaves), ctx.spec)
        return declared_gradients(
            derivative, known.target, result_gradients, args, kwargs, operands
        )
    by_formula = on_tensors(known.target, known.formula) if known.formula else None
    reference = by_formula or known.run()
    assert reference is not None
    with torch.enable_grad():
        inner = list(leaves)
        for place in ctx.places:
            inner[place] = leaves[place].detach()
            smooth = inner[place].is_floating_point() or inner[place].is_complex()
            inner[place].requires_grad_(smooth)
        args, kwargs = pytree.tree_unflatten(inner, ctx.spec)
        results = pytree.tree_leaves(reference(*args, **kwargs))
    live = [(r, g) for r, g in zip(results, result_gradients, strict=True) if g is not None]
    roots, weights = (
        [r for r, _ in live if r.requires_grad],
        [g for r, g in live if r.requires_grad],
    )
    wanted = [inner[place] for place in ctx.places if inner[place].requires_grad]
    if not roots or not wanted:
        return [None] * len(operands)
    back = iter(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
    return [next(back) if inner[place].requires_grad else None for place in ctx.places]
