"""Differences between plans, grouped by what changed."""

from dataclasses import replace
from pathlib import Path

from irc.report.diff import diff_plans, placement_changes, write
from irc.report.evidence import Evidence


def test_a_plan_does_not_differ_from_itself(plans: dict[str, Path]) -> None:
    diff = diff_plans(plans["grid"], plans["grid"])
    assert diff.same
    assert write(diff) == "the plans are the same"
    # Not because their hashes are compared.
    other = replace(diff, same=False)
    assert not other.changes.ops
    assert not other.collectives
    assert not other.kernels_added
    assert "0 ops changed, 19 unchanged" in write(other)


def test_ops_are_grouped_by_their_transition(plans: dict[str, Path]) -> None:
    diff = diff_plans(plans["pair"], plans["free"])
    changes = diff.changes
    ups = next(t for t in changes.ops if t.change == "S(2) -> S(0)")
    assert ups.names == ("block_0/b0n0", "block_0/b0n1", "block_0/b0n2")
    assert changes.num_ops + changes.num_unchanged == 19
    assert {t.change for t in changes.arguments} == {"S(0) -> R", "S(1) -> R"}
    text = write(diff)
    assert f"{changes.num_ops} ops changed, {changes.num_unchanged} unchanged" in text
    assert "S(0) -> R: 6 arguments, blocks.{0-2}.up.weight, blocks.{0-2}.up.bias" in text


def test_numbers_are_those_of_both_plans(plans: dict[str, Path]) -> None:
    diff = diff_plans(plans["pair"], plans["free"])
    (time, *_), (weights, _) = diff.times, diff.memory
    first, second = (Evidence.of(plans[name]).plan for name in ("pair", "free"))
    assert (time.before, time.after) == (first.predicted_s, second.predicted_s)
    assert weights.before < weights.after
    backwards = diff_plans(plans["free"], plans["pair"])
    assert backwards.kernels_added == diff.kernels_removed
    assert {c.name: c.runs for c in backwards.collectives} == {
        c.name: c.runs[::-1] for c in diff.collectives
    }


def test_whole_is_whole_on_every_mesh(plans: dict[str, Path]) -> None:
    diff = diff_plans(plans["one"], plans["grid"])
    names = {name for t in diff.changes.ops for name in t.names}
    assert diff.mesh == ("", "data=2,tensor=2")
    assert "mesh           one device -> data=2,tensor=2" in write(diff)
    # The constants of the norm lie whole on every rank in both.
    module = Evidence.of(plans["grid"]).logical
    assert len(names) < 19
    assert placement_changes(module, module).num_unchanged == 19
