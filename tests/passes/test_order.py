"""Pass order: overlap, never across a dependence, always the same."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects import comm
from irc.dialects.builder import entry
from irc.dialects.text import context
from irc.interpret.plan import run_plan_ranks
from irc.passes.order import OrderPass, scheduled
from tests.plan.programs import Task, build_plan, sharded, sharded_eager


def ids(module: ModuleOp) -> list[str]:
    return [
        op.name.split(".")[1] + op.attributes["id"].data[1:]
        for op in entry(module).body.block.ops
        if "id" in op.attributes
    ]


def ordered(module: ModuleOp, **options: object) -> list[str]:
    OrderPass(**options).apply(context(), module)
    module.verify()
    return ids(module)


def chain(t: Task, x, count: int):
    for _ in range(count):
        x = t.pointwise("neg", x)
    return x


def test_independent_compute_goes_between_start_and_wait() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    r = t.collective(comm.AllReduceOp, x, (8,), axis="data", fn="sum")
    other = chain(t, x, 2)
    module = t.finish(t.pointwise("add", r, other))
    assert ordered(module) == ["all_reduce0", "launch2", "launch3", "wait1", "launch4"]


def test_a_start_moves_up_to_its_operand() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    a = chain(t, x, 1)
    b = chain(t, x, 2)
    r = t.collective(comm.AllReduceOp, a, (8,), axis="data", fn="sum")
    module = t.finish(t.pointwise("add", r, b))
    assert ordered(module) == ["launch0", "all_reduce3", "launch1", "launch2", "wait4", "launch5"]


def test_in_flight_is_limited() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    total = x
    for _ in range(6):
        w = t.argument("parameter", f"w{_}", (4,))
        gathered = t.collective(comm.AllGatherOp, w, (8,), axis="data", dim=0)
        total = t.pointwise("add", total, gathered)
    module = t.finish(total)
    order = ordered(module, in_flight=2)
    pending = most = 0
    for name in order:
        pending += name.startswith("all_gather") - name.startswith("wait")
        most = max(most, pending)
    assert most == 2
    assert order[:3] == ["all_gather0", "all_gather3", "wait1"]


def test_with_prices_a_wait_comes_when_its_collective_has_ended() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    r = t.collective(comm.AllReduceOp, x, (8,), axis="data", fn="sum")
    other = chain(t, x, 5)
    module = t.finish(t.pointwise("neg", r), other)

    def seconds(op: Operation) -> float:
        return 2.5 if isinstance(op, comm.CollectiveOp) else 0.0 if op.name == "comm.wait" else 1.0

    order = scheduled(entry(module).body.block, seconds, 4)
    names = [op.attributes["id"].data for op in order]
    # Three ops cover the collective; then its reader, the later of the two by its own place.
    assert names.index("n1") == 4


@pytest.mark.parametrize(("kind", "early"), [(comm.AllReduceOp, 4), (comm.AllGatherOp, 1)])
def test_a_link_is_kept_busy_while_a_long_op_runs(
    kind: type[comm.CollectiveOp], early: int
) -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    total = long = chain(t, x, 1)
    attrs = {"dim": 0} if kind is comm.AllGatherOp else {"fn": "sum"}
    for _ in range(6):
        w = t.argument("parameter", f"w{_}", (4,) if kind is comm.AllGatherOp else (8,))
        total = t.pointwise("add", total, t.collective(kind, w, (8,), axis="data", **attrs))
    module = t.finish(total, long)

    def seconds(op: Operation) -> float:
        return 2.0 if isinstance(op, comm.CollectiveOp) else 7.0 * (op.name == "task.launch")

    order = scheduled(entry(module).body.block, seconds)
    # Four keep it busy for eight seconds of seven. What is gathered would be held meanwhile: the
    # next one is read seven seconds later, and takes two.
    first = next(i for i, op in enumerate(order) if op.name == "task.launch")
    assert sum(isinstance(op, comm.CollectiveOp) for op in order[:first]) == early
    waits = [op for op in order if isinstance(op, comm.WaitOp)]
    assert len(waits) == 6


def test_what_leads_to_a_long_collective_goes_first() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (8,))
    other = chain(t, x, 3)
    update = t.pointwise("neg", x)
    gathered = t.collective(comm.AllReduceOp, update, (8,), axis="data", fn="sum")
    module = t.finish(other, gathered)

    def seconds(op: Operation) -> float:
        return {"comm.all_reduce": 2.0, "task.launch": 1.0}.get(op.name, 0.0)

    order = scheduled(entry(module).body.block, seconds)
    assert [op.attributes["id"].data for op in order[:2]] == ["n3", "n4"]
    # Where it takes the link less than the op takes, nothing ends sooner: the text's order stays.
    costs = {op: seconds(op) for op in order}
    costs |= {op: 0.5 for op in order if isinstance(op, comm.CollectiveOp)}
    short = scheduled(entry(module).body.block, costs.__getitem__)
    assert [op.attributes["id"].data for op in short[:3]] == ["n0", "n1", "n2"]


def test_the_order_is_a_fixed_point_and_keeps_the_numbers() -> None:
    module = sharded()
    first = ordered(module)
    assert first != ids(sharded())
    assert ordered(module) == first
    x, w1, w2 = torch.randn(8, 6), torch.randn(6, 10), torch.randn(10, 6)
    kernels = {op.sym_name.data: op for op in module.ops if op.name == "task.kernel"}
    for outputs in run_plan_ranks(build_plan(module), kernels, [x], {"w1": w1, "w2": w2}):
        for got, expected in zip(outputs, sharded_eager(x, w1, w2), strict=True):
            torch.testing.assert_close(got, expected)


OPS = st.lists(
    st.tuples(st.sampled_from(["add", "all_reduce"]), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=20,
)


@given(OPS, st.none() | st.integers(1, 3), st.lists(st.floats(0, 3), min_size=60, max_size=60))
@settings(max_examples=100, deadline=None)
def test_every_operand_comes_first(
    raw: Sequence[tuple[str, int, int]], in_flight: int | None, costs: Sequence[float]
) -> None:
    t = Task("data=2")
    values = [t.argument("input", "x", (8,))]
    for kind, i, j in raw:
        a, b = values[i % len(values)], values[j % len(values)]
        if kind == "add":
            values.append(t.pointwise("add", a, b))
        else:
            values.append(t.collective(comm.AllReduceOp, a, (8,), axis="data", fn="sum"))
    module = t.finish(values[-1])
    before = ids(module)
    block = entry(module).body.block
    price = {op: costs[i % 60] for i, op in enumerate(block.ops)}
    order = scheduled(block, price.__getitem__, in_flight)
    done: set[Operation] = set()
    pending = 0
    for op in order:
        assert all(not isinstance(v.owner, Operation) or v.owner in done for v in op.operands)
        done.add(op)
        pending += isinstance(op, comm.CollectiveOp) - isinstance(op, comm.WaitOp)
        assert in_flight is None or pending <= in_flight
    assert len(order) == len(before)
