"""Layers of experts in pieces: the same numbers on every rank, degrees by price, and pins."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.attributes import to_python
from irc.dialects.builder import entry
from irc.dialects.comm import AllGatherOp, CollectiveOp, MarkedRowsOp, ReduceScatterOp
from irc.dialects.dominance import verify_module
from irc.dialects.flow import id_of, tensor
from irc.errors import IrcError
from irc.interpret.flow import run_op
from irc.interpret.levels import difference
from irc.interpret.spmd import run_spmd
from irc.passes.chunk_experts import ChunkExpertsPass
from irc.passes.order import OrderPass
from irc.pipeline import run_passes
from irc.sharding.chunks import CHUNKS
from irc.sharding.expert_layers import expert_layer
from irc.sharding.mesh import mesh_of
from tests.passes.expert_programs import Layer, program

SMALL = Layer(tokens=32, width=3, inner=8, experts=4)
CLUSTER = "4x8xA100"
LARGE = Layer(tokens=32768, width=4096, inner=14336, experts=8, dtype="bf16")


def values(layer: Layer, experts: int) -> list[torch.Tensor]:
    """Return whole operands of a layer's derivative; tokens go to the first experts alone."""
    rng = torch.Generator().manual_seed(0)
    shapes = [tensor(value).static_shape() for value in layer.op(gradient=True).inputs]
    drawn = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
    drawn[1] = torch.randint(0, experts, shapes[1], generator=rng)
    return drawn


def starts(module: ModuleOp, kind: type[CollectiveOp]) -> list[CollectiveOp]:
    return [op for op in entry(module).body.block.ops if isinstance(op, kind)]


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("mesh", ["expert=2", "expert=4", "expert=2,tensor=2"])
def test_pieces_are_the_same_numbers(mesh: str, gradient: bool, degree: int, experts: int) -> None:
    module = program(SMALL, mesh, gradient=gradient)
    inputs = values(SMALL, experts)[: 6 if gradient else 5]
    before = run_spmd(module, inputs, mesh_of(module), dtype=torch.float64)
    run_passes(module, [ChunkExpertsPass(degree=degree), OrderPass(cluster=CLUSTER)])
    verify_module(module)
    after = run_spmd(module, inputs, mesh_of(module), dtype=torch.float64)
    whole = run_op(SMALL.op(gradient=gradient), inputs, dtype=torch.float64)
    for old, new, alone in zip(before, after, whole, strict=True):
        assert difference(new, old) < 1e-12
        assert difference(new, alone) < 1e-12
    # Rows there and back; of a gradient, its result's there as well.
    assert len(starts(module, MarkedRowsOp)) == (3 if gradient else 2) * degree
    ids = [id_of(op) for op in entry(module).body.block.ops if id_of(op)]
    assert len(set(ids)) == len(ids)


def test_exchanges_of_the_second_axis_are_cut_as_well() -> None:
    module = program(SMALL, "expert=2,tensor=2")
    run_passes(module, [ChunkExpertsPass(degree=2)])
    inner = [op for op in starts(module, CollectiveOp) if op.axis == "tensor"]
    assert [type(op) for op in inner] == [AllGatherOp] * 2 + [ReduceScatterOp] * 2


@pytest.mark.parametrize("gradient", [False, True])
def test_a_price_decides(gradient: bool) -> None:
    """Large layers between nodes are cut, small ones are not; pieces are not cut again."""
    small = program(SMALL, "expert=4", gradient=gradient)
    large = program(LARGE, "expert=4,tensor=8", gradient=gradient)
    for module in (small, large):
        run_passes(module, [ChunkExpertsPass(cluster=CLUSTER)])
    assert CHUNKS not in small.attributes
    (told,) = to_python(large.attributes[CHUNKS])
    assert told["degree"] > 1 and told["saved_s"] > 0
    text = str(large)
    run_passes(large, [ChunkExpertsPass(degree=2)])
    assert str(large) == text


def layer_id(module: ModuleOp) -> str:
    (name,) = (id_of(op) for op in module.walk() if expert_layer(op) is not None)
    return name


@pytest.mark.parametrize("degree", [-2, 1])
def test_one_piece_is_no_cut(degree: int) -> None:
    with pytest.raises(IrcError, match="2 pieces or more"):
        run_passes(program(SMALL, "expert=2"), [ChunkExpertsPass(degree=degree)])


@pytest.mark.parametrize(
    ("degree", "because"), [(0, "nothing is cut by price"), (3, "3 equal pieces")]
)
def test_what_was_to_be_cut_and_stays_whole_says_why(degree: int, because: str) -> None:
    module = program(SMALL, "expert=2")
    with pytest.raises(IrcError, match="stays whole") as error:
        run_passes(module, [ChunkExpertsPass(only=layer_id(module), degree=degree)])
    assert error.value.code == "option-value" and because in error.value.because[0]


def test_a_name_that_no_layer_has() -> None:
    module = program(SMALL, "expert=2")
    name = layer_id(module)
    with pytest.raises(IrcError, match="no layer of experts 'x'") as error:
        run_passes(module, [ChunkExpertsPass(degree=2, only="x")])
    assert name in error.value.help
    text = str(module)
    run_passes(module, [ChunkExpertsPass(degree=2, only="x", is_part=True)])
    assert str(module) == text
    run_passes(module, [ChunkExpertsPass(degree=2, only=name)])
    with pytest.raises(IrcError, match="in 2 pieces, not 4"):
        run_passes(module, [ChunkExpertsPass(degree=4, only=name)])
