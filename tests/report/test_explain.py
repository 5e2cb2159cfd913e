"""What `irc explain plan` says is what the plan folder holds."""

import json
import re
from pathlib import Path

import pytest

from irc.dialects.placement import B, Partial, Placement, Split
from irc.errors import IrcError
from irc.plan.schema import Start
from irc.report.evidence import Evidence
from irc.report.explain import explain_plan
from irc.report.facts import gather
from irc.report.notation import oneflow, short
from irc.report.ops import Ops
from irc.report.timing import action_rows, split
from irc.report.traffic import Traffic
from irc.report.weights import argument_rows, merged_names


def test_names_that_differ_in_numbers_are_one_row() -> None:
    assert merged_names(["a.0.w", "a.1.w", "a.2.w"]) == "a.{0-2}.w"
    assert merged_names(["a.0.b.3", "a.2.b.3"]) == "a.{0,2}.b.3"
    assert merged_names(["norm2.weight"]) == "norm2.weight"


def test_notations() -> None:
    other = Placement((("data", Split(0, 1)), ("tensor", Split(0))))
    assert oneflow(other) == "(S(0), S(0); tensor before data)"
    assert short(other) == "S(0)S(0) tensor before data"
    assert short(Placement.of(data=B, tensor=Partial("max"))) == "RP(max)"
    assert oneflow(Placement.of(data=Split(0), tensor=Split(0))) == "(S(0), S(0))"


def test_arguments_are_those_of_the_plan(plans: dict[str, Path]) -> None:
    evidence = Evidence.of(plans["grid"])
    rows = {row.names: row for row in argument_rows(evidence)}
    up = rows["blocks.{0-2}.up.weight"]
    assert (up.count, up.shape, up.role) == (3, (96, 48), "parameter")
    assert (up.oneflow, up.dtensor) == ("(B, S(0))", "[Replicate(), Shard(0)]")
    assert up.bytes_per_rank == 3 * 96 * 48 * 4 // 2
    assert rows["blocks.{0-2}.down.weight"].oneflow == "(B, S(1))"


def test_ops_are_priced_as_the_search_priced_them(plans: dict[str, Path]) -> None:
    evidence = Evidence.of(plans["pair"])
    rows = {row.name: row for row in Ops(evidence).rows()}
    total = sum((row.compute_s or 0.0) * row.count for row in rows.values())
    objective = evidence.search["added_up_s"]
    boxed = sum((row.communication_s or 0.0) * row.count for row in rows.values())
    # The rest is the boxing of the results of blocks and of the program.
    assert total < total + boxed <= objective * 1.001
    up = rows["block_0/b0n0"]
    assert (up.what, up.count, up.flops) == ("contract abY,ZY->abZ", 3, 2 * 6 * 5 * 48 * 96)
    assert up.signature == "(B), (S(0)) -> (S(2))"
    assert up.runner_up is not None
    assert up.runner_up.compute_s is not None
    assert up.runner_up.communication_s is not None
    parts = up.runner_up.compute_s + up.runner_up.communication_s
    assert parts == pytest.approx(up.runner_up.more_s)


def test_every_collective_of_the_plan_has_its_reason(plans: dict[str, Path]) -> None:
    for name in ("pair", "grid", "free", "one"):
        evidence = Evidence.of(plans[name])
        starts = [a for a in evidence.plan.actions if isinstance(a, Start)]
        rows = Traffic(evidence).rows()
        assert sum(row.runs for row in rows) == len(starts)
        assert all(row.change and "does not say" not in row.why for row in rows)
    (reduced, *_) = [r for r in Traffic(Evidence.of(plans["grid"])).rows() if r.runs == 3]
    assert (reduced.kind, reduced.axis) == ("all_reduce", "tensor")
    assert reduced.bytes == 3 * (3 * 5 * 48 * 4)
    assert reduced.change == "(S(0), P) -> (S(0), B)"
    assert "b0n3 contract abY,ZY->abZ" in reduced.why
    assert "read by b0n4 add" in reduced.why


def test_time_is_split_into_its_parts(plans: dict[str, Path]) -> None:
    plan = Evidence.of(plans["grid"]).plan
    time = split(plan)
    assert time.total_s == pytest.approx(time.compute_s + time.exposed_s)
    assert 0 < time.exposed_s <= time.communication_s * (1 + 1e-9)
    actions = action_rows(plan)
    assert sum(row.seconds or 0.0 for row in actions) == pytest.approx(time.compute_s)
    alone = split(Evidence.of(plans["one"]).plan)
    assert alone.communication_s == alone.exposed_s == 0


def test_what_is_planned_by_fall_back_is_listed(plans: dict[str, Path]) -> None:
    (row,) = gather(Evidence.of(plans["odd"])).fallbacks
    assert row.what == "extern aten::linalg_matrix_exp"
    text = explain_plan(plans["odd"])
    assert re.search(r"extern aten::linalg_matrix_exp +1 +[0-9.]+ % ", text)
    assert gather(Evidence.of(plans["pair"])).fallbacks == []


def test_the_text_has_its_sections(plans: dict[str, Path]) -> None:
    text = explain_plan(plans["grid"])
    for said in (
        "mesh        data=2, tensor=2 (4 ranks), priced for demo-gpus",
        "blocks      @block_0 runs 3 times",
        "proven optimal",
        "a placement says (data, tensor)",
        "blocks.{0-2}.up.weight",
        "all_reduce[tensor]",
        "Planned by fall-back",
        "matmul     3    3  add, relu where the matmul leaves its result",
    ):
        assert said in text
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    alone = explain_plan(plans["one"])
    assert "one device (1 rank)" in alone
    assert "Signatures" not in alone
    assert "no communication" in alone


def test_one_op_is_explained_by_id_or_glob(plans: dict[str, Path]) -> None:
    text = explain_plan(plans["pair"], op="b0n3")
    assert text.startswith("block_0/b0n3  contract abY,ZY->abZ\n")
    assert "chosen      (S(2)), (S(1)) -> (P)" in text
    assert "runner-up" in text
    assert explain_plan(plans["pair"], op="block_0/*").count("source") == 6
    with pytest.raises(IrcError, match="did you mean"):
        explain_plan(plans["pair"], op="b0n33")


def test_fusion_groups_say_why(plans: dict[str, Path]) -> None:
    text = explain_plan(plans["pair"], fusion=True)
    assert "block_0/b0n2  matmul, 3 runs, " in text
    assert "  why  add, relu where the matmul leaves its result" in text
    assert "       b0n2 relu" in text


def test_json_has_every_fact(plans: dict[str, Path]) -> None:
    facts = json.loads(explain_plan(plans["grid"], as_json=True))
    assert facts["mesh"] == {"data": 2, "tensor": 2}
    assert {"arguments", "ops", "collectives", "fusion", "fallbacks", "time"} <= facts.keys()
    (op,) = json.loads(explain_plan(plans["grid"], op="b0n3", as_json=True))
    assert op["runner_up"]["more_s"] > 0
    groups = json.loads(explain_plan(plans["grid"], fusion=True, as_json=True))
    assert groups == facts["fusion"]


def test_a_folder_without_ir_says_so(plans: dict[str, Path]) -> None:
    evidence = Evidence.of(plans["one"])
    with pytest.raises(IrcError, match="no IR text after 'auto-shard'"):
        evidence.before("auto-shard")
