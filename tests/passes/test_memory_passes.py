"""The passes that decide where values lie: what they write, and that a plan says just that."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

import irc
from irc.cost.actions import ActionCost
from irc.dialects.builder import entry, functions
from irc.dialects.comm import AllReduceOp
from irc.dialects.flow import id_of
from irc.dialects.launches import CopyOp, LaunchOp
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, default_pipeline, lower, run_passes
from irc.pipeline.memory import MEMORY
from irc.plan.build import build_plan
from irc.plan.memories import ARENA, INTO, OVER, PREPARED, decide, decided
from irc.plan.schema import Copy, to_json
from irc.plan.verify import verify_plan
from irc.plugin import builtin_pass
from irc.program import Program
from irc.runtime.executors import executor_of
from irc.train import training_program
from tests.models.gpt import GPT, GPTConfig
from tests.plan.programs import Task, loaded, mlp, reference_segments


def step(layers: int = 3) -> Program:
    """A step of training of a small GPT, at level flow."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=layers, hidden=16, heads=2, block=8, vocab=40))
    tokens = torch.randint(0, 40, (4, 8))
    return training_program(capture(model, (tokens, tokens)).program, optimizer="adamw")


def decided_module(program: Program, mesh: str = "") -> ModuleOp:
    lower(program, Options(mesh=Mesh.parse(mesh)))
    return program.module


@pytest.mark.parametrize("mesh", ["", "data=2", "data=2,tensor=2"])
def test_the_text_behind_the_passes_is_all_that_a_plan_is_written_from(mesh: str) -> None:
    module = decided_module(step(), mesh)
    cost = ActionCost(module, "this-host", Mesh.parse(mesh))
    again = load(dump(module))
    assert to_json(build_plan(again, seconds=ActionCost(again, "this-host", Mesh.parse(mesh)))) == (
        to_json(build_plan(module, seconds=cost))
    )
    assert [*functions(module)] == ["forward"]
    verify_plan(build_plan(module))


def test_a_plan_obeys_what_is_written() -> None:
    """Places are read, never chosen again: one that is wrong is in the plan, and is refused."""
    module = mlp()
    run_passes(module, [builtin_pass(name)() for name in MEMORY])
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    before = build_plan(module)
    verify_plan(before)
    first, second = launches[0], launches[1]
    assert decided(first, ARENA) != decided(second, ARENA)
    decide(second, ARENA, decided(first, ARENA))
    after = build_plan(module)
    assert after != before
    with pytest.raises(IrcError, match="plan-corrupt"):
        verify_plan(after)


def test_each_pass_keeps_what_a_program_computes() -> None:
    program = step(layers=2)
    options = Options()
    passes = default_pipeline(options)
    at = next(i for i, each in enumerate(passes) if each.name == MEMORY[0])
    run_passes(program.module, passes[:at])
    run_passes(program.module, passes[at:], verify_each="exec")
    assert tuple(each.name for each in passes[at:]) == MEMORY


def test_blocks_of_blocks_are_inlined_under_their_paths() -> None:
    module = load(
        """
        func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
          %0 = func.call @outer(%x) {id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          %1 = func.call @inner(%0) {id = "n1"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          func.return %1 : !flow.tensor<[4], f32>
        }
        func.func private @outer(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
          %0 = func.call @inner(%x) {id = "o0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          %1 = func.call @inner(%0) {id = "o1"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          func.return %1 : !flow.tensor<[4], f32>
        }
        func.func private @inner(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
          %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
              loc = "m.py:3", id = "i0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          func.return %0 : !flow.tensor<[4], f32>
        }
        """
    )
    run_passes(module, [builtin_pass("inline-blocks")()], verify_each="exec")
    ids = [id_of(op) for op in entry(module).body.block.ops if id_of(op)]
    assert ids == ["n0/o0/i0", "n0/o1/i0", "n1/i0"]


def test_a_block_that_calls_itself_is_refused() -> None:
    module = load(
        """
        func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
          %0 = func.call @b(%x) {id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          func.return %0 : !flow.tensor<[4], f32>
        }
        func.func private @b(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
          %0 = func.call @b(%x) {id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
          func.return %0 : !flow.tensor<[4], f32>
        }
        """
    )
    with pytest.raises(IrcError, match="calls itself"):
        run_passes(module, [builtin_pass("inline-blocks")()])


def test_two_states_may_get_one_value() -> None:
    """A kernel writes one of them; the other is a copy."""
    t = Task()
    x = t.argument("input", "x", (3,))
    t.argument("state", "a", (3,))
    t.argument("state", "b", (3,))
    new = t.pointwise("exp", x)
    module = t.finish(new, new, roles=[("state", "a"), ("state", "b")])
    tensors = {"a": torch.zeros(3), "b": torch.zeros(3)}
    plan = loaded(module)
    executor_of(plan, tensors, load=reference_segments)(torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(tensors["a"], tensors["b"])
    assert torch.allclose(tensors["a"], torch.tensor([0.0, 1.0, 2.0]).exp())
    copied = [action for action in plan.plan.actions if isinstance(action, Copy)]
    assert len(copied) == len(plan.plan.updated()) == 1


def test_an_optimizer_has_its_states_and_no_copies() -> None:
    module = decided_module(step(layers=2))
    ops = [*entry(module).body.block.ops]
    into = [place for op in ops for place in decided(op, INTO) if place >= 0]
    assert len(into) == len(set(into)) > 20
    assert not [op for op in ops if isinstance(op, CopyOp) and INTO in op.attributes]


@pytest.mark.parametrize("is_read_again", [False, True])
def test_an_all_reduce_is_written_over_what_nothing_else_reads(is_read_again: bool) -> None:
    t = Task("data=2")
    part = t.pointwise("neg", t.argument("input", "x", (16,)))
    total = t.collective(AllReduceOp, part, (16,), axis="data", fn="sum")
    module = t.finish(t.pointwise("add", total, part if is_read_again else total))
    run_passes(module, [builtin_pass(name)() for name in MEMORY])
    over = [decided(op, OVER) for op in module.walk() if OVER in op.attributes]
    assert over == ([] if is_read_again else [(0,)])
    verify_plan(build_plan(module))


def test_what_depends_on_weights_alone_is_marked() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Any:
            return torch.tril(self.weight) @ x, self.weight + x

    program = capture(Masked(), (torch.randn(6, 6),)).program
    module = decided_module(program)
    marks = [decided(op, PREPARED) for op in module.walk() if PREPARED in op.attributes]
    assert (1,) in marks
    plan = build_plan(module)
    assert sum(b.storage == "prepared" for b in plan.buffers) == sum(map(sum, marks))


def test_what_is_computed_twice_of_weights_is_kept_once() -> None:
    """Each layer kept a mask of its own, of as many bytes as tokens squared."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.cumsum(torch.tril(self.weight), 0) @ x
            return x

    model, x = Layers(), torch.randn(6, 6)
    program = capture(model, (x,)).program
    plan = build_plan(decided_module(program))
    assert sum(b.storage == "prepared" for b in plan.buffers) == 1
    torch.testing.assert_close(irc.compile(model)(x), model(x))


def test_a_plan_needs_its_memory_decided() -> None:
    from irc.errors import InternalError

    with pytest.raises(InternalError, match="plan-memory"):
        build_plan(load("func.func @forward() { func.return }"))
