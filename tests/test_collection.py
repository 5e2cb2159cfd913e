"""Python's collector of cycles, held back while irc compiles."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from irc import collection
from irc.collection import collected_in_turn, collection_held


class Cycle:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


def _looked_at(work: Callable[[], object]) -> list[int]:
    """Return which generations were collected meanwhile."""
    seen: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            seen.append(about["generation"])

    gc.callbacks.append(note)
    try:
        work()
    finally:
        gc.callbacks.remove(note)
    return seen


@pytest.mark.parametrize(("many", "often"), [(100, 3), (1_000_000, 0)])
def test_new_objects_are_collected_in_turn_where_they_are_many(
    monkeypatch: pytest.MonkeyPatch, many: int, often: int
) -> None:
    monkeypatch.setattr(collection, "MANY", many)

    @collected_in_turn()
    def plan() -> None:
        for _ in range(2_000):
            Cycle()

    def search() -> None:
        with collection_held():
            gc.collect(0)
            seen.clear()
            for _ in range(3):
                plan()
            seen.append(gc.get_count()[0])

    seen: list[int] = []
    assert gc.isenabled()
    generations = _looked_at(search)
    assert generations[1:][:often] == [0] * often
    assert (seen[0] < 1_000) == (often > 0)
    assert gc.isenabled()
