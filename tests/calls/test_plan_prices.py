"""Prices from pieces of a model against whole plans, and programs of other batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.calls import forward_passes
from irc.calls.assembly import Assembly
from irc.calls.batch_sizes import lines_through
from irc.calls.forward_passes import ForwardPasses
from irc.calls.plan_pieces import Pieces
from irc.calls.plan_prices import Prices
from irc.calls.step_judge import StepJudge
from irc.choices import recipe_option
from irc.dialects.placement import Mesh
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.pipeline import Options, run_passes
from irc.programs import cuts
from irc.search.blocks import Blocks
from irc.search.configurations import IN_PARTS, Configuration, with_first_again
from irc.search.judge import OF_MEMORY, Verdict
from irc.search.layers import shortened
from irc.search.worth import PRICE_ERROR
from tests.programs.models import GPT

SAMPLES = 32
PROGRAM_ERROR, STAGES_ERROR = 0.02, 0.03
"""What is not made to fit into a budget is priced better than a search reckons with."""


@cache
def judge(layers: int, width: int) -> StepJudge:
    model = GPT(layers, width).to(torch.bfloat16)
    ids = torch.zeros((SAMPLES, 12), dtype=torch.int64)
    recipe = recipe_option(model, None, "adamw", "", 1, "none", None)
    forwards = ForwardPasses(model, (ids, ids.clone()), {}, recipe, None)
    return StepJudge(forwards, options=Options(cluster="2x8xH100"))


def fresh(own: StepJudge) -> Prices:
    """Return prices of a judge's model of which nothing is planned yet."""
    steps = own.prices.steps
    return Prices(Assembly(steps.forward, steps.short, own.options, own.cluster), own.prices.again)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "count", "schedule", "recompute"),
    [
        ("pipe=2,data=4,tensor=2", 4, "1f1b", "none"),
        ("data=8,tensor=2", 2, "1f1b", "full"),
        ("pipe=3,tensor=4", 4, "zb-h1", "none"),
        ("pipe=2,data=4", 8, "search", "none"),
        ("pipe=2,data=2", 4, "interleaved:2", "selective"),
    ],
)
def test_prices_are_those_of_whole_plans(
    mesh: str, count: int, schedule: str, recompute: str
) -> None:
    configuration = Configuration(Mesh.parse(mesh), count, schedule, recompute)
    own = judge(7, 512)
    price, whole = own.price(configuration), own.judge(configuration)
    assert price is not None
    assert price.step_s == pytest.approx(whole.step_s, rel=STAGES_ERROR)
    assert price.num_bytes == pytest.approx(whole.num_bytes, rel=0.15)


@pytest.mark.slow
def test_an_order_that_is_searched_is_priced_below_those_with_a_name() -> None:
    own = judge(7, 512)
    mesh = Mesh.parse("pipe=2,data=2")
    prices = {
        schedule: steps(lambda s=schedule: own.price(Configuration(mesh, 8, s)))
        for schedule in ("zb-h1", "zb-h2", "search")
    }
    assert prices["search"] <= min(prices.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "layout", "recompute", "in_parts"),
    [
        ("data=8", "", "none", 0),
        ("data=16", "fsdp", "none", 0),
        ("data=16", "ddp", "none", 0),
        ("data=4,tensor=2", "", with_first_again("none", 3), 0),
        ("data=8", "", "full", 2),
    ],
)
def test_prices_of_one_program_are_those_of_whole_plans(
    mesh: str, layout: str, recompute: str, in_parts: int
) -> None:
    """Of 12 layers, 8 are planned: functions of a stage with an update after them were 9 % off."""
    own = judge(12, 256)
    configuration = Configuration(
        Mesh.parse(mesh), recompute=recompute, layout=layout, in_parts=in_parts
    )
    price, whole = own.price(configuration), own.judge(configuration)
    assert price is not None
    assert price.step_s == pytest.approx(whole.step_s, rel=PROGRAM_ERROR)
    assert price.num_bytes == pytest.approx(whole.num_bytes, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.9, 0.6])
