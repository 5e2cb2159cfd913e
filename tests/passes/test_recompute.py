"""Pass recompute: the same gradients under every policy, for less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects.builder import functions
from irc.dialects.flow import phase_of
from irc.dialects.literals import RandomOp
from irc.dialects.placement import Mesh
from irc.dialects.text import context, dump, load
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.pipeline import Options, default_pipeline, make_plan, run_passes
from irc.plugin import parse_passes
from irc.runtime.executors import executor_of
from irc.search.one_device import held_alone
from irc.train import training_program
from irc.training.recompute import SAVED, apply_policies
from tests.models.megatron import Stack
from tests.training.models import (
    TARGETS,
    TOKENS,
    all_double,
    gradients,
    program_of,
    run,
    small_gpt,
    torch_gradients,
)

POLICIES = (
    "none", "cheap", "selective", "every-second-matmul", "full", "b0n1*,forward/n*",
    "none; every 2 = full", "full; first 1 = every-second-matmul",
)  # fmt: skip
X = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(5))


def dropping(layers: int = 3) -> nn.Module:
    """Layers that drop, without the biases of time: a stack in train mode."""
    torch.manual_seed(6)
    return Stack(8, 2, layers).train()


def saved_bytes(module: ModuleOp) -> dict[str, int]:
    """Return what each function says that it saves."""
    return {
        name: func.attributes[SAVED].value.data  # type: ignore[attr-defined]
        for name, func in functions(module).items()
        if SAVED in func.attributes
    }


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_are_torchs(policy: str, layers: int) -> None:
    """Of outlined blocks and of a body without any."""
    if layers == 1:
        policy = policy.removeprefix("b0n1*,")
    module = small_gpt(layers)
    program = training_program(
        program_of(module, TOKENS, TARGETS), optimizer=None, recompute=policy
    )
    program.module.verify()
    named_gradients = gradients(run(program, TOKENS, TARGETS))
    with all_double():
        _, wanted = torch_gradients(module, lambda m: m(TOKENS, TARGETS))
    assert (
        named_gradients.keys() == {name for name in wanted if name in named_gradients}
        and named_gradients
    )
    for name, value in named_gradients.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-9, msg=name)


def test_what_is_saved_falls_as_the_closed_forms_say() -> None:
    """34 + 5 a s / h, 34 and 2 bytes of ``s b h`` in half precision, of one layer on one device."""
    size, heads, saved = (2, 256, 128), 4, dict[str, float]()
    for policy in ("none", "cheap", "selective", "full"):
        with torch.device("meta"):
            module, x = Stack(128, heads, 2).bfloat16(), torch.empty(size, dtype=torch.bfloat16)
        program = training_program(program_of(module, x), optimizer=None, recompute=policy)
        saved[policy] = saved_bytes(program.module)["block_0_forward"] / x.numel()
    scores = heads * 256 / 128
    # Half of cheap's savings are the operands of products that pointwise ops give.
    assert saved["none"] == pytest.approx(34 + 5 * scores, rel=0.05)
    assert saved["cheap"] == pytest.approx(22 + 3 * scores, rel=0.05)
    assert saved["selective"] == pytest.approx(34, rel=0.05)
    assert saved["full"] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_random_ops_draw_the_same_again(policy: str) -> None:
    """T-37: each mask of backward is one that forward drew, and the gradients are those of it."""
    program = training_program(program_of(dropping(), X), optimizer=None, recompute=policy)
    drawn: dict[str, list[Tensor]] = {"forward": [], "backward": []}

    def trace(_name: str, _index: int, value: Tensor, op: Operation) -> None:
        if isinstance(op, RandomOp):
            drawn[phase_of(op)].append(value)

    inputs = program.bind({program.input_names[0]: X})
    outputs = run_function(program.module, inputs, dtype=torch.float64, trace=trace)
    saved = training_program(program_of(dropping(), X), optimizer=None)
    wanted = run_function(saved.module, inputs, dtype=torch.float64)
    for value, want in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(value, want, rtol=1e-10, atol=1e-12)
    assert len(drawn["backward"]) == (9 if policy == "full" else 3)
    for value in drawn["backward"]:
        assert sum(torch.equal(value, other) for other in drawn["forward"]) == 1


@pytest.mark.parametrize("policy", ["none", "full"])
def test_every_rank_runs_the_same_collectives_again(policy: str) -> None:
    """T-37: recomputed ops are the program's, so no rank skips a collective: all agree."""
    program = training_program(program_of(dropping(2), X), optimizer=None, recompute=policy)
    inputs = program.bind({program.input_names[0]: X})
    wanted = run_function(program.module, inputs, dtype=torch.float64)
    shard = 'canonicalize,auto-shard{mesh="tensor=2" cluster=demo-gpus report=false},lower-boxing'
    run_passes(program.module, parse_passes(shard))
    outputs = run_spmd(program.module, inputs, Mesh.parse("tensor=2"), dtype=torch.float64)
    for value, want in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(value, want, rtol=1e-6, atol=1e-8)


