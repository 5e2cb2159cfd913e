"""The search for schedules, against the exact one, the named ones and Zero Bubble's own."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.errors import IrcError
from irc.schedule.check import check
from irc.schedule.exact import exact
from irc.schedule.named import BUILTIN, generate
from irc.schedule.search import LOSSY, TWO_COPIES, search
from irc.schedule.timeline import Times, peaks, play

TIMES = st.sampled_from([0.5, 1.0, 1.5, 2.0])


@given(
    ranks=st.integers(1, 3),
    micro_batches=st.integers(1, 3),
    forward=TIMES, inputs=TIMES, weights=TIMES, transfer=st.sampled_from([0.0, 0.25, 1.0]),
    memory=st.sampled_from([None, 1, 2]),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_close_to_the_best_of_small_pipelines(
    ranks, micro_batches, forward, inputs, weights, transfer, memory
):
    times = Times((forward,), (inputs,), (weights,), transfer=transfer)
    best = exact(times, ranks=ranks, micro_batches=micro_batches, memory=memory)
    check(best.schedule)
    choice = search(times, ranks=ranks, micro_batches=micro_batches, memory=memory)
    check(choice.schedule)
    assert best.makespan <= choice.timeline.makespan + 1e-9
    assert choice.timeline.makespan <= 1.1 * best.makespan
    assert max(peaks(choice.schedule)) <= (memory or micro_batches)


@given(
    data=st.data(),
    ranks=st.integers(2, 5),
    micro_batches=st.integers(2, 10),
    chunks=st.integers(1, 2),
)
@settings(max_examples=8, deadline=None)
def test_never_worse_than_a_named_one(data, ranks, micro_batches, chunks):
    stages = ranks * chunks
    columns = [data.draw(st.lists(TIMES, min_size=stages, max_size=stages)) for _ in range(3)]
    times = Times(*columns, transfer=data.draw(st.sampled_from([0.0, 0.5])))
    memory = data.draw(st.sampled_from([None, ranks, ranks / 2 + 1]))
    choice = search(
        times, ranks=ranks, micro_batches=micro_batches, chunks=chunks, memory=memory, moves=20
    )
    check(choice.schedule)
    limit = micro_batches if memory is None else memory
    assert max(peaks(choice.schedule, chunks=chunks)) <= limit + 1e-9
    for name in set(BUILTIN) - LOSSY - TWO_COPIES:
        text = f"{name}:{chunks}" if chunks > 1 else name
        try:
            named = generate(text, ranks=ranks, micro_batches=micro_batches)
        except IrcError:
            continue
        if named.num_stages == stages and max(peaks(named, chunks=chunks)) <= limit:
            assert choice.timeline.makespan <= play(named, times).makespan + 1e-9, name


def test_twice_the_same():
    times = Times((1.0,), (1.3,), (0.6,), transfer=0.1)
    first, second = (search(times, ranks=4, micro_batches=6, memory=4) for _ in range(2))
    assert first.schedule == second.schedule


def test_too_little_memory_says_how_much_works():
    with pytest.raises(IrcError, match="the least that a schedule needs is 1") as error:
        search(Times(), ranks=4, micro_batches=8, memory=0.5)
    assert error.value.code == "schedule-memory"
    assert max(peaks(search(Times(), ranks=4, micro_batches=8, memory=1).schedule)) <= 1


def configurations():
    table = json.loads((Path(__file__).parent / "zero_bubble_table_5.json").read_text())["cells"]
    return [
        pytest.param(cell, marks=[pytest.mark.slow] if i else [], id=f"{cell['model']}-{i}")
        for i, cell in enumerate(c for c in table if c["schedule"] == "ZB-2p")
    ]


@pytest.mark.parametrize("cell", configurations())
def test_reaches_zero_bubble_s_own_scheduler(cell):
    """ZB-2p: its automatic scheduler with twice the memory of 1F1B, for the same times.

    Of what F saves W reads 32 bytes an element of 34 and the attention's: 0.4 is a cautious share.
    """
    times = Times((cell["F"],), (cell["I"],), (cell["W"],), transfer=cell["transfer"])
    ranks = cell["ranks"]
    choice = search(
        times, ranks=ranks, micro_batches=cell["micro_batches"], memory=2 * ranks,
        weight_share=0.4, objective="span", moves=0,
    )  # fmt: skip
    check(choice.schedule)
    assert choice.timeline.bubble <= cell["bubble"] + 0.005
    assert max(peaks(choice.schedule, weight_share=0.4)) <= 2 * ranks + 1e-9
