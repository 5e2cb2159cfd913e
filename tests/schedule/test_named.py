"""Named schedules against tables and closed forms of their papers."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.errors import IrcError
from irc.schedule.check import check
from irc.schedule.named import BUILTIN, generate
from irc.schedule.named.v_shape import half_block, min_block
from irc.schedule.timeline import Timeline, Times, peaks, play

# F = I = W = 1 for all of a rank's stages together, nothing for messages; activations of a rank's
# stages, released at the gradient of the input. Columns: ranks, micro-batches, time, activations.
# The times of zero-bubble and V schedules are of the longest rank, the others' of the whole.
# fmt: off
GOLDEN = [
    ("gpipe", 4, 8, 33, 8), ("gpipe", 8, 16, 69, 16), ("gpipe", 8, 32, 117, 32),
    ("1f1b", 4, 8, 33, 4), ("1f1b", 8, 16, 69, 8), ("1f1b", 8, 32, 117, 8),
    ("interleaved:2", 4, 8, 28.5, 5.5), ("interleaved:2", 8, 16, 58.5, 11.5),
    ("interleaved:2", 8, 32, 106.5, 11.5), ("interleaved:4", 4, 8, 26.25, 4.75),
    ("interleaved:4", 8, 16, 53.25, 9.75), ("interleaved:4", 8, 32, 101.25, 9.75),
    ("breadth-first:2", 4, 8, 28.5, 8), ("breadth-first:2", 8, 16, 58.5, 16),
    ("breadth-first:2", 8, 32, 106.5, 32), ("breadth-first:4", 4, 8, 26.25, 8),
    ("breadth-first:4", 8, 16, 53.25, 16), ("breadth-first:4", 8, 32, 101.25, 32),
    ("zb-h1", 4, 8, 27, 4), ("zb-h1", 8, 16, 55, 8), ("zb-h1", 8, 32, 103, 8),
    ("zb-h2", 4, 8, 24, 7), ("zb-h2", 8, 16, 48, 15), ("zb-h2", 8, 32, 96, 15),
    ("zb-v", 4, 8, 24, 4), ("zb-v", 8, 16, 48, 8), ("zb-v", 8, 32, 96, 8),
    ("dualpipe", 4, 8, 26, 5), ("dualpipe", 8, 16, 54, 9), ("dualpipe", 8, 32, 102, 9),
]
BLOCKS = [
    (half_block, 4, 8, 30, 3), (half_block, 8, 16, 61, 5), (half_block, 8, 32, 109, 5),
    (min_block, 4, 8, 29.5, 2), (min_block, 8, 16, 61.5, 3), (min_block, 8, 32, 109.5, 3),
]
# fmt: on


def unit(schedule, ranks) -> Timeline:
    """Play it with a unit of time for each of a rank's F, I and W."""
    return play(schedule, Times(*[(1 / chunks_of(schedule, ranks),)] * 3))


def chunks_of(schedule, ranks) -> int:
    """Stages that make up a copy of the model on a rank: DualPipe has two copies of one each."""
    return len(schedule.paths[0]) // ranks


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "time", "most"), GOLDEN)
def test_golden_table(name, ranks, micro_batches, time, most):
    schedule = generate(name, ranks=ranks, micro_batches=micro_batches)
    check(schedule)
    timeline = unit(schedule, ranks)
    is_span = name.startswith("zb")
    assert (timeline.span if is_span else timeline.makespan) == pytest.approx(time, abs=1e-9)
    assert max(peaks(schedule, chunks=chunks_of(schedule, ranks))) == most


@pytest.mark.parametrize(("block", "ranks", "micro_batches", "time", "most"), BLOCKS)
def test_building_blocks_repeated_and_squeezed(block, ranks, micro_batches, time, most):
    schedule = block(ranks, micro_batches)
    check(schedule)
    assert unit(schedule, ranks).span == pytest.approx(time, abs=1e-9)
    assert max(peaks(schedule)) == most