def test_what_runs_again_stays_apart_from_what_ran() -> None:
    """Equal ops are shared by canonicalize, but for these: a body without blocks would keep all."""
    program = training_program(
        program_of(small_gpt(1), TOKENS, TARGETS), optimizer=None, recompute="full"
    )

    def again() -> int:
        return sum("recompute" in op.attributes for op in program.module.walk())

    before = again()
    run_passes(program.module, parse_passes("canonicalize"))
    assert again() == before > 20


def test_recompute_makes_the_arena_smaller() -> None:
    """T-30, T-31: what is allocated falls as what is predicted does, in compiled steps too."""
    arenas: dict[str, int] = {}
    losses: dict[str, Tensor] = {}
    tokens = torch.randint(0, 96, (8, 64))
    for policy in ("none", "full"):
        module = small_gpt(4, block=64)
        program = training_program(
            program_of(module, tokens, tokens), optimizer="sgd", recompute=policy
        )
        held = held_alone(program.module).num_bytes
        loaded = make_plan(program, Options(), keep_ir=False)
        arenas[policy] = loaded.plan.arena_bytes
        (losses[policy],) = executor_of(loaded, program.tensors)(
            tokens, tokens, torch.tensor(0.1, dtype=torch.float64)
        )
        beside = sum(
            b.size_bytes for b in loaded.plan.buffers if b.storage in ("input", "weight", "output")
        )
        assert held == pytest.approx(arenas[policy] + beside, rel=0.12)
    assert arenas["full"] < 0.6 * arenas["none"]
    torch.testing.assert_close(losses["full"], losses["none"], rtol=1e-5, atol=1e-5)


def test_text_form_and_pass_options() -> None:
    program = training_program(program_of(small_gpt(2), TOKENS, TARGETS), optimizer=None)
    again = load(dump(program.module))
    before = saved_bytes(again)["block_0_forward"]
    (full,) = parse_passes("recompute{policy=full}")
    full.apply(context(), again)
    again.verify()
    assert saved_bytes(again)["block_0_forward"] < before / 5


def test_blocks_may_have_policies_of_their_own() -> None:
    program = training_program(program_of(small_gpt(2), TOKENS, TARGETS), optimizer=None)
    decisions = apply_policies(program.module, "none", {"block_0_forward": "full"})
    assert {d.function: d.policy for d in decisions} == {
        "block_0_forward": "full",
        "forward": "none",
    }


def test_a_glob_that_matches_nothing_is_refused() -> None:
    program = training_program(program_of(small_gpt(2), TOKENS, TARGETS), optimizer=None)
    with pytest.raises(IrcError, match="no op of the forward pass matches 'mlp"):
        apply_policies(program.module, "mlp.*")


def test_what_a_library_draws_is_saved() -> None:
    """T-37: no op that would draw other numbers runs again."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return (self.up(F.dropout(self.up(x), 0.5, True)) ** 2).mean()

    program = training_program(program_of(Noisy(), X), optimizer=None, recompute="full")
    outputs, wanted = (run(program, X) for _ in range(2))
    for key, value in outputs.items():
        torch.testing.assert_close(value, wanted[key], rtol=0, atol=0)


def test_auto_takes_the_cheapest_policy_that_fits() -> None:
    """With room for all, nothing is computed again; with less, as much as it takes."""
    tokens = torch.randint(0, 96, (8, 64))
    program = training_program(program_of(small_gpt(4, block=64), tokens, tokens), optimizer=None)
    need = held_alone(program.module).num_bytes
    saved: dict[str, int] = {}
    for name, memory in {"ample": 2 * need, "short": need * 6 // 10}.items():
        module = program.module.clone()
        (auto,) = parse_passes(f"recompute{{policy=auto memory_bytes={memory}}}")
        auto.apply(context(), module)
        saved[name] = saved_bytes(module)["block_0_forward"]
        assert held_alone(module).num_bytes <= memory
    assert saved["short"] < saved["ample"] / 5


def test_the_pipeline_takes_a_policy() -> None:
    saved: dict[str, int] = {}
    for policy in ("", "full", "auto"):
        program = training_program(program_of(small_gpt(2), TOKENS, TARGETS), optimizer=None)
        options = Options(recompute=policy)
        (chosen, *_), module = default_pipeline(options)[2:], program.module
        if policy:
            chosen.apply(context(), module)
        saved[policy] = saved_bytes(module)["block_0_forward"]
    assert saved["full"] < saved["auto"] == saved[""]
