"""A gather of what is computed reads its operands instead, where that is much less."""

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import FusionOp, tensor
from irc.dialects.indexing import GatherOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, random_inputs
from irc.kernels.gathers import move_gathers
from irc.passes.fuse import FusePass

T = TensorType.of


def build(classes: int, taken: int, *, kept: bool = False) -> ModuleOp:
    """``gather(log_softmax(x), index)``; the log-probabilities are a result too where ``kept``."""
    block = Block(arg_types=[T((6, classes)), T((6, taken), "i64")])
    b = FlowBuilder(block)
    x, index = block.args
    index = b.pointwise("maximum", index, b.pointwise("sub", index, index))
    shifted = b.pointwise("sub", x, b.reduce("max", x, [1], keep_dims=True))
    total = b.reduce("sum", b.pointwise("exp", shifted), [1], keep_dims=True)
    logs = b.pointwise("sub", shifted, b.pointwise("log", total))
    results: list[SSAValue] = [b.op(GatherOp, [logs, index], dim=1)]
    return ModuleOp([finish_function("forward", block, [*results, logs] if kept else results)])


def written(module: ModuleOp) -> list[tuple[int, ...]]:
    """Fuse; return the shapes of what kernels write; the numbers stay."""
    inputs = [value * 0 if i else value for i, value in enumerate(random_inputs(module))]
    want = run_function(module, inputs)
    FusePass().apply(context(), module)
    module.verify()
    got = run_function(module, inputs)
    assert all(difference(a, b) < 1e-6 for a, b in zip(got, want, strict=True))
    fusions = [op for op in module.walk() if isinstance(op, FusionOp)]
    return [tensor(value).static_shape() for op in fusions for value in op.outputs]


def test_log_probabilities_are_not_written() -> None:
    assert (6, 400) not in written(build(400, 1))


@pytest.mark.parametrize(("classes", "taken", "kept"), [(400, 100, False), (400, 1, True)])
def test_it_stays_where_much_is_taken_or_all_is_kept(classes: int, taken: int, kept: bool) -> None:
    assert (6, classes) in written(build(classes, taken, kept=kept))


def test_every_id_is_there_once() -> None:
    module = build(400, 1)
    (func,) = module.body.block.ops
    move_gathers(func.regions[0].block)
    ids = [op.attributes["id"] for op in func.regions[0].block.ops if "id" in op.attributes]
    assert len(ids) == len(set(ids))
