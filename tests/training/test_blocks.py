"""Blocks cut into forward and backward: variants, what is saved, nested calls."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function, functions, results
from irc.dialects.flow import ContractOp, tensor
from irc.dialects.text import dump, load
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.passes.differentiate import DifferentiatePass
from irc.pipeline import run_passes

MATRIX, LINE = TensorType.of((3, 5), "f64"), TensorType.of((5,), "f64")
SQUARE = TensorType.of((5, 5), "f64")


def layer(b: FlowBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> list[SSAValue]:
    """Two results, of which the first is the operand of the second."""
    h = b.pointwise("tanh", b.op(ContractOp, [x, w], spec="bk,kn->bn"))
    return [h, b.pointwise("mul", h, v)]


def function(name: str, body: object, inner: str = "") -> object:
    block = Block(arg_types=[MATRIX, SQUARE, LINE])
    b = FlowBuilder(block, prefix=f"{name}n")
    b.loc = "m.py:1"
    x, w, v = block.args
    if inner:
        first = b.call(inner, [x, w, v], [MATRIX, MATRIX])
        values = b.call(inner, [first[1], w, v], [MATRIX, MATRIX])
    else:
        values = layer(b, x, w, v)
    return finish_function(name, block, values)


def program(*, nested: bool, reads: tuple[int, ...]) -> ModuleOp:
    """Three calls of a block; the loss reads the given results of the last."""
    block = Block(arg_types=[MATRIX, SQUARE, LINE])
    b = FlowBuilder(block)
    b.loc = "m.py:9"
    x, w, v = block.args
    callee = "outer" if nested else "layer"
    for _ in range(3):
        outputs = b.call(callee, [x, w, v], [MATRIX, MATRIX])
        x = outputs[1]
    total = outputs[reads[0]]
    for index in reads[1:]:
        total = b.pointwise("add", total, outputs[index])
    loss = b.reduce("sum", b.pointwise("mul", total, total), (0, 1), keep_dims=False)
    attrs = [argument_attrs("input", "x"), *(argument_attrs("parameter", n) for n in "wv")]
    entry = finish_function(
        "forward", block, [loss], arg_attrs=attrs, res_attrs=[argument_attrs("output", "loss")]
    )
    made_functions = [
        function("layer", layer),
        *([function("outer", None, "layer")] if nested else []),
    ]
    return ModuleOp([*made_functions, entry])  # type: ignore[list-item]  # functions


INPUTS = [
    torch.randn(kind.static_shape(), generator=torch.Generator().manual_seed(i)).double()
    for i, kind in enumerate((MATRIX, SQUARE, LINE))
]


def check(module: ModuleOp, names: dict[str, int]) -> None:
    """Compare all gradients with autograd through the interpreter."""
    leaves = [t.clone().requires_grad_() for t in INPUTS]
    run_function(module, leaves)[0].backward()
    inputs = "*" if "x" in names else ""
    run_passes(module, [DifferentiatePass(inputs=inputs, frozen="v" if "v" not in names else "")])
    module.verify()
    assert dump(load(dump(module))) == dump(module)
    outputs = dict(
        zip(results(functions(module)["forward"]), run_function(module, INPUTS), strict=True)
    )
    assert {name for role, name in outputs if role == "gradient"} == set(names)
    for name, index in names.items():
        torch.testing.assert_close(outputs["gradient", name], leaves[index].grad)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reads", [(0,), (1,), (0, 1)])
def test_gradients(nested: bool, reads: tuple[int, ...]) -> None:
    check(program(nested=nested, reads=reads), {"x": 0, "w": 1, "v": 2})


def test_a_call_of_which_nothing_is_asked_for_x_has_a_variant_of_its_own() -> None:
    module = program(nested=False, reads=(1,))
    check(module, {"w": 1, "v": 2})
    names = list(functions(module))
    assert names == [
        "layer_forward",
        "layer_backward",
        "layer_forward_1",
        "layer_backward_1",
        "forward",
    ]
    entry = functions(module)["forward"]
    callees = [op.callee.string_value() for op in entry.walk() if isinstance(op, CallOp)]
    assert callees.count("layer_forward_1") == callees.count("layer_backward_1") == 1
    first = functions(module)["layer_backward_1"]
    assert len(first.function_type.outputs) == 2, "no gradient of x"


def test_frozen_argument_takes_no_part() -> None:
    module = program(nested=True, reads=(1,))
    check(module, {"w": 1})
    assert "flow.reduce" not in dump(module).partition("@forward")[0]


def test_results_are_read_back_and_not_saved_twice() -> None:
    module = program(nested=False, reads=(1,))
    check(module, {"x": 0, "w": 1, "v": 2})
    forward = functions(module)["layer_forward"]
    # tanh is a result already: nothing else is needed.
    assert len(forward.function_type.outputs) == 2
    back = functions(module)["layer_backward"]
    assert [tensor(a).shape for a in back.body.block.args].count((3, 5)) == 3, "h, x, gradient"
