"""Predicting plans."""

import pytest

from irc.dialects import comm
from irc.plan.build import build_plan
from irc.simulate.plan import predict, predicted_seconds
from tests.plan.programs import Task, mlp, sharded


def overlapping(between: int):
    """A collective of 3 s with ``between`` launches of 1 s before its wait, and one after."""
    t = Task("data=2")
    x = t.argument("input", "x", (16,))
    pending = t.start(comm.AllReduceOp, x, (16,), axis="data", fn="sum")
    y = x
    for _ in range(between):
        y = t.pointwise("neg", y)
    z = t.pointwise("add", t.wait(pending), y)
    return build_plan(t.finish(z), seconds=lambda op: 3.0 if op.name == "comm.all_reduce" else 1.0)


@pytest.mark.parametrize(("between", "seconds"), [(0, 4), (1, 4), (3, 4), (5, 6)])
def test_overlap_hides_the_shorter(between: int, seconds: float) -> None:
    assert predict(overlapping(between)).seconds == seconds


def test_ranks_that_share_cores_slow_each_other_down() -> None:
    plan = overlapping(3)
    assert predict(plan, cores=8).seconds == 4.0
    # One core: 2 ranks x 4 launches + one collective of 3, all of it in turn.
    assert predict(plan, cores=1).seconds == pytest.approx(11.0)
    # Two threads of each rank on two cores are as one on one.
    assert predict(plan, cores=2, threads=2).seconds == pytest.approx(11.0)


def test_the_peak_is_within_the_arena() -> None:
    for module in (mlp(), sharded()):
        plan = build_plan(module, seconds=lambda _: 1e-3)
        found = predict(plan)
        assert 0 < found.peak_bytes <= plan.arena_bytes


def test_a_large_mesh_is_one_rank() -> None:
    t = Task("data=512")
    x = t.argument("input", "x", (16,))
    y = t.collective(comm.AllReduceOp, x, (16,), axis="data", fn="sum")
    plan = build_plan(t.finish(y), seconds=lambda _: 2.0)
    found = predict(plan)
    assert (found.ranks, found.seconds) == (1, 2.0)


def test_a_launch_is_a_step_of_its_own() -> None:
    found = predict(build_plan(mlp(), seconds=lambda _: 1.0))
    assert found.seconds == 8.0
    assert [a.name for a in found.actions][:2] == ["matmul_5x9x6 n0/n0", "relu_5x9 n0/n1"]


def test_predicted_seconds() -> None:
    assert predicted_seconds(overlapping(0)) == 4.0
    assert predicted_seconds(overlapping(0), cores=1) > 4.0
    assert predicted_seconds(build_plan(mlp())) == 0.0
