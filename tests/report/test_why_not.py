"""What another placement would cost, by planning again with it pinned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.text import context
from irc.errors import IrcError
from irc.passes.auto_shard import AutoShardPass
from irc.report.evidence import Evidence
from irc.report.why_not import WhyNot, why_not, write


def plan_again(module: ModuleOp, options: Mapping[str, Any]) -> None:
    AutoShardPass(**options).apply(context(), module)


def ask(folder: Path, target: str, placement: str) -> WhyNot:
    return why_not(Evidence.of(folder), target, placement, plan_again)


def test_an_op_that_is_pinned_costs_what_the_search_says(plans: dict[str, Path]) -> None:
    answer = ask(plans["free"], "b0n0", "S(2)")
    assert answer.chosen is not None
    assert answer.pinned is not None
    assert answer.changes is not None
    assert answer.chosen.total_s == Evidence.of(plans["free"]).search["added_up_s"]
    assert answer.pinned.total_s > answer.chosen.total_s
    assert answer.pinned.bytes_held < answer.chosen.bytes_held
    assert "block_0/b0n0" in {name for t in answer.changes.ops for name in t.names}
    text = write(answer)
    assert "costs       +" in text
    assert "a rank holds" in text


def test_the_question_is_put_against_the_users_own_pins(plans: dict[str, Path]) -> None:
    """The plan was made with the weight pinned to rows, and a pin of ours holds against it."""
    answer = ask(plans["pair"], "blocks.{0-2}.up.weight", "B")
    assert answer.changes is not None
    (change,) = [t for t in answer.changes.arguments if "blocks.0.up.weight" in t.names]
    assert change.change == "S(0) -> R"


def test_the_placement_that_is_there_already_costs_nothing(plans: dict[str, Path]) -> None:
    assert write(ask(plans["pair"], "b0n0", "S(2)")).endswith("it is so already")


def test_what_cannot_be_has_its_reason(plans: dict[str, Path]) -> None:
    answer = ask(plans["pair"], "b0n2", "P")
    assert answer.reason[0] == "the constraints leave no placement for op 'b0n2' (flow.pointwise)"
    assert any("without them it can be" in note for note in answer.reason)
    assert "infeasible" in write(answer)
    odd = ask(plans["pair"], "x", "S(1)")
    assert any("5 is not a multiple of 2" in note for note in odd.reason)


@pytest.mark.parametrize(
    ("plan", "target", "placement", "code"),
    [
        ("pair", "nothing", "B", "input-mismatch"),
        ("pair", "b0n0", "S(0), B", "mesh-mismatch"),
        ("pair", "b0n0", "Shard(0)", "placement-syntax"),
        ("pair", "b0n0", "B; x = B", "placement-syntax"),
        ("one", "b0n0", "B", "option-value"),
    ],
)
def test_questions_that_are_none(
    plans: dict[str, Path], plan: str, target: str, placement: str, code: str
) -> None:
    with pytest.raises(IrcError) as caught:
        ask(plans[plan], target, placement)
    assert caught.value.code == code
