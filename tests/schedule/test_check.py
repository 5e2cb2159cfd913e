"""What a schedule must keep: each planted fault has an error that names it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.errors import IrcError
from irc.schedule.actions import Action
from irc.schedule.check import check
from irc.schedule.csv_table import read_csv
from irc.schedule.named import generate
from irc.schedule.notation import read_schedule
from irc.schedule.timeline import play


def changed(schedule, rank, actions):
    ranks = (*schedule.ranks[:rank], tuple(actions), *schedule.ranks[rank + 1 :])
    return replace(schedule, ranks=ranks)


@given(rank=st.integers(0, 3), position=st.integers(0, 23), name=st.sampled_from(["1f1b", "zb-h1"]))
@settings(max_examples=50, deadline=None)
def test_what_is_missing_or_repeated_is_named(rank, position, name):
    schedule = generate(name, ranks=4, micro_batches=8)
    actions = schedule.ranks[rank]
    position %= len(actions)
    without = actions[:position] + actions[position + 1 :]
    with pytest.raises(IrcError, match="is missing for micro-batch") as missing:
        check(changed(schedule, rank, without))
    assert f"stage {rank}" in str(missing.value)
    twice = (*actions[:position], actions[position], *actions[position:])
    with pytest.raises(IrcError, match="is there 2 times"):
        check(changed(schedule, rank, twice))


@pytest.mark.parametrize("read", [read_csv, read_schedule])
@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_nothing_is_no_schedule(read, text):
    with pytest.raises(IrcError) as error:
        check(read(text))
    assert error.value.code in ("schedule-incomplete", "schedule-syntax")


@pytest.mark.parametrize("name", ["interleaved:0", "interleaved:", "zb-v:x", "1f1b:00"])
def test_a_number_of_stages_that_is_none(name):
    with pytest.raises(IrcError, match="is not a number of stages a rank") as error:
        generate(name, ranks=2, micro_batches=4)
    assert error.value.code == "schedule-unknown"


def test_ranks_that_wait_for_each_other_are_named():
    schedule = generate("1f1b", ranks=2, micro_batches=2)
    first, second = schedule.ranks
    # Rank 0 wants a gradient before it has sent its second forward, which rank 1 wants first.
    crossed = changed(schedule, 0, [first[0], first[2], first[1], first[3]])
    crossed = changed(crossed, 1, [second[0], second[2], second[1], second[3]])
    with pytest.raises(IrcError, match="ranks 0 and 1 wait for each other") as error:
        check(crossed)
    assert error.value.code == "schedule-deadlock"
    assert "0B0, which waits for 1B0 of rank 1" in str(error.value)


def test_a_backward_before_its_forward():
    schedule = generate("1f1b", ranks=1, micro_batches=1)
    with pytest.raises(IrcError, match="waits for 0F0"):
        check(changed(schedule, 0, reversed(schedule.ranks[0])))


def test_messages_that_cross():
    schedule = generate("gpipe", ranks=2, micro_batches=2)
    swapped = [schedule.ranks[1][i] for i in (1, 0, 2, 3)]
    with pytest.raises(IrcError, match=r"takes the result of 0F1 before that of 0F0|other way"):
        check(changed(schedule, 1, swapped))


def test_a_stage_on_two_ranks():
    schedule = generate("gpipe", ranks=2, micro_batches=2)
    moved = replace(schedule, ranks=(*schedule.ranks, (Action(0, "W", 1),)))
    with pytest.raises(IrcError, match="stage 0 is on rank 0 and on rank 2"):
        check(moved)


def test_what_is_of_no_stage():
    schedule = generate("gpipe", ranks=1, micro_batches=1)
    with pytest.raises(IrcError, match="0F7 is of a stage or micro-batch"):
        check(changed(schedule, 0, (*schedule.ranks[0], Action(0, "F", 7))))


@given(seed=st.randoms(use_true_random=False), name=st.sampled_from(["1f1b", "zb-v", "dualpipe"]))
@settings(max_examples=30, deadline=None)
def test_play_gives_what_in_order_ranks_with_dependencies_give(seed, name):
    """Against the engine of the simulator, which knows nothing of schedules."""
    from irc.schedule.timeline import Times
    from irc.simulate.actions import SimAction
    from irc.simulate.engine import simulate

    schedule = generate(name, ranks=4, micro_batches=8)
    lengths = [[seed.choice((0.5, 1.0, 2.0)) for _ in range(8)] for _ in range(3)]
    times = Times(*lengths, transfer=0.25)
    timeline = play(schedule, times)
    actions, at = [], {}
    todo = {r: list(own) for r, own in enumerate(schedule.ranks)}
    while any(todo.values()):
        for rank, rest in todo.items():
            while rest:
                parts = rest[0].flat
                wanted = [w for part in parts for w in schedule.before(part)]
                sources = [
                    next((a for a in options if a in at or a in parts), None) for options in wanted
                ]
                if None in sources:
                    break
                after = []
                for source in {s for s in sources if s not in parts}:
                    other, index = at[source]
                    if other == rank:
                        after.append(index)
                    else:
                        actions.append(SimAction("send", f"{source} to {rest[0]}", 0.25, (index,)))
                        after.append(len(actions) - 1)
                actions.append(
                    SimAction(str(rest[0]), f"rank {rank}", times.of(rest[0]), tuple(after))
                )
                at |= dict.fromkeys(parts, (rank, len(actions) - 1))
                rest.pop(0)
    assert simulate(actions).seconds == pytest.approx(timeline.makespan)
