"""What ranks note says together: why they waited, and where all of their time went."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from irc.trace.form import SPENT, Label, Trace, TraceEvent, Where, in_turn
from irc.trace.rows import CAME, CARRIED, DID, WAITED, Recorded, Row, events_of
from irc.trace.spent import by_rank

SUM, NOWHERE = Label("comm.all_reduce", "n1", "m.py:3", 64), Where()


def collective(rank: int, begin: float, wait: float, end: float) -> tuple[Row, ...]:
    """A rank that starts a collective, works, waits for it, and has it at the end."""
    work = Row(DID, "compute", "kernel", Label("k0", "n0", "m.py:2"), NOWHERE, begin, wait)
    waited = Row(WAITED, "compute", "exposed collective", SUM, NOWHERE, wait, end, "", "s", (0, 1))
    carried = Row(CARRIED, "comm data", "collective", SUM, NOWHERE, begin, end, "s", "s", (0, 1))
    return (work, waited, carried)


def test_a_rank_that_comes_late_is_what_the_other_waits_for() -> None:
    ranks = {
        0: Recorded(collective(0, 1.0, 2.0, 6.0), 1.0, 6.0),
        1: Recorded(collective(1, 4.0, 5.0, 6.0), 1.0, 6.5),
    }
    events, step_s = events_of(ranks, pipeline=False)
    assert step_s == 5.5
    rank_seconds = by_rank(Trace("measured", tuple(events), step_s))
    assert rank_seconds[0] == {
        "kernel": 1.0, "straggler": 2.0 + 0.5, "exposed collective": 2.0, "exposed transfer": 0.0,
        "bubble": 0.0, "host": 0.0,
    }  # fmt: skip
    assert rank_seconds[1]["straggler"] == 0.0
    # Until it starts, and from the end of the collective to that of the step.
    assert rank_seconds[1]["host"] == 3.5
    bars = [event for event in events if event.track == "comm data"]
    assert [(bar.rank, bar.begin_s, bar.end_s) for bar in bars] == [(0, 3.0, 5.0), (1, 3.0, 5.0)]


def test_a_value_that_is_not_on_its_way_is_a_bubble() -> None:
    label = Label("cut of micro-batch 0")
    send = Row(CAME, "", "", label, NOWHERE, 4.0, 4.0, "send cut 0")
    wait = Row(
        WAITED, "compute", "exposed transfer", label, NOWHERE, 1.0, 6.0, "", "send cut 0", (0,),
        "bubble",
    )  # fmt: skip
    ranks = {0: Recorded((send,), 0.0, 6.0), 1: Recorded((wait,), 0.0, 7.0)}
    rank_seconds = by_rank(Trace("measured", tuple(events_of(ranks, pipeline=True)[0]), 7.0))
    assert (rank_seconds[1]["bubble"], rank_seconds[1]["exposed transfer"]) == (3.0, 2.0)
    assert (rank_seconds[0]["host"], rank_seconds[0]["bubble"]) == (6.0, 1.0)


def test_notes_go_through_json() -> None:
    own = Recorded(collective(0, 1.0, 2.0, 6.0), 1.0, 6.0)
    assert Recorded.from_json(own.to_json()) == own
    assert own.shifted(1.5).rows[0].begin_s == 2.5


spans = st.lists(
    st.tuples(
        st.sampled_from(("compute", "host", "comm data")), st.integers(0, 30), st.integers(0, 9)
    ),
    max_size=12,
)


@given(st.lists(spans, min_size=1, max_size=3))
def test_the_time_of_each_rank_is_that_of_the_step(ranks: list[list[tuple[str, int, int]]]) -> None:
    kinds = {"compute": "kernel", "host": "host", "comm data": "collective"}
    recorded = {
        rank: Recorded(
            tuple(
                Row(DID, track, kinds[track], Label("x"), NOWHERE, at, at + length)
                for track, at, length in own
            ),
            0.0,
            max((at + length for _, at, length in own), default=1.0),
        )
        for rank, own in enumerate(ranks)
    }
    events, step_s = events_of(recorded, pipeline=False)
    for rank in recorded:
        for track in kinds:
            own = [e for e in events if e.rank == rank and e.track == track]
            assert all(a.end_s <= b.begin_s for a, b in pairwise(own))
        covered = in_turn(
            event._replace(track="all") for event in events
            if event.rank == rank and event.kind in SPENT
        )  # fmt: skip
        assert sum(event.seconds for event in covered) == step_s


def test_what_lies_inside_of_another_is_left_out() -> None:
    events = [TraceEvent(0, "t", "kernel", SUM, *span) for span in ((0, 5), (1, 4), (4, 7))]
    assert [(e.begin_s, e.end_s) for e in in_turn(events)] == [(0, 5), (5, 7)]