@pytest.mark.parametrize("ranks", [4, 6, 8, 12, 16, 24])
def test_v_half_has_half_of_1f1b_s_bubble_and_activations(ranks):
    m = 3 * ranks
    timeline = unit(generate("v-half", ranks=ranks, micro_batches=m), ranks)
    other = unit(generate("1f1b", ranks=ranks, micro_batches=m), ranks)
    slot = 0.5
    assert timeline.span - 3 * m <= (other.span - 3 * m) / 2 + slot
    assert max(peaks(timeline.schedule)) <= ranks / 2 + 1


def cells():
    table = json.loads((Path(__file__).parent / "zero_bubble_table_5.json").read_text())["cells"]
    return [cell for cell in table if cell["schedule"] in ("1F1B", "ZB-H1", "ZB-H2")]


def test_the_36_bubbles_of_zero_bubble():
    assert len(cells()) == 36
    for cell in cells():
        times = Times((cell["F"],), (cell["I"],), (cell["W"],), transfer=cell["transfer"])
        schedule = generate(
            cell["schedule"].lower(), ranks=cell["ranks"], micro_batches=cell["micro_batches"]
        )
        assert f"{play(schedule, times).bubble:.4f}" == f"{cell['bubble']:.4f}", cell


@given(ranks=st.integers(2, 9), groups=st.integers(1, 4), chunks=st.integers(2, 4))
@settings(max_examples=20, deadline=None)
def test_interleaving_divides_the_bubble(ranks, groups, chunks):
    m = ranks * groups
    for name in ("interleaved", "gis"):
        schedule = generate(f"{name}:{chunks}", ranks=ranks, micro_batches=m)
        check(schedule)
        bubble = unit(schedule, ranks).makespan_bubble
        assert bubble == pytest.approx((ranks - 1) / (chunks * m + ranks - 1))
        most = max(peaks(schedule))
        if name == "gis":
            assert most == min(ranks, m)
        elif groups > 1:
            assert most == ranks + (ranks - 1) / chunks


@given(ranks=st.integers(1, 8), more=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_closed_forms_of_one_stage_a_rank(ranks, more):
    m = ranks + more
    for name, bubble in (("gpipe", 3), ("1f1b", 3), ("zb-h1", 1)):
        schedule = generate(name, ranks=ranks, micro_batches=m)
        check(schedule)
        assert unit(schedule, ranks).makespan == 3 * m + bubble * (ranks - 1)
    assert peaks(generate("1f1b", ranks=ranks, micro_batches=m)) == [
        ranks - r for r in range(ranks)
    ]


@given(half=st.integers(1, 5), more=st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_dualpipe_s_bubble_and_activations(half, more):
    p, m = 2 * half, 4 * half + 2 * more
    schedule = generate("dualpipe", ranks=p, micro_batches=m)
    check(schedule)
    timeline = unit(schedule, p)
    assert timeline.makespan - 3 * m == 2 * (half - 1)  # (p/2 - 1) (F&B + B - 3 W)
    assert max(peaks(schedule, chunks=1)) == p + 1


@given(
    name=st.sampled_from(sorted(BUILTIN)), ranks=st.integers(1, 7), micro_batches=st.integers(1, 20)
)
@settings(max_examples=60, deadline=None)
def test_each_schedule_is_right_or_says_why_not(name, ranks, micro_batches):
    try:
        schedule = generate(name, ranks=ranks, micro_batches=micro_batches)
    except IrcError as error:
        assert error.code == "schedule-size"  # noqa: PT017 - any of them may refuse its sizes
        return
    check(schedule)
    assert len(schedule.ranks) == ranks
    assert schedule.num_micro_batches == micro_batches


def test_sizes_that_cannot_be_name_the_nearest():
    with pytest.raises(IrcError, match="use 4 or 8 micro-batches"):
        generate("interleaved:2", ranks=4, micro_batches=6)
    with pytest.raises(IrcError, match="use 8 micro-batches"):
        generate("dualpipe", ranks=4, micro_batches=7)
    with pytest.raises(IrcError, match="did you mean '1f1b'"):
        generate("1f1bb", ranks=4, micro_batches=7)
    with pytest.raises(IrcError, match="did you mean 'search'"):
        generate("serch", ranks=4, micro_batches=8)
