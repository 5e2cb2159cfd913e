"""Steps that are put together from pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irc.cluster.presets import PRESETS
from irc.dialects.placement import Mesh, Placement, Split
from irc.programs.schedules import schedule_for
from irc.schedule.actions import Schedule
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Tape, Wiring
from irc.search.blocks import UPDATE, Blocks, Content, Passed, Piece
from irc.simulate import assembled, priced
from irc.simulate.assembled import Assembled, KnownTapes, simulate_blocks

LAYER = Piece({"F": 1.0, "B": 2.0}, held_bytes=100.0, saved_bytes={"F-B": 10.0})
HEAD = Piece({"F": 0.5, "B": 1.0, UPDATE: 6.0}, arena_bytes={"B": 7.0})
MESH = Mesh.parse("data=2")
PASSED = Passed((8, 2), "f32", Placement((("data", Split(0)),)), 32.0, True)


def simulated(schedule: str, contents: list[Content], **pieces: Piece) -> Assembled:
    blocks = replace(Blocks(Piece(), Piece(), LAYER, Piece(), passed=(PASSED,)), **pieces)
    pipe = len(contents) // (2 if ":" in schedule else 1)
    own = schedule_for(schedule, pipe, 8)
    return simulate_blocks(blocks, contents, own, MESH, PRESETS["2x8xH100"])


def plain(stages: int) -> list[Content]:
    return [Content(1, s == 0, s == stages - 1) for s in range(stages)]


def test_a_plain_pipeline_takes_what_the_closed_form_says() -> None:
    assembled = simulated("1f1b", plain(4))
    # (m + p - 1) (F + B), and messages of some microseconds.
    assert assembled.simulation.seconds == pytest.approx(33.0, rel=1e-4)
    # The first stage keeps four micro-batches, each without what it sends.
    assert assembled.held_bytes[0] > assembled.held_bytes[-1] > 100.0


def test_the_slowest_stage_and_its_update_decide() -> None:
    """Others have time to send gradients back while the last stage updates."""
    short = [Content(1, has_first=True), Content(1), Content(1, has_last=True)]
    assembled = simulated("1f1b", short, last=HEAD)
    assert assembled.simulation.seconds == pytest.approx(2 * 1.0 + 8 * 4.5 + 6.0, rel=1e-4)
    assert assembled.held_bytes[-1] > 107.0


def test_several_stages_on_a_rank_have_a_shorter_bubble() -> None:
    whole = simulated("1f1b", [Content(2, True), Content(2, False, True)])
    halves = simulated("interleaved:2", plain(4))
    assert halves.simulation.seconds < whole.simulation.seconds


def test_a_schedule_is_spelt_out_once_for_stages_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Wiring] = []

    def counted(schedule: Schedule, wiring: Wiring) -> tuple[Tape, ...]:
        asked.append(wiring)
        return tapes_of(schedule, wiring)

    monkeypatch.setattr(assembled, "tapes_of", counted)
    known, cluster = KnownTapes(), PRESETS["2x8xH100"]

    def held(schedule: Schedule, times: float, tapes: assembled.TapesOf) -> tuple[float, ...]:
        layer = LAYER.times(times)
        blocks = Blocks(Piece(), Piece(), layer, Piece(), passed=(PASSED,), again=layer)
        own = simulate_blocks(blocks, plain(4), schedule, MESH, cluster, tapes)
        return own.held_bytes

    first, other = (schedule_for("1f1b", 4, count) for count in (8, 16))
    for schedule, times in ((first, 1.0), (first, 2.0), (other, 2.0), (other, 1.0)):
        assert held(schedule, times, known) == held(schedule, times, tapes_of)
    assert len(asked) == 2


def test_what_a_step_holds_is_known_before_it_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(priced, "simulate_tapes", pytest.fail)
    assert simulated("1f1b", plain(4)).held_bytes[0] > 100.0
