"""Chains of views, writes through them, arguments in all layouts: as eager; planted faults show."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.fuzz import view_scenes
from tests.fuzz.session import Session

PLANTED = {
    "a write that strides decide is not guarded": (
        "irc.frontends.torch.capture.perhaps_written", lambda traced: frozenset()
    ),
    "a view is given the strides of rows": (
        "irc.frontends.torch.guards.strides_of", lambda tensor: ()
    ),
    "an in-place op on a part is made one on the whole": (
        "irc.frontends.torch.fresh_writes._steps", lambda tensor: []
    ),
}  # fmt: skip


def run(seeds: range) -> None:
    session = Session(["views"])
    failures = [failure.text for failure in session.run(seeds)]
    assert not failures, "\n".join(failures)


def test_views() -> None:
    run(range(2000, 2032))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_views() -> None:
    run(range(3000, 4000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_show(fault: str) -> None:
    place, wrong = PLANTED[fault]
    seeds = (view_scenes.view_scene(seed) for seed in range(60))
    for scene in (*view_scenes.DIRECTED, *seeds):
        with patch(place, wrong):
            failure = view_scenes.check(scene, "way-compile")
        if failure is not None:
            assert view_scenes.check(scene, "way-compile") is None
            return
    pytest.fail("no scene shows it")
