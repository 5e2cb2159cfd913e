"""Searches of a plan that nobody asks for any more end before they hand a problem to a solver."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from irc.search.shared import SHARED, Shared, Stopped, end_turn, turn


def test_a_search_that_is_not_wanted_any_more_ends() -> None:
    context, shared = copy_context(), Shared()
    context.run(SHARED.set, shared)

    def search() -> None:
        with turn():
            shared.stops.set()  # another one failed meanwhile
            end_turn()
            pytest.fail("it goes on")

    for _ in range(2):  # the second one does not begin
        with pytest.raises(Stopped):
            context.run(search)
        assert not shared.turn.locked()
