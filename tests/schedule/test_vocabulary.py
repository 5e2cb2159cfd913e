"""Vocabulary Parallelism woven into schedules."""

import pytest

from irc.errors import IrcError
from irc.schedule.actions import computed
from irc.schedule.check import check
from irc.schedule.named import generate
from irc.schedule.timeline import Times, peaks, play
from irc.schedule.vocabulary import BARRIERS, with_vocabulary


@pytest.mark.parametrize("algorithm", [1, 2])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (4, 16), (8, 32)])
def test_the_first_rank_of_1f1b_holds_one_more_for_each_barrier(algorithm, ranks, micro_batches):
    plain = generate("1f1b", ranks=ranks, micro_batches=micro_batches)
    schedule = with_vocabulary(plain, algorithm)
    check(schedule)
    assert max(peaks(schedule)) == ranks + BARRIERS[algorithm] == ranks + 3 - algorithm
    counts = [sum(a.kind == kind for a in computed(own)) for own in schedule.ranks for kind in "ST"]
    assert counts == [micro_batches] * (2 * ranks)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-h2", "interleaved:2", "gis:2", "zb-v",
                                  "v-half", "v-min", "breadth-first:2", "skip"])  # fmt: skip
@pytest.mark.parametrize("algorithm", [1, 2])
def test_goes_into_any_schedule(name, algorithm):
    schedule = with_vocabulary(generate(name, ranks=4, micro_batches=12), algorithm)
    check(schedule)


def test_no_rank_waits_for_the_vocabulary_in_the_steady_state():
    """A step grows by what S and T take on each rank, and by a few of them at its ends."""
    times = Times(logits=0.25, vocabulary_gradient=0.25)
    for algorithm in (1, 2):
        steps = [
            play(
                with_vocabulary(generate("1f1b", ranks=4, micro_batches=m), algorithm, times), times
            )
            for m in (24, 48)
        ]
        assert steps[1].makespan - steps[0].makespan <= 24 * 3.5 * 1.1


def test_what_it_cannot_go_into():
    with pytest.raises(IrcError, match="end in one stage"):
        with_vocabulary(generate("dualpipe", ranks=4, micro_batches=8), 1)
    with pytest.raises(IrcError, match="run as one"):
        with_vocabulary(generate("dualpipe-v", ranks=4, micro_batches=8), 1)
    with pytest.raises(IrcError, match="algorithms 1 and 2"):
        with_vocabulary(generate("1f1b", ranks=4, micro_batches=8), 3)
