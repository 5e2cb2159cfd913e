"""The products of a step against those of its differentiated program; and bounds made of them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from irc.calls.call_judge import CallJudge
from irc.calls.forward_passes import ForwardPasses
from irc.choices import recipe_option
from irc.cluster.load import find_cluster
from irc.cost.kernels import computed_in
from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.flow import ContractOp, tensor
from irc.dialects.text import context
from irc.ops.work import flops
from irc.passes.add_optimizer import AddOptimizerPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.pipeline import Options
from irc.program import Program
from irc.search.bounds import least_s
from irc.search.facts import call_counts
from irc.search.outline import num_bytes, outline_of
from irc.search.products import moved_by_step, products_of_call, products_of_step, read_by_call
from irc.training.optimizers import OPTIMIZERS
from tests.programs.models import GPT
from tests.training.models import program_of


class Body(nn.Module):
    """A body of two layers, and a head that may be of another dtype."""

    def __init__(self, head: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, 8, dtype=head)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and a product that it does not depend on."""
        hidden = self.body(x)
        logits = self.head(hidden.to(self.head.weight.dtype))
        return (logits.float() ** 2).mean(), hidden @ hidden.mT


def names(program: Program) -> set[str]:
    return set(program.tensors)


def differentiated(program: Program, frozen: str, loss: str) -> dict[str, float]:
    """Return the products of a program after the passes of a step, by dtype."""
    module = program.module.clone()
    CanonicalizePass().apply(context(), module)
    DifferentiatePass(frozen=frozen, loss=loss).apply(context(), module)
    CanonicalizePass().apply(context(), module)
    known = functions(module)
    counts, work = call_counts(known), Counter[str]()
    for name, func in known.items():
        for op in func.body.block.ops:
            if isinstance(op, ContractOp):
                work[computed_in(op)] += counts[name] * flops(op)
    return {dtype: float(number) for dtype, number in work.items()}


@pytest.mark.parametrize("frozen", ["", "body.*", "body.0.*", "head.*", "body.2.*"])
@pytest.mark.parametrize("head", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_differentiated_program(frozen: str, head: torch.dtype) -> None:
    program = program_of(Body(head), torch.zeros(4, 16))
    still = {name for name in names(program) if frozen and name.startswith(frozen[:-1])}
    own = products_of_step(program.module, names(program) - still)
    assert own == differentiated(program, frozen, "")


def test_layers_that_are_called_count_as_often_as_they_are() -> None:
    ids = torch.zeros((4, 12), dtype=torch.int64)
    program = program_of(GPT(4, 32), ids, ids)
    whole, call = products_of_step(program.module, names(program)), products_of_call(program.module)
    assert whole == differentiated(program, "", "")
    assert whole == {dtype: 3 * number for dtype, number in call.items()}
    few = {name for name in names(program) if "weight" not in name}
    assert sum(products_of_step(program.module, few).values()) < sum(whole.values())


class Scores(nn.Module):
    """Attention in parts, which a kernel may stream."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        q = self.up(x)
        return ((q @ q.mT).softmax(-1) @ q).mean()


def test_products_without_a_weight_do_not_count() -> None:
    program = program_of(Scores(), torch.zeros(4, 16))
    # Forward, and the gradient of the weight.
    assert products_of_step(program.module, names(program)) == {"f32": 2 * 2 * 4 * 16 * 16}


def test_the_bound_of_a_frozen_body_is_below_that_of_all() -> None:
    program, cluster = program_of(Body(torch.bfloat16), torch.zeros(4, 16)), find_cluster("8xH100")

    def bound(trained: set[str]) -> float:
        products = products_of_step(program.module, trained)
        return least_s(outline_of(program.module, products=products), cluster, 1)

    head = {name for name in names(program) if name.startswith("head")}
    forward = 2 * 4 * 16 * 32 * 2
    least = forward / cluster.device.flops("f32") + 2 * 2 * 4 * 16 * 8 / cluster.device.flops(
        "bf16"
    )
    assert bound(head) == pytest.approx(least)
    assert bound(head) < bound(names(program)) < 3 * least


@pytest.mark.parametrize("kind", ["sgd", "adamw", "adafactor"])
@pytest.mark.parametrize("frozen", ["", "body.*", "head.*"])
def test_what_a_step_stores_is_what_its_program_renews(kind: str, frozen: str) -> None:
    """Parameters and states, but for the number of the step."""
    program = program_of(Body(torch.bfloat16), torch.zeros(4, 16))
    trained = {name for name in names(program) if not frozen or not name.startswith(frozen[:-1])}
    moved = moved_by_step(program.module, trained)
    own = outline_of(program.module, held=moved, optimizer=OPTIMIZERS[kind])
    module = program.module.clone()
    DifferentiatePass(frozen=frozen).apply(context(), module)
    gradients = {name for role, name in results(entry(module)) if role == "gradient"}
    assert moved == gradients
    AddOptimizerPass(kind=kind).apply(context(), module)
    renewed = {name for role, name in results(entry(module)) if role == "state"}
    sizes = {
        name: num_bytes(tensor(value))
        for _, name, value in arguments(entry(module))
        if name in renewed and name != "optimizer.step"
    }
    assert own.stored_bytes == sum(sizes.values())
    assert own.sums_bytes == sum(size for name, size in sizes.items() if name in moved)


def test_a_call_stores_what_its_results_depend_on() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.spare = nn.Linear(16, 8, bias=False), nn.Parameter(torch.zeros(64))

        def forward(self, x: Tensor) -> Tensor:
            return self.read(x)

    own = outline_of(program_of(Half(), torch.zeros(4, 16)).module)
    assert (own.stored_bytes, own.sums_bytes) == (4 * 16 * 8, 0)


class Chosen(nn.Module):
    """One of two weights by what is known before any call."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(16, 8))
        self.other = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss of the first."""
        is_first = torch.ones((), dtype=torch.bool)
        return (x @ torch.where(is_first, self.one, self.other)).square().mean()


def test_a_weight_that_a_literal_leaves_out_is_not_held_at_least() -> None:
    program = program_of(Chosen(), torch.zeros(4, 16))
    assert read_by_call(program.module) == {"one", "other"}
    call = CallJudge(program, options=Options(cluster="8xH100")).outline()
    assert call.stored_bytes == 4 * 16 * 8
    recipe = recipe_option(Chosen(), None, "sgd", "", 1, "none", None)
    step = ForwardPasses(Chosen(), (torch.zeros(4, 16),), {}, recipe, None).outline
    assert (step.stored_bytes, step.sums_bytes) == (4 * 16 * 8, 4 * 16 * 8)
    assert dict(step.products) == {"f32": 2 * dict(call.products)["f32"]}
