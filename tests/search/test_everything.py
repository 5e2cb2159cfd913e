"""The search over configurations, with a judge that plans nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.load import find_cluster
from irc.cluster.topology import Cluster
from irc.commands.plan import said
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.held import smallest_budget
from irc.search.bounds import least_s
from irc.search.by_pieces import (
    ALIKE_ERROR,
    MOST_PRICED,
    PLANNED,
    plan_best,
    search_by_pieces,
)
from irc.search.configurations import (
    Configuration,
    Outline,
    can_search,
    configurations,
    estimated_s,
    first_again,
    neighbours,
    staged_mesh,
    with_first_again,
)
from irc.search.everything import Search
from irc.search.judge import Judged, Verdict
from irc.search.limits import Limits, Objective
from irc.search.status import Status
from irc.search.trials import Trials
from irc.search.within_less import plan_tighter
from irc.search.worth import BEHIND, Worth

SMALL = Outline(
    1e15, "bf16", 2e9, 2**26, 16, samples=32, launches=100, products=(("bf16", 2.7e15),)
)
CLUSTER = find_cluster("2x8xH100")


def needs(num_bytes: int) -> IrcError:
    return IrcError(
        "pipeline-memory",
        "a rank holds too much",
        help=f"the smallest budget that works is memory_bytes={num_bytes}; or more ranks",
    )


@dataclass
class Fake:
    """Says what a function says, and remembers what it was asked."""

    says: Callable[[Configuration], Verdict]
    asked: list[Configuration] = field(default_factory=list[Configuration])
    budget: int | None = None
    of: Outline = SMALL
    """What it is known by before a plan; nothing is stored by default."""

    def outline(self) -> Outline:
        return self.of

    def budget_bytes(self, configuration: Configuration) -> int | None:
        return self.budget

    def within(self, memory_bytes: int) -> Fake:
        return replace(self, budget=memory_bytes)

    def unpinned(self) -> None:
        return None

    def begin(self, configurations: Iterable[Configuration], *, is_whole: bool) -> None:
        """Compute nothing ahead."""

    def end(self) -> None:
        """End nothing."""

    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        return [Mesh((("data", devices),))]

    def in_pieces(self) -> bool:
        return False

    def price(self, configuration: Configuration) -> Verdict | None:
        return None

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        return 0.0

    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        return None

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        self.asked.append(configuration)
        return self.says(configuration)


@dataclass
class Priced(Fake):
    """Prices from pieces, which are off by a factor, and plans whole what it is asked to."""

    off: float = 1.0
    planned: list[Configuration] = field(default_factory=list[Configuration])

    def in_pieces(self) -> bool:
        return True

    def price(self, configuration: Configuration) -> Verdict | None:
        self.asked.append(configuration)
        own = self.says(configuration)
        return replace(own, step_s=self.off * own.step_s)

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        self.planned.append(configuration)
        return self.says(configuration)


def by_estimate(configuration: Configuration) -> Verdict:
    return Verdict(estimated_s(SMALL, CLUSTER, configuration), 10**9)


@pytest.mark.parametrize("devices", [1, 6, 16])
def test_configurations_fill_the_devices_and_share_the_batch(devices: int) -> None:
    every = list(configurations(SMALL, devices))
    assert len(set(every)) == len(every)
    for each in every:
        assert each.mesh.num_ranks == devices
        data = each.mesh.size("data") if "data" in each.mesh.names else 1
        assert each.micro_batches >= min(each.pipe, SMALL.samples // data)
        assert SMALL.samples % (each.micro_batches * data) == 0
        assert each.pipe <= SMALL.layers
    sizes = {(each.mesh, each.micro_batches) for each in every}
    for pipe, data, count in product((1, 2), (1, 2), (2, 4)):
        if devices == pipe * data * 1:
            assert (staged_mesh(pipe, data, 1), count) in sizes


def test_an_estimate_grows_with_the_bubble_and_with_slow_links() -> None:
    def step(mesh: str, count: int) -> float:
        return estimated_s(SMALL, CLUSTER, Configuration(Mesh.parse(mesh), count))

    assert step("pipe=4,data=4", 4) > step("pipe=4,data=4", 8)
    assert step("tensor=16", 2) > step("data=2,tensor=8", 2)


def test_the_best_is_the_least_of_all_that_was_asked_and_always_the_same() -> None:
    first, again = Fake(by_estimate), Fake(by_estimate)
    outcome = Search(first, CLUSTER).run(16)
    assert Search(again, CLUSTER).run(16) == outcome
    assert first.asked == again.asked
    steps = [each.verdict.step_s for each in outcome.judged if each.verdict]
    assert outcome.best == outcome.judged[0]
    assert steps == sorted(steps)
    assert outcome.considered == len(list(configurations(SMALL, 16)))
    tried = {each.configuration for each in outcome.judged}
    assert set(neighbours(outcome.best.configuration, SMALL)) <= tried
    assert len(tried) <= Limits().most_judged
    # All fit, so nothing is recomputed; and a schedule of stages is of stages.
    assert {each.recompute for each in tried} == {"none"}
    assert all(each.schedule == "1f1b" for each in tried if each.pipe == 1)


@pytest.mark.parametrize("off", [0.96, 1.0, 1.04])
def test_the_best_of_what_is_priced_from_pieces_are_planned_whole(off: float) -> None:
    judge = Priced(by_estimate, off=off)
    outcome = Search(judge, CLUSTER).run(16)
    # The best one with sums in parts, too: a budget would find it.
    assert 1 <= len(judge.planned) <= PLANNED + 1
    assert [each.in_parts for each in judge.planned if each.in_parts] == [1]
    assert all(each.memory_bytes is None for each in judge.planned)
    assert len(judge.asked) <= MOST_PRICED
    assert not outcome.best.is_priced
    assert outcome.best.verdict is not None
    assert outcome.best.verdict == by_estimate(outcome.best.configuration)
    assert outcome.best.priced_s == pytest.approx(off * outcome.best.verdict.step_s)
    steps = [each.verdict.step_s for each in outcome.priced if each.verdict]
    assert outcome.best.verdict.step_s <= min(steps, default=inf) / off
    assert all(each.is_priced for each in outcome.priced)
    # Prices are off alike, so that those that are further apart are not planned.
    whole = [by_estimate(each).step_s for each in judge.planned]
    assert max(whole) * (1 - ALIKE_ERROR) <= min(whole)


@given(seed=st.integers(0, 10_000), needed=st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_what_is_left_alone_never_beats_the_best(seed: int, needed: float) -> None:
    """Prices are above the closed form by any factor up to the one that is reckoned with."""

    def says(configuration: Configuration) -> Verdict:
        word = f"{seed} {configuration}".encode()
        number = int.from_bytes(sha256(word).digest()[:4]) / 2**32
        is_large = configuration.recompute != "full" and not configuration.in_parts
        if number < needed and is_large:
            raise needs(7 * 10**9)
        seconds = by_estimate(configuration).step_s
        return Verdict(seconds * (1 + (BEHIND - 1) * number), 10**9)

    class Bounded(Priced):
        def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
            return by_estimate(configuration).step_s

        def fitting(
            self, configuration: Configuration, beat_s: float = inf
        ) -> Configuration | None:
            return replace(configuration, in_parts=1)

    trials = Trials(Bounded(says), CLUSTER, Limits(), True, 16)
    assert search_by_pieces(trials, 16)
    best = trials.best()
    assert best is not None
    assert best.verdict is not None
    for configuration in trials.left:
        for each in (configuration, replace(configuration, in_parts=1)):
            with suppress(IrcError):
                assert says(each).step_s >= best.verdict.step_s


@pytest.mark.parametrize("dearer", [1.0, 1.04])
def test_what_is_left_for_little_is_priced_once_the_best_proves_dearer(dearer: float) -> None:
    """Prices and bounds are off alike: what 3 % says is known when the first is planned whole."""
    plain = Search(Priced(by_estimate), CLUSTER).run(16)
    first, *rest = sorted(
        (each for each in (*plain.judged, *plain.priced) if not each.configuration.in_parts),
        key=lambda own: own.priced_s or (own.verdict.step_s if own.verdict else inf),
    )
    best, behind = first.configuration, rest[0].configuration
    best_s = by_estimate(best).step_s

    def says(configuration: Configuration) -> Verdict:
        if configuration == behind:
            return Verdict(1.03 * best_s, 10**9)
        more = 1.0 if configuration == best else 1.5
        return Verdict(more * by_estimate(configuration).step_s, 10**9)

    class Bounded(Priced):
        def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
            return 1.03 * best_s if configuration == behind else 0.0

        def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
            own = super().judge(configuration, brief=brief)
            return replace(own, step_s=dearer * own.step_s) if configuration == best else own

    judge = Bounded(says)
    outcome = Search(judge, CLUSTER).run(16)
    assert (behind in judge.asked) == (dearer > 1)
    assert outcome.best.configuration == (behind if dearer > 1 else best)


@pytest.mark.parametrize(("fits", "room"), [(True, 2.0), (True, 1.05), (False, 2.0)])
def test_more_micro_batches_of_a_step_are_priced_where_fewer_do_not_fit(
    fits: bool, room: float
) -> None:
    def says(configuration: Configuration) -> Verdict:
        if configuration.micro_batches == 1 and not fits:
            raise needs(7 * 10**9)
        return replace(by_estimate(configuration), num_bytes=10**9)

    judge = Priced(says, budget=int(room * 10**9))
    trials = Trials(judge, CLUSTER, Limits(), True, 16)
    assert search_by_pieces(trials, 16)
    sizes = {own for own in judge.asked if own.pipe == 1 and own.recompute == "none"}
    more = [own for own in sizes if own.micro_batches > 1]
    assert bool(more) == (not fits or room < 1.1)


def test_where_no_priced_plan_fits_all_is_planned_whole() -> None:
    """Pieces are the fastest that there are, which may hold more than a whole plan has to."""
    judge = Priced(by_estimate)

    def price(configuration: Configuration) -> Verdict | None:
        raise needs(5 * 10**9)

    judge.price = price
    assert Search(judge, CLUSTER).run(16).best.verdict is not None


def test_what_does_not_fit_is_priced_as_pieces_say_that_it_fits() -> None:
    """With some layers computed again; with all it would take longer."""

    def says(configuration: Configuration) -> Verdict:
        if configuration.recompute != "full" and not first_again(configuration.recompute)[1]:
            raise needs(7 * 10**9)
        return by_estimate(configuration)

    class Fitting(Priced):
        def fitting(
            self, configuration: Configuration, beat_s: float = inf
        ) -> Configuration | None:
            if configuration.recompute != "none":
                return None
            return replace(configuration, recompute=with_first_again("none", 1), in_parts=1)

    judge = Fitting(says)
    best = Search(judge, CLUSTER).run(16).best.configuration
    assert (best.recompute, best.in_parts) == ("none; first 1 = full", 1)
    assert "sums in parts" in str(best)
    assert all(each.recompute != "full" for each in judge.planned)


def test_a_time_limit_among_prices_ends_in_a_plan() -> None:
    outcome = Search(Priced(by_estimate), CLUSTER, Limits(time_limit_s=1e-9)).run(16)
    assert not outcome.best.is_priced
    assert len(outcome.judged) == 1


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "fsdp+tp+sp"])
def test_what_people_lay_out_by_hand_is_tried(layout: str) -> None:
    """The search of meshes adds up what a step overlaps: it may miss what has most of that."""

    def says(configuration: Configuration) -> Verdict:
        seconds = by_estimate(configuration).step_s
        return Verdict(seconds / (2 if configuration.layout == layout else 1), 10**9)

    assert Search(Fake(says), CLUSTER).run(16).best.configuration.layout == layout


def test_what_does_not_fit_is_tried_with_more_recompute() -> None:
    def says(configuration: Configuration) -> Verdict:
        if configuration.recompute != "full":
            raise needs(7 * 10**9)
        return by_estimate(configuration)

    outcome = Search(Fake(says), CLUSTER).run(16)
    assert outcome.best.configuration.recompute == "full"
    lacking = [each for each in outcome.judged if each.error is not None]
    policies = {each.configuration.recompute for each in lacking}
    assert policies == {"none", "selective", "every-second-matmul"}


def test_the_order_of_the_fastest_pipeline_is_searched() -> None:
    """Behind all others, once."""

    def is_ordered(configuration: Configuration) -> bool:
        return configuration.schedule == "search"

    def says(configuration: Configuration) -> Verdict:
        if configuration.pipe == 1:
            raise needs(7 * 10**9)
        own = by_estimate(configuration)
        return replace(own, step_s=own.step_s * (0.5 if is_ordered(configuration) else 1.0))

    outcome = Search(Fake(says), CLUSTER).run(4)
    fitting = [each for each in outcome.judged if each.verdict]
    ordered, *others = [each.configuration for each in fitting]
    assert is_ordered(ordered)
    assert not any(map(is_ordered, others))
    assert ordered == replace(others[0], schedule="search")


def test_an_order_of_many_actions_is_not_searched() -> None:
    assert can_search(Configuration(Mesh.parse("pipe=8"), 32))
    assert not can_search(Configuration(Mesh.parse("pipe=8"), 64))


def test_what_does_not_fit_is_tried_in_more_micro_batches() -> None:
    def says(configuration: Configuration) -> Verdict:
        if configuration.micro_batches < 8:
            raise needs(7 * 10**9)
        return by_estimate(configuration)

    outcome = Search(Fake(says), CLUSTER).run(4)
    assert outcome.best.configuration.micro_batches == 8


@dataclass
class Holding(Priced):
    """Fits a step into a budget where what it holds fits."""

    holds: Callable[[Configuration], int] = field(default=lambda _: 5 * 10**9)
    in_layers: bool = True

    def in_pieces(self) -> bool:
        return self.in_layers

    def price(self, configuration: Configuration) -> Verdict | None:
        return super().price(configuration) if self.in_layers else None

    def __post_init__(self) -> None:
        self.says = self._fitted

    def _fitted(self, configuration: Configuration) -> Verdict:
        held = self.holds(configuration)
        if self.budget is not None and held > self.budget:
            raise needs(held)
        return Verdict(estimated_s(self.of, CLUSTER, configuration), held)

    @property
    def count(self) -> int:
        return len(self.asked) + len(self.planned)


def budget_in(error: IrcError) -> int:
    number, marker, _ = error.help.partition(" bytes do for ")
    assert marker
    return int(number)


def refused(judge: Fake, time_limit_s: float | None = None) -> IrcError:
    with pytest.raises(IrcError) as raised:
        Search(judge, CLUSTER, Limits(time_limit_s=time_limit_s)).run(16)
    assert raised.value.code == "plan-infeasible"
    return raised.value


@pytest.mark.parametrize("in_layers", [True, False])
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 10**9))
@settings(max_examples=20, deadline=None)
def test_the_budget_that_is_named_where_nothing_fits_works(
    seed: int, budget: int, in_layers: bool
) -> None:
    def holds(configuration: Configuration) -> int:
        number = sha256(f"{seed} {configuration}".encode()).digest()
        return 10**9 + int.from_bytes(number[:4])

    error = refused(Holding(by_estimate, budget=budget, holds=holds, in_layers=in_layers))
    again = Holding(by_estimate, budget=budget_in(error), holds=holds, in_layers=in_layers)
    assert Search(again, CLUSTER).run(16).best.verdict is not None


def test_what_cannot_fit_by_its_parameters_is_not_planned() -> None:
    """Of 16 devices the one that holds most holds 1 GB at least."""
    large = replace(SMALL, stored_bytes=16e9)
    judge = Holding(by_estimate, budget=10**9 - 1, of=large)
    error = refused(judge)
    assert len(error.because) == 2
    note, group = list(error.because)
    assert "parameters and states alone take 1000000000 bytes on at least one of 16" in note
    assert group.startswith("group memory: memory_bytes=999999999; ")
    # One step is planned as if memory were free, within half of what it holds, and within all.
    assert budget_in(error) == 5 * 10**9
    assert judge.count == 3
    assert Search(Holding(by_estimate, budget=5 * 10**9, of=large), CLUSTER).run(16).best.verdict


def test_a_plan_is_made_to_hold_less_for_the_budget() -> None:
    """As if memory were free it holds 16 times what it may hold."""

    class Squeezed(Holding):
        def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
            assert self.budget is not None
            if self.budget < 2 * 10**9:
                raise needs(2 * 10**9)
            return Verdict(1.0, min(self.budget, 32 * 10**9))

    judge = Squeezed(by_estimate, budget=10**9, holds=lambda _: 32 * 10**9)
    works = budget_in(refused(judge))
    assert works == 16 * 10**9
    again = Squeezed(by_estimate, budget=works, holds=lambda _: 32 * 10**9)
    assert Search(again, CLUSTER).run(16).best.verdict is not None


def test_a_time_limit_holds_for_the_budget_as_well() -> None:
    judge = Holding(by_estimate, budget=1, of=replace(SMALL, stored_bytes=16e9))
    error = refused(judge, 1e-9)
    assert any("the time limit" in note for note in error.because)
    assert "bytes do for" not in error.help
    assert not judge.count


def test_a_budget_has_room_where_a_plan_misses_what_it_holds_by_little() -> None:
    class Counting(Holding):
        def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
            if self.budget is not None and self.budget < 5.2 * 10**9:
                raise needs(5 * 10**9)
            return super().judge(configuration, brief=brief)

    assert budget_in(refused(Counting(by_estimate, budget=1))) == 5.5 * 10**9


def test_what_an_error_says_would_do() -> None:
    assert smallest_budget(needs(123)) == 123


def test_micro_batches_that_the_batch_does_not_have_are_named() -> None:
    limits = Limits(micro_batches=3)
    with pytest.raises(IrcError, match="3 micro-batches, and nothing cuts a batch of 32 samples"):
        Search(Fake(by_estimate), CLUSTER, limits).run(16)


def test_an_error_of_the_model_ends_the_search() -> None:
    def says(configuration: Configuration) -> Verdict:
        raise IrcError("loss-unknown", "no loss")

    fake = Fake(says)
    with pytest.raises(IrcError, match="loss-unknown"):
        Search(fake, CLUSTER).run(16)
    assert len(fake.asked) == 1


def test_an_interrupt_keeps_the_best_so_far() -> None:
    fake = Fake(by_estimate)

    def says(configuration: Configuration) -> Verdict:
        if len(fake.asked) > 3:
            raise KeyboardInterrupt
        return by_estimate(configuration)

    fake.says = says
    outcome = Search(fake, CLUSTER, Limits(keeps_interrupted=True)).run(16)
    assert outcome.ended == "an interrupt"
    assert len(outcome.judged) == 3

    def at_once(configuration: Configuration) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Search(Fake(at_once), CLUSTER, Limits(keeps_interrupted=True)).run(16)
    # A program that calls the search is interrupted as any other call is.
    fake.asked.clear()
    with pytest.raises(KeyboardInterrupt):
        Search(fake, CLUSTER).run(16)


def test_a_batch_that_nothing_divides_is_tried_whole_on_every_device() -> None:
    def says(configuration: Configuration) -> Verdict:
        if "data" in configuration.mesh.names or configuration.is_staged:
            raise IrcError("mesh-axis-indivisible", "'x' has 7 samples")
        return by_estimate(configuration)

    outcome = Search(Fake(says), CLUSTER).run(16)
    assert outcome.best.configuration == Configuration(Mesh.parse("tensor=16"))


def test_the_least_money_is_what_the_devices_that_are_used_cost() -> None:
    cheap = replace(CLUSTER.device, price_per_hour=1.0)
    dear = replace(cheap, price_per_hour=50.0)
    priced = replace(CLUSTER, unequal=((cheap, 4), (dear, 12)))

    def says(configuration: Configuration) -> Verdict:
        return Verdict(1.0 / configuration.mesh.num_ranks**1.2, 10**9)

    def chosen(cluster: Cluster) -> int:
        limits = Limits("cost")
        best = Search(Fake(says), cluster, limits, is_training=False).run(16).best
        return best.configuration.mesh.num_ranks

    assert chosen(CLUSTER) == 16  # without prices: seconds of devices
    assert chosen(priced) == 4
    # Where some have none, money and seconds of devices are not held against each other.
    nearly_free = replace(cheap, price_per_hour=0.01)
    assert chosen(replace(CLUSTER, unequal=((nearly_free, 4), (CLUSTER.device, 12)))) == 16


def test_parameters_in_parts_are_planned_whatever_they_are_priced() -> None:
    """Under a budget they would be: none is to give a faster plan."""

    def says(configuration: Configuration) -> Verdict:
        if configuration.layout == "fsdp":
            return Verdict(1.0, 10)
        return Verdict(2.0 if configuration.layout == "ddp" else 3.0, 20)

    class Wrong(Priced):
        def price(self, configuration: Configuration) -> Verdict | None:
            own = says(configuration)
            return Verdict(9.0, 10) if configuration.layout == "fsdp" else own

    assert Search(Wrong(says), CLUSTER).run(16).best.configuration.layout == "fsdp"


@pytest.mark.parametrize(("parts_s", "planned"), [(3.0, 0), (1.5, 1)])
def test_less_memory_is_tried_where_parameters_in_parts_are_faster(
    parts_s: float, planned: int
) -> None:
    def says(configuration: Configuration) -> Verdict:
        step_s = 2.0 if str(configuration) == "data=16" else 3.0
        return Verdict(parts_s if configuration.layout == "fsdp" else step_s, 20)

    judge = Priced(says)
    search = Trials(judge, CLUSTER, Limits(), True, 16)
    plan_tighter(search, search.plan(Configuration(Mesh.parse("data=16"))))
    assert sum(each.in_parts for each in judge.planned) == planned


@pytest.mark.parametrize(("parts_s", "planned"), [(3.0, 0), (2.05, 1)])
@pytest.mark.parametrize("fits", [True, False])
def test_less_memory_is_not_planned_for_each_stage_where_pieces_say_that_it_is_slower(
    parts_s: float, planned: int, fits: bool
) -> None:
    class Bounded(Priced):
        def price(self, configuration: Configuration) -> Verdict | None:
            if not fits:
                raise needs(7 * 10**9)
            return Verdict(parts_s if configuration.in_parts else 2.0, 20)

        def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
            return parts_s

    judge = Bounded(lambda own: Verdict(2.0, 20))
    search = Trials(judge, CLUSTER, Limits(), True, 16)
    plan_tighter(search, search.plan(Configuration(Mesh.parse("pipe=4,data=4"), 8)))
    assert sum(each.in_parts for each in judge.planned) == planned
    assert [own.seconds for own in search.left.values()] == [parts_s] * (1 - planned)


def test_less_memory_is_tried_beside_a_layout_that_divides_matrices_otherwise() -> None:
    """It is slower for its matrices, which says nothing of parameters in parts."""
    judge = Priced(lambda own: Verdict(3.0 if own.layout else 2.0, 20))
    search = Trials(judge, CLUSTER, Limits(), True, 16)
    plan_tighter(search, search.plan(Configuration(Mesh.parse("data=2,tensor=8"))))
    assert sum(each.in_parts for each in judge.planned) == 1


def test_prices_that_prove_much_too_dear_do_not_hide_the_next_one() -> None:
    one, two = Configuration(Mesh.parse("data=16")), Configuration(Mesh.parse("data=16"), 2)
    prices = {one: 1.0, two: 1.01}
    judge = Priced(lambda own: Verdict({one: 0.87, two: 0.86}[own], 20))
    trials = Trials(judge, CLUSTER, Limits(), True, 16)
    for own, step_s in prices.items():
        trials.judged[own] = Judged(own, Verdict(step_s, 20), is_priced=True)
    assert plan_best(trials, 16)
    assert judge.planned == [one, two]


def test_what_has_an_objection_is_no_measure_of_what_is_priced() -> None:
    wrong, right = Configuration(Mesh.parse("tensor=16")), Configuration(Mesh.parse("data=16"))
    trials = Trials(Priced(by_estimate), CLUSTER, Limits(), True, 16, prices=True)
    why = trials.objection(wrong)
    assert why
    trials.judged[wrong] = Judged(wrong, Verdict(1.0, 20), objection=why, is_priced=True)
    worth = Worth(trials, SMALL, 16, MOST_PRICED)
    assert worth.is_worth(right, 2.0)
    trials.judged[right] = Judged(right, Verdict(1.0, 20), is_priced=True)
    assert not worth.is_worth(right, 2.0)


def test_a_time_limit_ends_the_search_after_a_plan() -> None:
    outcome = Search(Fake(by_estimate), CLUSTER, Limits(time_limit_s=1e-9)).run(16)
    assert len(outcome.judged) == 1
    assert "time limit" in outcome.ended


@pytest.mark.parametrize("objective", ["latency", "cost", "memory"])
def test_objectives(objective: Objective) -> None:
    """Steps are no faster on more than two devices, and hold least on one stage."""

    def says(configuration: Configuration) -> Verdict:
        ranks = configuration.mesh.num_ranks
        return Verdict(1.0 / min(ranks, 2) + 0.001 * configuration.micro_batches, ranks * 10)

    search = Search(Fake(says), CLUSTER, Limits(objective))
    best = search.run(16).best.configuration.mesh.num_ranks
    assert best == {"latency": 2, "cost": 1, "memory": 16}[objective]


def test_a_pinned_configuration_is_judged_beside_the_others() -> None:
    pinned = Configuration(Mesh.parse("pipe=4,tensor=4"), 8)
    told: list[Status] = []
    search = Search(Fake(by_estimate), CLUSTER, progress=told.append)
    outcome = search.run(16, [pinned])
    assert [each.configuration for each in outcome.judged if each.is_pinned] == [pinned]
    assert told[0] == Status(0, 0, None, f"planning {pinned}", outcome.bound_s)
    assert told[1].doing == "searching meshes of 16 devices"
    assert told[-1].judged >= len(outcome.judged) - 1
    assert all(each.judged <= each.most for each in told)


def test_nothing_is_faster_than_the_bound() -> None:
    """By the closed form, which has communication, bubbles and launches besides."""
    outcome = Search(Fake(by_estimate), CLUSTER).run(16)
    steps = [each.verdict.step_s for each in outcome.judged if each.verdict]
    assert 0 < outcome.bound_s <= min(steps)
    slower = replace(CLUSTER.device, peak_flops={"f32": 1e12})
    mixed = replace(CLUSTER, unequal=((slower, 8), (CLUSTER.device, 8)))
    eight = [least_s(SMALL, each, 8) for each in (CLUSTER, mixed)]
    assert eight[0] == eight[1]
    assert least_s(SMALL, mixed, 16) > outcome.bound_s
    status = Status(5, 20, outcome.best, "pricing data=16", outcome.bound_s)
    line = said(status, 10.0)
    assert line.startswith("5 of at most 20 judged, 30 s more at most, best so far ")
    assert ", with a gap of at most " in line
    assert line.endswith("%; pricing data=16")
