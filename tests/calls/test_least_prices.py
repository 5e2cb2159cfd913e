"""What steps take at least, by the pieces that are known, against the prices of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.calls.assembly import Assembly
from irc.calls.least_prices import LeastPrices
from irc.calls.plan_pieces import Pieces
from irc.calls.plan_prices import Prices
from irc.cluster.load import find_cluster
from irc.dialects.placement import B, Mesh, Placement
from irc.errors import IrcError
from irc.pipeline import Options
from irc.program import Program
from irc.search.ahead import Ahead
from irc.search.blocks import Blocks, Content, Passed, Piece
from irc.search.configurations import FULL, IN_PARTS, Configuration, with_first_again
from irc.search.judge import Verdict
from irc.training.recipe import Recipe

CLUSTER = "2x8xH100"
LAYERS = 3
"""Of each stage."""
PEAK = find_cluster(CLUSTER).device.flops("bf16")
STEPS = (
    Configuration(Mesh.parse("pipe=2,data=2"), 4),
    Configuration(Mesh.parse("pipe=2,data=4"), 2),
    Configuration(Mesh.parse("pipe=2,data=2"), 4, "zb-h1"),
    Configuration(Mesh.parse("data=4"), 2),
)


@dataclass(frozen=True)
class Model:
    """What layers of a model take, in milliseconds and megabytes.

    Attributes:
        forward: of a micro-batch.
        again: what products of forward take once more at least.
        more: what a layer that is computed again takes besides.
        travel: by what lies in parts, what its collectives take that nothing hides.
        saved: by a layer for backward.
        held: all the time, by what lies in parts.
        arena: of backward.
    """

    forward: float
    again: float
    more: float
    travel: tuple[float, float, float]
    saved: float
    held: tuple[float, float, float]
    arena: float

    def blocks(self, own: Configuration, *, splits: bool) -> Blocks:
        """Return the pieces of a step, as a plan of them would be."""
        is_again = own.recompute == FULL
        again = self.again + self.more if is_again else 0.0
        # On more copies of the model collectives take longer.
        comm = self.travel[own.in_parts] * (1 + 0.01 * own.mesh.size("data"))
        forward, backward = self.forward + comm, 2 * self.forward + again + comm
        functions = {"F": forward, "I": backward / 2, "W": backward / 2}
        if not splits:
            functions = {"F": forward, "B": backward}
        saved = 2.0 if is_again else 2.0 + self.saved
        pairs = {"F-W": saved} if splits else {"F-B": saved}
        layer = Piece(
            {kind: 1e-3 * own for kind, own in {**functions, "update": 1.0}.items()},
            held_bytes=1e6 * self.held[own.in_parts],
            saved_bytes={pair: 1e6 * size for pair, size in pairs.items()},
            arena_bytes=dict.fromkeys(functions, 1e6 * self.arena),
        )
        ends = Piece(dict.fromkeys(functions, 0.0001))
        passed = Passed((1, 1000, 1000), "bf16", Placement((("data", B),)), 2e6, True)
        return Blocks(ends, ends, layer, ends, (passed,) if own.pipe > 1 else ())


class _EqualStages:
    """Cuts a model into stages of as many layers."""

    def contents(self, stages: int) -> tuple[Content, ...]:
        return tuple(Content(LAYERS, n == 0, n == stages - 1) for n in range(stages))


def prices(model: Model, memory_mb: float, planned: list[Configuration] | None = None) -> Prices:
    """Return prices of a model that is described, in the place of one that is planned."""

    def plan(own: Configuration, *, splits: bool) -> Blocks:
        if planned is not None:
            planned.append(own)
        return model.blocks(own, splits=splits)

    options = Options(cluster=CLUSTER, memory_bytes=int(1e6 * memory_mb))
    steps = Assembly(_nothing, _nothing, options, find_cluster(CLUSTER))
    steps.__dict__["_cuts"] = _EqualStages()
    # What a child plans is not noted here.
    alone = Ahead(begins=False)
    steps.__dict__["pieces"] = pieces = Pieces(_nothing, options, steps.cluster, alone)
    pieces.plan = plan
    # Flops of the whole batch: each rank of a stage has its part of each micro-batch's.
    return Prices(steps, (("bf16", 1e-3 * model.again * PEAK * 8),))


def _nothing(count: int) -> tuple[Program, Recipe]:
    raise AssertionError(count)


def smaller(own: Configuration) -> Iterator[Configuration]:
    """Yield all steps that are made smaller, and the step as it is."""
    for in_parts in range(len(IN_PARTS)):
        policies = ("none", *(with_first_again("none", n) for n in range(1, LAYERS)), FULL)
        for policy in policies:
            yield replace(own, recompute=policy, in_parts=in_parts)


def step_s(own: Configuration, of: Prices) -> float:
    """Return the price of a step; infinity for one that does not fit."""
    try:
        verdict: Verdict | None = of.price(own)
    except IrcError:
        return inf
    assert verdict is not None
    return verdict.step_s


MODELS = st.builds(
    Model,
    forward=st.floats(0.1, 5.0),
    again=st.floats(0.0, 5.0),
    more=st.floats(0.0, 2.0),
    travel=st.tuples(st.just(0.0), st.floats(0.0, 3.0), st.floats(0.0, 3.0)).map(
        lambda own: (own[0], min(own[1:]), max(own[1:]))
    ),
    saved=st.floats(0.0, 30.0),
    held=st.lists(st.floats(1.0, 60.0), min_size=3, max_size=3).map(
        lambda own: tuple(sorted(own, reverse=True))
    ),
    arena=st.floats(0.0, 10.0),
)


def check_bounds(model: Model, memory_mb: float) -> None:
    """Hold what is known after the first pieces, and after others, to all prices."""
    every = prices(model, memory_mb)
    least = {own: min(step_s(each, every) for each in smaller(own)) for own in STEPS}
    free = {own: step_s(replace(own, recompute=FULL), prices(model, 1e9)) for own in STEPS}
    some = prices(model, memory_mb)
    for own in STEPS:
        step_s(own, some)
        assert some.least_s(own, is_fitted=True) <= least[own] * (1 + 1e-9)
        assert some.least_s(replace(own, recompute=FULL), is_fitted=False) <= free[own] * (1 + 1e-9)
        some.fitting(own)
        assert some.least_s(own, is_fitted=True) <= least[own] * (1 + 1e-9)


@given(model=MODELS, memory_mb=st.floats(10.0, 400.0))
@settings(max_examples=10, deadline=None)
def test_no_bound_is_above_the_price_of_anything_that_a_step_may_become(
    model: Model, memory_mb: float
) -> None:
    check_bounds(model, memory_mb)


def test_a_wrong_bound_is_above_some_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a layer computed again takes three times its products is no bound."""
    right = LeastPrices._again  # pyright: ignore[reportPrivateUsage]

    def wrong(self: LeastPrices, own: Configuration, blocks: Blocks) -> Blocks:
        return right(replace(self, again=[(kind, 3 * n) for kind, n in self.again]), own, blocks)

    model = Model(1.0, 0.8, 0.1, (0.0, 2.0, 3.0), 20.0, (20.0, 15.0, 10.0), 1.0)
    check_bounds(model, 150.0)
    monkeypatch.setattr(LeastPrices, "_again", wrong)
    with pytest.raises(AssertionError):
        check_bounds(model, 150.0)


