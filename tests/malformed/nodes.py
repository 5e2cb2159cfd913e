"""Ways to spoil one node, its attributes, or the numbers that it is given, as an exporter might.

Each behaves as those of `tests.malformed.mutations`; the models may be any, such as those of onnx's
own node tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.malformed.mutations import EXTREMES, HOSTILE, Mutation

OPSETS = (1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 18, 19, 21, 0, -1, 999)
DOMAINS = ("", "ai.onnx", "com.microsoft", "nobody", "ai.onnx.ml")
INTEGERS = (0, 1, -1, 2, -2, 3, 9, 2**31 - 1, -(2**31))
VALUES: tuple[Any, ...] = (
    -7, 3, 2**62, -(2**63), [2**62], [-1, -1], [1], "no", ["a"], [1.5], float("nan"), 0, b"\xff",
)  # fmt: skip
MOST_FROZEN = 256


def _arity(model: onnx.ModelProto, chance: random.Random) -> None:
    node = chance.choice(list(model.graph.node))
    what = chance.randrange(4)
    if what == 0 and node.input:
        del node.input[chance.randrange(len(node.input)) :]
    elif what == 1 and node.input:
        node.input[chance.randrange(len(node.input))] = ""
    elif what == 2:
        node.input.append(chance.choice([each.name for each in model.graph.input] or ["x"]))
    else:
        node.output.append("extra")


def _attribute(model: onnx.ModelProto, chance: random.Random) -> None:
    node = chance.choice(list(model.graph.node))
    if not node.attribute:
        return _arity(model, chance)
    attribute = chance.choice(list(node.attribute))
    what = chance.randrange(4)
    if what == 0:
        node.attribute.remove(attribute)
    elif what == 1:
        other = helper.make_attribute(attribute.name, chance.choice(VALUES))
        attribute.CopyFrom(other)
    elif attribute.type == AttributeProto.INTS and what == 2:
        if attribute.ints and chance.random() < 0.5:
            attribute.ints.pop()
        else:
            attribute.ints.append(chance.choice([0, 1, -1, 7]))
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(EXTREMES)
    elif attribute.type == AttributeProto.INT:
        attribute.i = chance.choice(EXTREMES)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = chance.choice(HOSTILE).encode("utf-8", "ignore")
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = chance.choice([float("nan"), float("inf"), -1e30, 0.0])
    return None


def _frozen(model: onnx.ModelProto, chance: random.Random) -> None:
    """Give an input numbers, which fold and shape the program."""
    kinds = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
    inputs = [i for i in model.graph.input if i.type.tensor_type.elem_type in kinds]
    if not inputs:
        return _attribute(model, chance)
    graph_input = chance.choice(inputs)
    kind = graph_input.type.tensor_type.elem_type
    dims = [dim.dim_value for dim in graph_input.type.tensor_type.shape.dim]
    if chance.random() < 0.2:
        dims = [max(1, dim - 1) for dim in dims]
    if prod(dims) > MOST_FROZEN:
        return _attribute(model, chance)
    far = (2**62, -(2**63)) if kind == TensorProto.INT64 else ()
    numbers = [chance.choice((*INTEGERS, *far)) for _ in range(prod(dims))]
    plain = [n != 0 for n in numbers] if kind == TensorProto.BOOL else numbers
    model.graph.initializer.append(helper.make_tensor(graph_input.name, kind, dims, plain))
    if chance.random() < 0.7:
        model.graph.input.remove(graph_input)
    return None


def _opset(model: onnx.ModelProto, chance: random.Random) -> None:
    entry, what = chance.choice(list(model.opset_import)), chance.randrange(3)
    if what == 0:
        entry.version = chance.choice(OPSETS)
    elif what == 1:
        entry.domain = chance.choice(DOMAINS)
    else:
        node = chance.choice(list(model.graph.node))
        node.domain = chance.choice(DOMAINS)
        if chance.random() < 0.7:
            model.opset_import.add(domain=node.domain, version=chance.choice([1, 2, 3]))
    if chance.random() < 0.3:
        _arity(model, chance)


def _behind(model: onnx.ModelProto, chance: random.Random) -> None:
    """An op that nobody knows stands before: onnx's checker looks no further."""
    model.graph.node.insert(0, helper.make_node("NobodysOp", [], ["stray"]))
    chance.choice([_arity, _attribute])(model, chance)


def _sizes(model: onnx.ModelProto, chance: random.Random) -> None:
    tensors = [i for i in model.graph.input if i.type.HasField("tensor_type")]
    if not tensors:
        return _attribute(model, chance)
    dims = chance.choice(tensors).type.tensor_type.shape.dim
    what = chance.randrange(4)
    if what == 0 or not dims:
        dims.add().dim_value = 2
    elif what == 1:
        dims[chance.randrange(len(dims))].dim_value = chance.choice([0, 1, 5, -1, 2**40])
    elif what == 2:
        del dims[chance.randrange(len(dims))]
    else:
        dims[chance.randrange(len(dims))].dim_param = chance.choice(["n", "n*2", *HOSTILE])
    return None


def _mutation(change: Callable[[onnx.ModelProto, random.Random], None]) -> Mutation:
    def mutated(model: onnx.ModelProto, chance: random.Random) -> bytes:
        for _ in range(chance.choice([1, 1, 2])):
            change(model, chance)
        return model.SerializeToString()

    return mutated


NODE_MUTATIONS: Mapping[str, Mutation] = {
    change.__name__.strip("_"): _mutation(change)
    for change in (_arity, _attribute, _frozen, _opset, _behind, _sizes)
}
