"""What a plan is spared that a search prices and throws away."""

from __future__ import annotations

from dataclasses import replace

from irc.dialects.placement import Mesh
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import Options
from irc.pipeline.default import default_pipeline
from irc.search.judge import BOUNDLESS


def reports(options: Options) -> list[bool]:
    return [each.report for each in default_pipeline(options) if isinstance(each, AutoShardPass)]


def test_a_brief_plan_says_nothing_of_its_placements_but_in_a_stage() -> None:
    """Nobody reads it there; of a stage it says what the memory costs."""
    options = Options(mesh=Mesh.parse("data=2"), cluster="8xA100")
    assert reports(options) == [True]
    assert reports(replace(options, brief=True)) == [False]
    # Pieces of a model fit whatever they hold; within a budget what is said is compared with it.
    assert reports(replace(options, brief=True, memory_bytes=BOUNDLESS)) == [False]
    assert reports(replace(options, brief=True, memory_bytes=10**9)) == [True]
    stage = replace(options, brief=True, within=Mesh.parse("pipe=2,data=2"))
    assert reports(stage) == [True]