@given(model=MODELS, memory_mb=st.floats(10.0, 400.0), beat=st.floats(0.8, 1.5))
@settings(max_examples=10, deadline=None)
def test_what_fits_in_the_least_time_is_the_same_with_bounds_and_without(
    model: Model, memory_mb: float, beat: float
) -> None:
    """Where it is below the step that it has to beat; else it is nothing, or no better."""
    for own in STEPS:
        every = {each: step_s(each, prices(model, memory_mb)) for each in smaller(own)}
        least = min(every.values())
        chosen = prices(model, memory_mb).fitting(own)
        if every[own] < inf or least == inf:
            assert chosen is None
            continue
        assert chosen is not None
        assert every[chosen] == pytest.approx(least)
        within = prices(model, memory_mb).fitting(own, beat * least)
        if beat > 1:
            assert within is not None
            assert every[within] == pytest.approx(least)
        # Where nothing is below it, any other is no better than what there is already.
        assert within is None or every[within] > beat * least * (1 - 1e-9) or beat > 1


def test_pieces_of_what_is_slower_in_any_case_are_not_planned() -> None:
    planned: list[Configuration] = []
    model = Model(1.0, 0.8, 0.0, (0.0, 2.0, 3.0), 20.0, (20.0, 15.0, 10.0), 1.0)
    own = STEPS[0]
    some = prices(model, 150.0, planned)
    as_it_is = prices(model, 1e9).price(own)
    assert as_it_is is not None
    step_s(own, some)
    # Nothing is faster than the step as it is, whatever is chosen.
    assert some.fitting(own, as_it_is.step_s) is None
    # What lies in parts may be; it takes longer, and so does all that computes again besides.
    assert {(each.recompute, each.in_parts) for each in planned} == {("none", 0), ("none", 1)}
    # On more copies it takes as long at least, which their pieces as they are do not say.
    alone, more = prices(model, 150.0), STEPS[1]
    for each in (alone, some):
        step_s(more, each)
    least_s = some.least_s(more, is_fitted=True)
    assert least_s > alone.least_s(more, is_fitted=True)
    planned.clear()
    assert some.fitting(more, least_s) is None
    assert planned == []


def test_more_micro_batches_take_as_long_as_fewer_that_are_known() -> None:
    """Their pieces were planned to be told so, and the forward pass traced for their size."""
    planned: list[Configuration] = []
    model = Model(1.0, 0.8, 0.1, (0.0, 2.0, 3.0), 20.0, (20.0, 15.0, 10.0), 1.0)
    some = prices(model, 150.0, planned)
    own = Configuration(Mesh.parse("data=4"), 2)
    more = replace(own, micro_batches=4)
    assert some.least_s(more, is_fitted=False) == 0.0
    one = step_s(own, some)
    planned.clear()
    assert 0.0 < one < inf
    assert some.least_s(more, is_fitted=False) == pytest.approx(one)
    assert some.least_s(replace(more, recompute=FULL), is_fitted=False) == 0.0
    assert planned == []
    # A pipeline has more micro-batches for its own good.
    stages = Configuration(Mesh.parse("pipe=2,data=2"), 4)
    step_s(stages, some)
    assert some.least_s(replace(stages, micro_batches=8), is_fitted=False) == 0.0


def test_a_schedule_that_pieces_do_not_know_has_no_bound() -> None:
    model = Model(1.0, 0.8, 0.0, (0.0, 2.0, 3.0), 20.0, (20.0, 15.0, 10.0), 1.0)
    some = prices(model, 150.0)
    own = Configuration(Mesh.parse("pipe=2,data=2"), 4)
    for is_fitted in (True, False):
        assert some.least_s(own, is_fitted=is_fitted) == 0.0