def test_within_a_budget_the_search_finds_what_a_full_one_finds(part: float) -> None:
    """Of all numbers of layers computed again, each planned whole within the budget."""
    own = judge(6, 128)
    configuration = Configuration(Mesh.parse("pipe=2,data=4"), 4)
    free = own.price(configuration)
    assert free is not None
    tight = replace(own, options=replace(own.options, memory_bytes=int(part * free.num_bytes)))
    policies = ("none", with_first_again("none", 2), "full")
    every = {policy: replace(configuration, recompute=policy) for policy in policies}
    whole = {name: steps(lambda each=each: tight.judge(each)) for name, each in every.items()}
    chosen = tight.fitting(configuration)
    least = min(whole.values())
    assert chosen is not None
    assert chosen.in_parts or chosen.recompute != "none"
    priced, planned = (
        steps(lambda ask=ask, own=chosen: ask(own)) for ask in (tight.price, tight.judge)
    )
    assert priced == pytest.approx(planned, rel=PRICE_ERROR)
    assert planned <= least * (1 + PRICE_ERROR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [("pipe=2,data=2,tensor=2", "1f1b"), ("pipe=2,data=4", "zb-h1")],
)
def test_no_step_that_is_made_smaller_has_a_price_below_what_is_known_at_first(
    mesh: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that there is to choose, each with pieces of its own."""
    own, plan, known = judge(6, 128), Pieces.plan, dict[Configuration, Blocks | None]()

    def planned(self: Pieces, each: Configuration, *, splits: bool) -> Blocks | None:
        if each not in known:
            known[each] = plan(self, each, splits=splits)
        return known[each]

    # What each of them asks for is planned once.
    monkeypatch.setattr(Pieces, "plan", planned)
    first = Configuration(Mesh.parse(mesh), 4, schedule)
    free = fresh(own)
    as_it_is = free.price(first)
    assert as_it_is is not None
    budget = int(0.8 * as_it_is.num_bytes)
    tight = replace(own, options=replace(own.options, memory_bytes=budget))
    some, every = fresh(tight), fresh(tight)
    assert steps(lambda: some.price(first)) == inf
    policies = ("none", with_first_again("none", 1), with_first_again("none", 2), "full")
    smaller = [
        replace(first, recompute=policy, in_parts=in_parts)
        for policy in policies
        for in_parts in range(len(IN_PARTS))
    ]
    prices = {each: steps(lambda each=each: every.price(each)) for each in smaller}
    least = min(prices.values())
    assert 0 < some.least_s(first, is_fitted=True) <= least
    full = free.price(replace(first, recompute="full"))
    assert full is not None
    assert some.least_s(replace(first, recompute="full"), is_fitted=False) <= full.step_s
    # Without a step to beat and with one, the best of all is what it is made.
    for beat_s in (inf, least * 1.001):
        chosen = some.fitting(first, beat_s)
        assert chosen is not None
        assert prices.get(chosen, least) == pytest.approx(least)
        assert steps(lambda chosen=chosen: every.price(chosen)) == pytest.approx(least)


def steps(ask: Callable[[], Verdict | None]) -> float:
    """Return the step that is said; infinity for one that does not fit."""
    try:
        verdict = ask()
    except IrcError as error:
        if error.code not in OF_MEMORY:
            raise
        return inf
    assert verdict is not None
    return verdict.step_s


@pytest.mark.parametrize(("in_parts", "often"), [(0, 1), (1, 2), (2, 2)])
def test_pieces_are_of_one_number_of_copies_where_they_lie_in_parts(
    monkeypatch: pytest.MonkeyPatch, in_parts: int, often: int
) -> None:
    planned: list[Configuration] = []

    def plan(_: Pieces, own: Configuration, *, splits: bool) -> None:
        del splits
        planned.append(own)

    monkeypatch.setattr(Pieces, "plan", plan)
    own = judge(2, 32)
    prices = fresh(own)
    for mesh, count in (("data=4", 4), ("data=8", 2)):
        assert prices.price(Configuration(Mesh.parse(mesh), count, in_parts=in_parts)) is None
    assert len(planned) == often


@pytest.mark.slow
def test_a_price_is_the_same_whatever_was_priced_before() -> None:
    """Where weights lie in parts, they are gathered over ``data`` in each micro-batch."""
    own = judge(4, 32)
    far = Configuration(Mesh.parse("data=8"), 2, in_parts=2)
    alone, after = fresh(own), fresh(own)
    after.price(Configuration(Mesh.parse("data=4"), 4, in_parts=2))
    assert (price := alone.price(far)) is not None
    assert after.price(far) == price


def test_a_model_is_prepared_and_priced_once_for_all_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[ModuleOp] = []

    def prepare(module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        prepared.append(module)
        run_passes(module, passes)

    monkeypatch.setattr(cuts, "run_passes", prepare)
    program, _ = judge(2, 32).forwards.of(1)
    text, one = dump(program.module), cuts.Cuts(program.module, "2x8xH100")
    for stages in (1, 2, 1):
        contents = one.contents(stages)
        assert [own.layers for own in contents] == [2 // stages] * stages
        assert [own.has_first for own in contents].index(True) == 0
        assert contents[-1].has_last
    assert len(prepared) == 1
    assert dump(program.module) == text


def test_the_program_of_a_third_batch_follows_from_two() -> None:
    forwards = judge(2, 32).forwards
    for count in (1, 2, 4):
        forwards.cut(count)
    traced, _ = forwards.traced(4)
    assert forwards.lines is not None
    derived, split = forwards.known[4]
    texts = [re.sub("%[0-9]+", "%", dump(own.program.module)) for own in (derived, traced)]
    assert texts[0] == texts[1]
    assert split == ("ids", "targets")


def test_a_few_layers_of_a_third_batch_follow_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 126 layers the text of each number of micro-batches was parsed whole."""
    monkeypatch.setattr(forward_passes, "MOST", 1)
    forwards = replace(judge(2, 32).forwards, known={})
    for count in (1, 2):
        forwards.cut(count)
    short, recipe = forwards.short(8)
    assert 8 not in forwards.known
    whole, same = forwards.of(8)
    assert recipe == same
    modules = short.module, shortened(whole.module, 1)
    texts = [re.sub("%[0-9]+", "%", dump(module)) for module in modules]
    assert texts[0] == texts[1]
    assert len(texts[0]) < len(dump(whole.module))


def test_numbers_that_are_on_no_line_give_no_text() -> None:
    assert lines_through("[4, 7]", 2, "[6, 8]", 4) is None
    assert lines_through("mean 0.5", 2, "mean 0.25", 4) is None
    lines = lines_through(
        '%1 = f(%0) {id = "n4"} : [4, 7]', 2, '%1 = f(%0) {id = "n4"} : [8, 7]', 4
    )
    assert lines is not None
    assert lines.at(5) == '%0 = f(%1) {id = "n4"} : [10, 7]'


@pytest.mark.parametrize(("changes", "is_known"), [
    ({}, True), ({"passes": ("no-order",)}, True), ({"passes": ("my-bytes",)}, False),
    ({"rules": ("smaller.rules",)}, False),
])  # fmt: skip
def test_what_weights_hold_is_known_where_nobody_else_stores_them(
    changes: dict[str, tuple[str, ...]], is_known: bool
) -> None:
    """A user's pass may store weights in fewer bytes: no budget is too small for them before it."""
    own = judge(2, 64)
    outline = replace(own, options=replace(own.options, **changes)).outline()
    assert (outline.stored_bytes > 0, outline.sums_bytes > 0) == (is_known, is_known)
