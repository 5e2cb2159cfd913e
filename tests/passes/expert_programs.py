"""Layers of experts as a rank runs them: tokens that travel, with a second axis or without."""

from __future__ import annotations

import json
from typing import NamedTuple

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.comm import AllGatherOp, PendingType, ReduceScatterOp, WaitOp
from irc.dialects.dominance import verify_module
from irc.dialects.flow import ExternOp, FlowOp, tensor
from irc.dialects.placement import Mesh, Placement, Split
from irc.dialects.types import PlacementAttr, TensorType
from irc.ops.strategies import TRAVELLING, TRAVELLING_BACK
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.signatures import NdSignature, signatures

GRADIENTS = (0, 2, 3, 4)
"""Operands of a layer that have gradients: all but the choices."""


class Layer(NamedTuple):
    """Sizes of a layer, of all ranks together.

    Attributes:
        tokens, width: of its rows.
        inner: dim of each expert.
        experts, choices: how many there are, and how many each token goes to.
        gated: whether an expert multiplies by an activation of another product.
        dtype: of rows and matrices.
    """

    tokens: int
    width: int
    inner: int
    experts: int
    choices: int = 2
    gated: bool = True
    dtype: str = "f32"

    def op(self, *, gradient: bool) -> FlowOp:
        """Return the layer, or its derivative, on whole tensors, in a block of its own."""
        rows, picks = (self.tokens, self.width), (self.tokens, self.choices)
        kinds = [
            (rows, self.dtype),
            (picks, "i64"),
            (picks, self.dtype),
            ((self.experts, 1 + self.gated, self.inner, self.width), self.dtype),
            ((self.experts, self.width, self.inner), self.dtype),
        ]
        places = [{"operand": i} for i in range(5)]
        text = json.dumps([[*places, "silu", self.experts], {}])
        call, results = {"target": "irc::experts", "arguments": text}, [kinds[0]]
        if gradient:
            text = json.dumps(["flow.extern", call, 5, [0], list(GRADIENTS)])
            call, results = {"target": "irc::vjp", "arguments": text}, [kinds[i] for i in GRADIENTS]
            kinds.append(kinds[0])
        block = Block(arg_types=[TensorType.of(*kind) for kind in kinds])
        op = ExternOp.make(
            block.args, [TensorType.of(*kind) for kind in results], id="n0", loc="m.py:1", **call
        )
        block.add_op(op)
        return op


def program(layer: Layer, mesh: str, *, gradient: bool = False) -> ModuleOp:
    """Return what a rank runs of a layer, or of its derivative.

    Args:
        layer: its sizes.
        mesh: ``expert=4``; with a second axis, as in ``expert=2,tensor=2``, that one splits the
            experts' inner dim, and rows of tokens, which are gathered before and scattered behind.
        gradient: of all operands but the choices.
    """
    on, op = Mesh.parse(mesh), layer.op(gradient=gradient)
    signature = _travelling(op, on)
    inner = on.names[1:]
    rows = Placement.in_mesh_order(tuple((axis, Split(0)) for axis in on.names))
    operands, results = (
        [rows if place in (0, 5) else p for place, p in enumerate(side)]
        for side in (signature.operands, signature.results)
    )
    kinds = [local_type(v.type, p, on) for v, p in zip(op.inputs, operands, strict=True)]
    block = Block(arg_types=kinds)
    b = FlowBuilder(block, "r")
    b.loc = "m.py:1"
    inputs = [
        _exchanged(b, value, on, inner, gather=True) if place in (0, 5) else value
        for place, value in enumerate(block.args)
    ]
    values = build_local(op, signature, on, inputs, block.add_op)
    values[0] = _exchanged(b, values[0], on, inner, gather=False)
    attrs = (
        [DictionaryAttr({"sbp": PlacementAttr(p)}) for p in side] for side in (operands, results)
    )
    args, res_attrs = attrs
    func = finish_function("forward", block, values, arg_attrs=args, res_attrs=res_attrs)
    module = ModuleOp([func])
    module.attributes["irc.mesh"] = StringAttr(mesh)
    verify_module(module)
    return module


def _travelling(op: FlowOp, mesh: Mesh) -> NdSignature:
    names = {TRAVELLING, TRAVELLING_BACK}
    chosen = [s for s in signatures(op, mesh) if s.strategy[0] in names]
    if len(mesh.axes) > 1:
        # Of down, [experts, width, inner], the second axis splits the inner dim.
        chosen = [s for s in chosen if s.operands[4].split_axes(2) == (mesh.names[1],)]
    return chosen[0]


def _exchanged(
    b: FlowBuilder, value: SSAValue, mesh: Mesh, axes: tuple[str, ...], *, gather: bool
) -> SSAValue:
    for axis in axes:
        rows, *rest = tensor(value).static_shape()
        size = mesh.size(axis)
        kind = TensorType.of((rows * size if gather else rows // size, *rest), tensor(value).dtype)
        cls, fn = (AllGatherOp, {}) if gather else (ReduceScatterOp, {"fn": "sum"})
        (pending,) = b.ops(cls, [value], results=[PendingType(kind)], axis=axis, dim=0, **fn)
        value = b.ops(WaitOp, [pending], results=[kind])[0]
    return value
