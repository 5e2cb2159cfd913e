"""Bank conflicts, counted against a plain simulation of banks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.mapping_attr import parse_mapping
from irc.kernels.mapping.banks import Turns, turns, verify_free, warp_accesses
from irc.kernels.mapping.layout import parse_layout


@settings(max_examples=50)
@given(st.lists(st.integers(0, 255), min_size=32, max_size=32), st.sampled_from([4, 8, 16]))
def test_turns_are_those_of_a_memory_that_serves_one_word_of_a_bank(
    places: list[int], width: int
) -> None:
    counted = turns([place * width for place in places], width)
    lanes, words = 128 // width, width // 4
    for phase, count in enumerate(counted.phases):
        part = places[phase * lanes : (phase + 1) * lanes]
        waiting = {place * words + word for place in part for word in range(words)}
        served = 0
        while waiting:
            busy: set[int] = set()
            for word in sorted(waiting):
                if word % 32 not in busy:
                    busy.add(word % 32)
                    waiting.discard(word)
            served += 1
        assert served == count


@pytest.mark.parametrize(
    ("addresses", "width", "phases"),
    [
        ([0] * 32, 4, (1,)),  # one word for all
        ([lane * 8 for lane in range(32)], 4, (2,)),  # every second bank
        ([lane * 128 for lane in range(32)], 4, (32,)),  # a column
        ([lane * 132 for lane in range(32)], 4, (1,)),  # a padded column
        ([lane * 2 for lane in range(32)], 2, (1,)),  # two halves of a word
        ([lane * 16 for lane in range(32)], 16, (1, 1, 1, 1)),
        ([None] * 31 + [4], 4, (1,)),
        ([], 4, ()),
    ],
)
def test_known_patterns(addresses: list[int | None], width: int, phases: tuple[int, ...]) -> None:
    assert turns(addresses, width) == Turns(phases)


def test_the_swizzle_makes_ldmatrix_free_and_its_absence_does_not() -> None:
    rows = parse_mapping("column_spatial(16, 2)")  # lane -> (row, half of 16 columns)
    for text, free in (
        ("row_major(64, 8).swizzle(1) * row_major(1, 8)", True),
        ("row_major(64, 64)", False),
    ):
        layout = parse_layout(text)
        addresses = [2 * layout((r, 8 * c)) for w in range(32) for r, c in rows.tasks(w)]
        assert turns(addresses, 16).is_free == free
        if free:
            verify_free(addresses, 16)
        else:
            with pytest.raises(ValueError, match=r"8 words of bank 0 in phase 0: bytes 0 \(lane 0"):
                verify_free(addresses, 16, "ldmatrix of A")


def test_a_warp_steps_through_a_mapping() -> None:
    lanes = parse_mapping("spatial(4, 8) * repeat(1, 2)")
    steps = warp_accesses(lanes, parse_layout("row_major(4, 16)"), 4)
    assert len(steps) == 2 and [turns(step, 4).count for step in steps] == [2, 2]
    halves = parse_mapping("spatial(2, 1) * spatial(4, 8)")
    assert warp_accesses(halves, parse_layout("row_major(8, 8)"), 4, warp=1)[0][0] == 128


@pytest.mark.parametrize(("addresses", "width"), [([2], 4), ([0], 3), ([8], 16)])
def test_what_the_hardware_cannot_do_is_refused(addresses: list[int], width: int) -> None:
    with pytest.raises(ValueError, match=r"bytes"):
        turns(addresses, width)
