"""Layers that are computed again, and states in parts: against all that there is to choose."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from irc.search.configurations import (
    Configuration,
    Outline,
    first_again,
    neighbours,
    staged_mesh,
    with_first_again,
)
from irc.search.fitting import cheapest, fewest

LAYERS = 6


@given(
    least=st.integers(0, 60),
    saved=st.integers(0, 12),
    room=st.integers(0, 5),
    times=st.lists(st.integers(0, 9), min_size=2, max_size=2),
    again=st.integers(1, 4),
)
def test_the_choice_is_the_best_of_all(
    least: int, saved: int, room: int, times: list[int], again: int
) -> None:
    """Points hold 40, 25 and 10 bytes, each in more time than the one before."""

    def fits(point: int, layers: int) -> bool:
        return (40, 25, 10)[point] + (LAYERS - layers) * saved + (room if layers else 0) <= least

    def seconds(point: int, layers: int) -> float:
        return 10 + sum(times[:point]) + again * layers

    every = [own for own in product(range(3), range(LAYERS + 1)) if fits(*own)]
    chosen = cheapest(range(3), LAYERS, fits, seconds)
    assert (chosen is None) == (not every)
    if chosen is not None:
        assert fits(*chosen)
        assert seconds(*chosen) == min(seconds(*own) for own in every)


def test_points_that_hold_less_are_not_asked_for_in_vain() -> None:
    asked: list[int] = []

    def fits(point: int, layers: int) -> bool:
        asked.append(point)
        return True

    assert cheapest(range(3), LAYERS, fits, lambda point, layers: 1.0) == (0, 0)
    assert set(asked) == {0}
    assert fewest(0, lambda layers: False) is None
    asked.clear()

    def never(point: int, layers: int) -> bool:
        asked.append(point)
        return False

    assert cheapest(range(3), LAYERS, never, lambda point, layers: 1.0) is None
    assert set(asked) == {0, 2}


def test_how_many_layers_is_said_of_one_mesh() -> None:
    """Beside it, the search asks how many there are again."""
    outline = Outline(1e15, "bf16", 2e9, 2**26, layers=16, samples=32, launches=100)
    policy = with_first_again("none", 3)
    assert first_again(policy) == ("none", 3)
    own = Configuration(staged_mesh(2, 4, 2), 4, recompute=policy)
    others = list(neighbours(own, outline))
    assert {each.recompute for each in others if each.mesh != own.mesh} == {"none"}
    assert {each.recompute for each in others if each.mesh == own.mesh} >= {"selective", policy}
