"""The order that a search finds: valid, within the memory, never slower than one with a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.schedule.actions import Schedule, computed
from irc.schedule.check import check
from irc.schedule.greedy import Rules, list_schedule
from irc.schedule.named import generate
from irc.schedule.shortlist import apart
from irc.schedule.tape_check import check_tapes
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Function, Route, Wiring
from irc.schedule.timeline import Times
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.mixes import MixedPorts
from irc.simulate.orders import Search
from irc.simulate.priced import Priced
from irc.simulate.tapes import Moves

SECONDS = st.floats(0.2, 3.0)


def wiring_of(stages: int, *, copies: int = 1) -> Wiring:
    """Return stages that save for I, for W and for both, several registers of each."""
    functions: list[dict[str, Function]] = []
    routes: list[Route] = []
    for stage in range(stages):
        saved = {what: [f"{what}{i}" for i in range(copies)] for what in ("fi", "fw", "fb", "iw")}
        last = stage == stages - 1
        on, back = f"cut{stage}", f"gradient{stage}"
        reads = [f"cut{stage - 1}"] if stage else []
        writes = [*saved["fi"], *saved["fw"], *saved["fb"], *([] if last else [on])]
        needs = [*saved["fi"], *saved["fb"], *([] if last else [back])]
        gives = [*saved["iw"], *([f"gradient{stage - 1}"] if stage else [])]
        late = [*saved["fw"], *saved["fb"], *saved["iw"]]
        functions.append(
            {
                "F": Function(tuple(reads), tuple(writes)),
                "I": Function(tuple(needs), tuple(gives)),
                "W": Function(tuple(late), ()),
            }
        )
        if not last:
            routes.append(Route(on, stage, stage + 1, on))
            routes.append(Route(back, stage + 1, stage, back))
    return Wiring(tuple(functions), tuple(routes), frozenset(route.name for route in routes))


def priced(
    times: list[tuple[float, float, float]],
    transfer: float,
    *,
    copies: int = 1,
    has_ports: bool = False,
) -> Priced:
    """Return a step whose stages take these seconds, and its messages that long."""
    stages = [StageCosts(dict(zip("FIW", own, strict=True))) for own in times]
    wiring = wiring_of(len(times), copies=copies)
    names = {n for own in wiring.functions for f in own.values() for n in (*f.reads, *f.makes)}
    sizes = {(stage, name): 1.0 for stage in range(len(times)) for name in names}
    way = Transfer(transfer, 0.1 * transfer)
    device = MixedPorts.of({}) if has_ports else None
    return Priced(wiring, Costs(stages), lambda *_: way, sizes, device=device)


def held_bytes(step: Priced, schedule: Schedule, ahead: int = 1) -> list[float]:
    """Return the bytes of all slots, by rank."""
    tapes = tapes_of(schedule, step.wiring, ahead=ahead)
    return [sum(count * step.sizes[key] for key, count in t.slots.items()) for t in tapes]


@given(
    data=st.data(),
    ranks=st.integers(2, 3),
    micro_batches=st.integers(2, 8),
    transfer=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    has_ports=st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_valid_and_never_slower_within_the_same_memory(
    data: Any, ranks: int, micro_batches: int, transfer: float, has_ports: bool
) -> None:
    times = data.draw(
        st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=ranks, max_size=ranks)
    )
    step = priced(times, transfer, has_ports=has_ports)
    sizes = {"ranks": ranks, "micro_batches": micro_batches}
    named = {name: generate(name, **sizes) for name in ("zb-h1", "zb-h2")}
    named["1f1b"] = like = apart(generate("1f1b", **sizes))
    within = data.draw(st.sampled_from(["1f1b", "zb-h1", "zb-h2", None]))
    budgets = [None] * ranks if within is None else held_bytes(step, named[within])
    search = Search(step, like, [0.0] * ranks, budgets)
    best = search.best(named)
    assert best is not None
    check(best.schedule)
    tapes = tapes_of(best.schedule, step.wiring, ahead=best.ahead)
    check_tapes(tapes)
    for most, budget in zip(held_bytes(step, best.schedule, best.ahead), budgets, strict=True):
        assert budget is None or most <= budget
    # What was simulated with joined registers is the step as it will be run.
    whole = step.simulate(best.schedule, tapes)
    assert whole.seconds == pytest.approx(best.seconds, rel=1e-12)
    for name, schedule in named.items():
        if name in search.named:
            own = step.simulate(schedule, tapes_of(schedule, step.wiring))
            assert best.seconds <= own.seconds * (1 + 1e-9), name
    assert within is None or within in search.named


def test_twice_the_same() -> None:
    step = priced([(1.0, 1.2, 0.9)] * 3, 1.5, has_ports=True)
    like = generate("zb-h1", ranks=3, micro_batches=6)
    first, second = (Search(step, like, [0.0] * 3, [None] * 3).best({}) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.schedule, first.ahead) == (second.schedule, second.ahead)


def test_registers_that_live_together_are_one() -> None:
    step = priced([(1.0, 1.0, 1.0)] * 2, 0.5, copies=5)
    joined = step.joined()
    own = {n for f in joined.wiring.functions[0].values() for n in (*f.reads, *f.makes)}
    assert len(own) == 6
    schedule = generate("zb-h2", ranks=2, micro_batches=6)
    assert held_bytes(joined, schedule, 2) == held_bytes(step, schedule, 2)


def test_a_slow_link_is_filled() -> None:
    """A message takes as long as two forwards: zb-h2 waits for each, the choice for the first."""
    step = priced([(1.0, 1.1, 1.0)] * 2, 2.0)
    sizes = {"ranks": 2, "micro_batches": 8}
    named = {name: generate(name, **sizes) for name in ("zb-h1", "zb-h2")}
    search = Search(step, named["zb-h1"], [0.0] * 2, [None] * 2)
    best = search.best(named)
    assert best is not None
    # Rank 1 waits for the first forward and its message, and then for nothing.
    bound = 1.0 + 2.2 + 8 * 3.1
    assert best.seconds <= 1.02 * bound
    assert search.named["zb-h2"] > 1.1 * bound
    assert {a.kind for a in computed(best.schedule.ranks[0])} == set("FIW")


def test_where_nothing_fits() -> None:
    step = priced([(1.0, 1.0, 1.0)] * 2, 0.0)
    like = generate("zb-h1", ranks=2, micro_batches=4)
    assert Search(step, like, [0.0] * 2, [0.5] * 2).best({"zb-h1": like}) is None


def test_the_order_of_a_plan_is_tried_where_no_other_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory of the shortlist is an estimate, by which all orders may be left out."""
    placement = [(0, 2, 4), (1, 3, 5)]
    like = list_schedule(placement, 5, Times(), [12.0] * 2, Rules(fill=1), split=True)
    assert like is not None
    step = priced([(1.0, 1.0, 1.0)] * 6, 0.0)
    budgets = held_bytes(step, like)
    monkeypatch.setattr(Search, "_shortlist", lambda _: [])
    best = Search(step, like, [0.0] * 2, budgets).best({})
    assert best is not None
    assert all(most <= own for most, own in zip(best.held_bytes, budgets, strict=True))


def test_what_is_moved_out_leaves_no_deep_order_out() -> None:
    """With every register moved a slot or a few are held, however many are in flight."""
    sizes = {"ranks": 3, "micro_batches": 8}
    step = priced([(1.0, 1.0, 1.0)] * 3, 1.5)
    step = replace(step, moves=Moves("disk", "disk", {}))
    search = Search(step, generate("zb-h1", **sizes), [0.0] * 3, [30.0] * 3)
    assert search._limits()[0] == (8.0, 8.0, 8.0)
