"""The products that backward computes again at least where it computes all of a layer again.

A product with a weight that is trained has its other operand read by backward, for the gradient of
the weight. What that operand is made from in the same layer is computed again, whatever is chosen
of placements and kernels. So a layer's last product is not counted, whose result nothing of the
layer multiplies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from irc.cost.kernels import computed_in
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp
from irc.ops.rule import RuleError
from irc.ops.work import flops
from irc.search.layers import layers_of
from irc.training.entry import is_frozen


def products_again(module: ModuleOp, trained: Collection[str]) -> dict[str, float]:
    """Return the flops of these products of one layer, by the dtype that they are computed in.

    Args:
        module: the forward pass of a batch, level flow, with a run of layers; it stays as it is.
        trained: names of the parameters that move.

    Returns:
        Nothing where no layers are alike.
    """
    layers, known, func = layers_of(module), functions(module), entry(module)
    work: Counter[str] = Counter()
    if layers is None:
        return {}
    held = {value: name for role, name, value in arguments(func) if role == "parameter"}
    moves = {v for v, name in held.items() if name in trained and not is_frozen(func, v)}
    for call in layers.layer(0):
        body = known[call.callee.string_value()]
        weights, moving = (_inside(body, call, own) for own in (set(held), moves))
        for op in _read_by_products(body, weights, moving):
            try:
                work[computed_in(op)] += flops(op)
            except (RuleError, KeyError, ValueError):
                continue
    return {dtype: float(number) for dtype, number in work.items()}


def _inside(body: FuncOp, call: CallOp, values: Collection[SSAValue]) -> set[SSAValue]:
    """Return what of a function is made of some of the caller's values alone."""
    pairs = zip(body.body.block.args, call.operands, strict=True)
    own: set[SSAValue] = {argument for argument, value in pairs if value in values}
    for op in body.body.block.ops:
        if op.operands and own.issuperset(op.operands):
            own.update(op.results)
    return own


def _read_by_products(
    body: FuncOp, weights: set[SSAValue], moving: set[SSAValue]
) -> list[ContractOp]:
    """Return the products with a weight from which what multiplies a moving weight is made."""
    read: set[SSAValue] = set()
    chosen: list[ContractOp] = []
    for op in reversed(list(body.body.block.ops)):
        is_read = not read.isdisjoint(op.results)
        if is_read:
            read.update(op.operands)
        if not isinstance(op, ContractOp):
            continue
        if is_read and not weights.isdisjoint(op.operands):
            chosen.append(op)
        if not moving.isdisjoint(op.operands):
            read.update(value for value in op.operands if value not in moving)
    return chosen
