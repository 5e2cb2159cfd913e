"""The event engine: hand examples, published schedules, bounds that no simulation may break."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.interference import Interference
from irc.cluster.ports import Ports
from irc.errors import InternalError
from irc.simulate.actions import Cores, DeadlockError, SimAction
from irc.simulate.engine import simulate
from irc.simulate.held import held_bytes


def test_a_stream_is_in_order_and_waits_for_dependencies() -> None:
    actions = [
        SimAction("a", "s", 2.0),
        SimAction("b", "t", 1.0, after=(0,)),
        SimAction("c", "t", 5.0),
        SimAction("d", "s", 1.0),
    ]
    timeline = simulate(actions)
    assert timeline.starts == (0.0, 2.0, 3.0, 2.0)
    assert timeline.ends == (2.0, 3.0, 8.0, 3.0)
    assert timeline.seconds == 8.0


def test_processor_sharing() -> None:
    """Two cores: three equal jobs take 1.5 times as long; a job alone takes its own time."""
    jobs = [SimAction(f"j{i}", f"s{i}", 2.0, resource="cores") for i in range(3)]
    assert simulate(jobs, {"cores": Cores(2)}).ends == (3.0, 3.0, 3.0)
    assert simulate(jobs[:1], {"cores": Cores(2)}).ends == (2.0,)
    short = SimAction("short", "t", 1.0, resource="cores")
    # On one core both run at half speed until the short one ends at 2; the rest takes 1 more.
    assert simulate([jobs[0], short], {"cores": Cores(1)}).ends == (3.0, 2.0)


def test_kinds_of_work_slow_each_other_down_by_the_set_that_runs() -> None:
    """Compute of 4 s meets a link of 1 s and a copy of 2 s, then the copy, then nothing."""
    table = Interference.of(
        [
            {"compute": 2.0, "link": 2.0, "d2h": 1.0},
            {"compute": 1.5, "d2h": 1.25},
            {"link": 9.0, "d2h": 9.0},
        ]
    )
    kinds = (("compute", 4.0), ("link", 1.0), ("d2h", 3.25))
    actions = [SimAction(kind, kind, s, resource="gpu", kind=kind) for kind, s in kinds]
    # Until 2 s: 1 of compute and 2 of the copy; 1.25 of the copy take 1.5625, and compute does
    # 1.0417 meanwhile; 1.9583 are left.
    ends = simulate(actions, {"gpu": table}).ends
    assert ends == pytest.approx((2 + 1.5625 + 4 - 1 - 1.5625 / 1.5, 2.0, 3.5625))
    assert table.seconds(dict(kinds)) == pytest.approx(max(ends))
    # Two of a kind are one kind at work; on a resource that is not named nothing slows down.
    twice = [*actions[:1], SimAction("other", "t", 4.0, resource="gpu")]
    assert simulate(twice, {"gpu": table}).ends == (4.0, 4.0)
    assert simulate(actions).ends == (4.0, 1.0, 3.25)


def test_what_has_two_ends_goes_by_the_slower_of_them() -> None:
    """A transfer of 2 s meets another of 1 s where it ends, and none where it begins."""
    actions = [
        SimAction("a to c", "s", 2.0, resource="a", kind="nic out", beside=("c", "nic in")),
        SimAction("b to c", "t", 1.0, resource="b", kind="nic out", beside=("c", "nic in")),
        SimAction("c to a", "u", 2.0, resource="c", kind="nic out", beside=("a", "nic in")),
    ]
    devices = dict.fromkeys("abc", Ports())
    # Half of c's port each until b's ends at 2; what leaves c has the other direction.
    assert simulate(actions, devices).ends == (3.0, 2.0, 2.0)
    assert simulate(actions[:1], devices).ends == (2.0,)


def test_memory_is_counted_from_start_to_free() -> None:
    actions = [
        SimAction("a", "s", 1.0, allocates=(("m", 4.0),)),
        SimAction("b", "s", 1.0, allocates=(("m", 2.0),), frees=(("m", 4.0),)),
        SimAction("c", "s", 1.0, allocates=(("m", 3.0),), frees=(("m", 5.0),)),
    ]
    assert simulate(actions).peak == {"m": 6.0}


def test_a_deadlock_is_a_bug_of_ours_and_is_named() -> None:
    actions = [SimAction("a", "s", 1.0, after=(1,)), SimAction("b", "s", 1.0)]
    with pytest.raises(InternalError, match="2 actions wait for each other: a on s waits for b on"):
        simulate(actions)


def test_what_waits_longest_for_a_slot_gets_it() -> None:
    """The one on stream u gets ready after that on t: before the slot is free, or just then."""
    slot = (("r", 1),)
    for late in (1.5, 2.0):
        actions = [
            SimAction("d", "u", late),
            SimAction("e", "u", 1.0, takes=slot, gives=slot),
            SimAction("a", "s", 2.0, takes=slot, gives=slot),
            SimAction("b", "t", 1.0),
            SimAction("c", "t", 1.0, takes=slot, gives=slot),
        ]
        timeline = simulate(actions, slots={"r": 1})
        assert timeline.starts == (0.0, 3.0, 0.0, 0.0, 2.0)
        assert timeline.slots == {"r": 1}
        assert simulate(actions).starts == (0.0, late, 0.0, 0.0, 1.0)


def test_a_stream_may_take_what_is_ready_first() -> None:
    actions = [
        SimAction("slow", "s", 3.0),
        SimAction("fast", "t", 1.0),
        SimAction("first", "link", 1.0, after=(0,)),
        SimAction("second", "link", 1.0, after=(1,)),
    ]
    assert simulate(actions).starts == (0.0, 0.0, 3.0, 4.0)
    assert simulate(actions, as_ready=["link"]).starts == (0.0, 0.0, 3.0, 1.0)
    actions[0] = SimAction("slow", "s", 3.0, after=(2,))
    with pytest.raises(DeadlockError) as error:
        simulate(actions, as_ready=["link"])
    assert str(error.value) == (
        "2 actions wait for each other: slow on s waits for first on link; first on link waits for "
        "slow on s"
    )


def test_slots_are_taken_together_or_not_at_all() -> None:
    """Two streams that want the same two registers never hold one each."""
    both = (("p", 1), ("q", 1))
    actions = [
        SimAction("a", "s", 1.0, takes=both, gives=both),
        SimAction("b", "t", 1.0, takes=both[::-1], gives=both),
    ]
    assert simulate(actions, slots={"p": 1, "q": 1}).ends == (1.0, 2.0)


def test_a_deadlock_names_the_register_and_both_streams() -> None:
    """A sends two values through one slot before it takes what B sends after reading both."""
    slot = (("inbox of B", 1),)
    actions = [
        SimAction("send 0", "rank 0", 1.0, takes=slot),
        SimAction("send 1", "rank 0", 1.0, takes=slot),
        SimAction("read both", "rank 1", 1.0, after=(0, 1), gives=(("inbox of B", 2),)),
    ]
    with pytest.raises(DeadlockError) as error:
        simulate(actions, slots={"inbox of B": 1})
    assert str(error.value) == (
        "2 actions wait for each other: send 1 on rank 0 waits for a slot of inbox of B, which "
        "read both on rank 1 frees; read both on rank 1 waits for send 1 on rank 0"
    )
    assert simulate(actions, slots={"inbox of B": 2}).seconds == 3.0


def test_more_slots_than_there_are_is_never() -> None:
    actions = [SimAction("a", "s", 1.0, takes=(("r", 2),), gives=(("r", 2),))]
    with pytest.raises(DeadlockError, match="a slot of r, which nothing frees"):
        simulate(actions, slots={"r": 1})


def test_one_action_stands_for_several_alike() -> None:
    jobs = [SimAction(f"j{i}", f"s{i}", 2.0, resource="cores") for i in range(6)]
    folded = [SimAction("j", "s", 2.0, resource="cores", weight=6)]
    assert (
        simulate(jobs, {"cores": Cores(4)}).ends[0]
        == simulate(folded, {"cores": Cores(4)}).ends[0]
        == 3.0
    )


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from("stu"),
        st.floats(0, 10),
        st.lists(st.integers(1, 5), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


def built(raw: Sequence[tuple[str, float, list[int], bool]]) -> list[SimAction]:
    return [
        SimAction(str(i), stream, seconds, tuple(i - back for back in backs if i >= back),
                  "cores" if shares else None)
        for i, (stream, seconds, backs, shares) in enumerate(raw)
    ]  # fmt: skip


def longest_path(actions: Sequence[SimAction]) -> float:
    ends: list[float] = []
    last: dict[str, float] = {}
    for action in actions:
        begin = max([last.get(action.stream, 0.0), *(ends[i] for i in action.after)])
        ends.append(begin + action.seconds)
        last[action.stream] = ends[-1]
    return max(ends)


@given(ACTIONS, st.sampled_from([1.0, 2.0, 3.5]))
@settings(max_examples=200, deadline=None)
def test_bounds(raw: Sequence[tuple[str, float, list[int], bool]], cores: float) -> None:
    actions = built(raw)
    alone = simulate(actions)
    assert alone.seconds == pytest.approx(longest_path(actions))
    shared = simulate(actions, {"cores": Cores(cores)})
    work = sum(a.seconds for a in actions if a.resource)
    assert shared.seconds >= max(alone.seconds, work / cores) * (1 - 1e-9)
    assert shared.seconds <= sum(a.seconds for a in actions) * (1 + 1e-9)
    for action, start, end in zip(actions, shared.starts, shared.ends, strict=True):
        assert end - start >= action.seconds * (1 - 1e-9) - 1e-9
        assert all(shared.ends[i] <= start for i in action.after)
    for stream in "stu":
        own = [i for i, a in enumerate(actions) if a.stream == stream]
        for i, j in pairwise(own):
            assert shared.ends[i] <= shared.starts[j]


REGISTERS = st.lists(
    st.tuples(st.sampled_from("stu"), st.integers(0, 4), st.sampled_from("pqr"), st.booleans()),
    min_size=1, max_size=25,
)  # fmt: skip


@given(REGISTERS, st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_no_more_slots_are_taken_than_there_are(
    raw: Sequence[tuple[str, int, str, bool]], limit: int
) -> None:
    """Each action takes a slot; it gives it back itself, or the next on its stream does."""
    actions: list[SimAction] = []
    owed: dict[str, tuple[tuple[str, int], ...]] = {}
    for i, (stream, seconds, register, keeps) in enumerate(raw):
        slot = ((register, 1),)
        gives = owed.pop(stream, ()) + (() if keeps else slot)
        if keeps:
            owed[stream] = slot
        actions.append(SimAction(str(i), stream, float(seconds), takes=slot, gives=gives))
    free = simulate(actions)
    slots = dict(free.slots)
    assert simulate(actions, slots=slots) == free
    limits = dict.fromkeys("pqr", limit)
    try:
        timeline = simulate(actions, slots=limits)
    except DeadlockError:
        return
    assert timeline.seconds >= free.seconds
    assert all(count <= limit for count in timeline.slots.values())
    for register in "pqr":
        # At equal times what gives comes first: an action of no time may give and take at once.
        changes = sorted(
            [(end, 0, -n) for end, a in zip(timeline.ends, actions, strict=True)
             for name, n in a.gives if name == register]
            + [(start, 1, n) for start, a in zip(timeline.starts, actions, strict=True)
               for name, n in a.takes if name == register]
        )  # fmt: skip
        taken = 0
        for _, _, change in changes:
            taken += change
            assert taken <= limit


# --------------------------------------------------------------- pipeline schedules (golden table)


def gpipe(stage: int, p: int, m: int) -> list[tuple[str, int]]:
    return [("F", i) for i in range(m)] + [("BW", i) for i in range(m)]


def one_f_one_b(stage: int, p: int, m: int) -> list[tuple[str, int]]:
    fill = min(p - 1 - stage, m)
    order = [("F", i) for i in range(fill)]
    for i in range(m - fill):
        order += [("F", fill + i), ("BW", i)]
    return order + [("BW", i) for i in range(m - fill, m)]


def zb_h1(stage: int, p: int, m: int) -> list[tuple[str, int]]:
    """1F1B with W delayed by ``stage`` micro-batches."""
    order: list[tuple[str, int]] = []
    for kind, i in one_f_one_b(stage, p, m):
        order.append((kind[0], i))
        if kind == "BW" and i >= stage:
            order.append(("W", i - stage))
    return order + [("W", i) for i in range(m - stage, m)]


def pipeline(schedule, p: int, m: int) -> list[SimAction]:
    """F goes down the stages, B (or BW, both halves in one) up; activations live from F to B."""
    index: dict[tuple[int, str, int], int] = {}
    for stage in range(p):
        for kind, i in schedule(stage, p, m):
            index[stage, kind, i] = len(index)
    actions = []
    for stage, kind, i in index:
        after = {
            "F": [(stage - 1, "F", i)],
            "B": [(stage, "F", i), (stage + 1, "B", i)],
            "BW": [(stage, "F", i), (stage + 1, "BW", i)],
            "W": [(stage, "B", i)],
        }[kind]  # fmt: skip
        memory = ((str(stage), 1.0),)
        actions.append(
            SimAction(
                f"{stage}{kind}{i}", str(stage), float(len(kind)),
                tuple(index[key] for key in after if key in index),
                allocates=memory if kind == "F" else (), frees=memory if kind[0] == "B" else (),
            )
        )  # fmt: skip
    return actions


@pytest.mark.parametrize(
    ("schedule", "p", "m", "seconds", "peak"),
    [
        (gpipe, 4, 8, 33, 8), (gpipe, 8, 16, 69, 16), (gpipe, 8, 32, 117, 32),
        (one_f_one_b, 4, 8, 33, 4), (one_f_one_b, 8, 16, 69, 8), (one_f_one_b, 8, 32, 117, 8),
        (zb_h1, 4, 8, 27, 4), (zb_h1, 8, 16, 55, 8), (zb_h1, 8, 32, 103, 8),
    ],
)  # fmt: skip
def test_published_schedules(schedule, p: int, m: int, seconds: float, peak: float) -> None:
    """F = B = W = 1, no communication (GPipe, PTD-P, Zero Bubble)."""
    timeline = simulate(pipeline(schedule, p, m))
    assert timeline.seconds == seconds
    assert max(timeline.peak.values()) == peak


def test_what_is_alive_is_counted() -> None:
    """1F1B holds as many micro-batches as there are stages after a rank, and none at the end."""
    actions = pipeline(one_f_one_b, 3, 4)
    changes = list(held_bytes(actions, simulate(actions)))
    for stage in range(3):
        bytes_of = [size for pool, _, size in changes if pool == str(stage)]
        assert (max(bytes_of), bytes_of[-1]) == (3 - stage, 0)
