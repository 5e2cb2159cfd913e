"""plan-memory: what becomes of a program of level task."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects import comm, flow
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.plan.arena import Interval, aligned, assign_offsets, lower_bound_bytes
from irc.plan.schema import Copy, Kernels, Library, Start, Wait, from_json, to_json
from irc.plan.verify import verify_plan
from tests.plan.programs import Task, build_plan, loaded, mlp, reference_segments, sharded


def test_a_plan_of_kernels_is_one_segment_and_shares_kernels() -> None:
    plan = build_plan(mlp())
    (segment,) = plan.actions
    assert isinstance(segment, Kernels)
    assert [call.id for call in segment.calls][4:] == [f"n1/n{i}" for i in range(4)]
    assert len(segment.calls) == 8
    assert len(plan.kernels) == 4
    verify_plan(plan)


def test_an_intermediate_lies_in_the_arena_and_the_result_does_not() -> None:
    plan = build_plan(mlp())
    assert [plan.buffers[i].storage for i in plan.outputs] == ["output"]
    assert plan.arena_bytes == plan.arena_lower_bytes
    # Three values of a block are alive at once, seven in all: some share their bytes.
    sizes = sum(aligned(b.size_bytes) for b in plan.buffers if b.storage == "arena")
    assert plan.arena_bytes < sizes


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(0, 9)), max_size=12))
@settings(max_examples=200, deadline=None)
def test_buffers_alive_together_do_not_overlap(raw: list[tuple[int, int, int]]) -> None:
    intervals = [Interval(size, min(a, b), max(a, b)) for size, a, b in raw]
    offsets, total = assign_offsets(intervals)
    assert total >= lower_bound_bytes(intervals)
    places = list(zip(intervals, offsets, strict=True))
    for i, (x, at_x) in enumerate(places):
        assert at_x % 64 == 0
        assert at_x + x.size_bytes <= max(total, at_x)
        for y, at_y in places[:i]:
            if x.first <= y.last and y.first <= x.last and x.size_bytes and y.size_bytes:
                assert at_x + x.size_bytes <= at_y or at_y + y.size_bytes <= at_x


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 64, 128, 192, 320)), st.integers(0, 6), st.integers(0, 6)),
        max_size=20,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_buffer_lies_in_the_smallest_gap_of_those_it_meets(
    raw: list[tuple[int, int, int]],
) -> None:
    buffers = [Interval(size, min(a, b), max(a, b)) for size, a, b in raw]
    placed: list[tuple[Interval, int]] = []
    offsets, _ = assign_offsets(buffers)
    for own, at in sorted(zip(buffers, offsets, strict=True), key=lambda each: -each[0].size_bytes):
        if not own.size_bytes:
            continue
        taken = sorted(
            (low, low + other.size_bytes)
            for other, low in placed
            if other.first <= own.last and own.first <= other.last
        )
        end, gaps = 0, list[tuple[int, int]]()
        for low, high in taken:
            gaps.append((low - end, end))
            end = max(end, high)
        assert at == min((gap for gap in gaps if gap[0] >= own.size_bytes), default=(0, end))[1]
        placed.append((own, at))


def test_work_for_a_buffer_hardly_grows_with_the_others() -> None:
    """A step of 126 layers keeps thousands of values for backward: each went through all."""

    def calls(count: int) -> float:
        buffers = [Interval(64 + 64 * (n % 7), n, 2 * count - n) for n in range(count)]
        num_calls = 0

        def called(*_: object) -> None:
            nonlocal num_calls
            num_calls += 1

        sys.setprofile(called)
        try:
            assign_offsets(buffers)
        finally:
            sys.setprofile(None)
        return num_calls / count

    assert calls(200) < 1.5 * calls(50)


def test_buffers_of_a_collective_in_flight_stay_alive() -> None:
    """Between start and wait, what is computed must not land on the collective's memory."""
    t = Task("data=2")
    x = t.argument("input", "x", (16,))
    a = t.pointwise("relu", x)
    pending = t.start(comm.AllReduceOp, a, (16,), axis="data", fn="sum")
    b = t.pointwise("neg", t.pointwise("exp", x))
    y = t.pointwise("add", t.wait(pending), b)
    plan = build_plan(t.finish(y))
    verify_plan(plan)
    start = next(action for action in plan.actions if isinstance(action, Start))
    held = {(plan.buffers[i].offset, plan.buffers[i].size_bytes) for i in start.held}
    between = plan.actions[plan.actions.index(start) + 1]
    assert isinstance(between, Kernels)
    for call in between.calls:
        output = plan.buffers[call.args[-1]]
        for offset, size in held:
            assert output.offset + output.size_bytes <= offset or offset + size <= output.offset


def test_views_are_aliases_with_offsets_that_add_up() -> None:
    t = Task()
    x = t.pointwise("neg", t.argument("input", "x", (4, 6)))
    rows = t.view(x, (2, 6), (6, 1), offset=12)
    turned = t.view(rows, (3, 2), (2, 6), offset=1)
    (y,) = t.library(
        flow.ReduceOp, [turned], TensorType.of((3,)), fn="sum", dims=(1,), keep_dims=False
    )
    plan = build_plan(t.finish(y))
    aliases = [b for b in plan.buffers if b.storage == "alias"]
    assert [(b.offset, b.strides) for b in aliases] == [(48, None), (52, (2, 6))]
    assert [type(a) for a in plan.actions] == [Kernels, Library]


@pytest.mark.parametrize("case", ["argument", "view", "twice", "weight"])
def test_results_that_own_no_memory_are_copied(case: str) -> None:
    t = Task()
    x = t.argument("input", "x", (4, 6))
    w = t.argument("parameter", "w", (4, 6))
    negated = t.pointwise("neg", x)
    result = {
        "argument": x,
        "view": t.view(negated, (6,), (1,), offset=6),
        "twice": negated,
        "weight": w,
    }
    plan = build_plan(t.finish(negated, result[case]))
    assert [type(a) for a in plan.actions] == [Kernels, Copy]
    verify_plan(plan)


def test_a_reshaped_result_is_not_copied() -> None:
    t = Task()
    negated = t.pointwise("neg", t.argument("input", "x", (4, 6)))
    plan = build_plan(t.finish(t.view(negated, (24,), (1,))))
    assert [type(a) for a in plan.actions] == [Kernels]
    assert plan.buffers[plan.outputs[0]].shape == (24,)


def test_states_are_written_back_last_and_may_swap() -> None:
    from irc.runtime.executors import executor_of

    t = Task()
    a = t.argument("state", "a", (3,))
    b = t.argument("state", "b", (3,))
    y = t.pointwise("add", a, b)
    module = t.finish(y, b, a, roles=[("output", "y"), ("state", "a"), ("state", "b")])
    tensors = {"a": torch.ones(3), "b": torch.full((3,), 2.0)}
    run = executor_of(loaded(module), tensors, load=reference_segments)
    assert run()[0].tolist() == [3.0, 3.0, 3.0]
    assert (tensors["a"][0], tensors["b"][0]) == (2.0, 1.0)


def test_collectives_along_inner_dims_get_scratch() -> None:
    plan = build_plan(sharded())
    starts = [a for a in plan.actions if isinstance(a, Start)]
    needs = [
        (a.op.removeprefix("comm."), a.send is not None, a.receive is not None) for a in starts
    ]
    assert needs == [
        ("all_reduce", False, False), ("reduce_scatter", True, False), ("all_gather", False, False),
        ("all_gather", False, True), ("all_to_all", True, False), ("all_to_all", False, True),
        ("all_gather", False, False), ("all_reduce", False, False),
    ]  # fmt: skip
    waits = [a for a in plan.actions if isinstance(a, Wait)]
    assert len(waits) == len(starts)
    verify_plan(plan)


def test_plan_json_is_the_same_every_time_and_round_trips() -> None:
    text = to_json(build_plan(sharded(), seconds=lambda _: 1e-6, predicted_s=0.5))
    assert text == to_json(build_plan(sharded(), seconds=lambda _: 1e-6, predicted_s=0.5))
    assert to_json(from_json(text)) == text
    assert from_json(text) == build_plan(sharded(), seconds=lambda _: 1e-6, predicted_s=0.5)


def test_attributes_of_library_ops_round_trip() -> None:
    t = Task()
    x = t.argument("input", "x", (4, 6))
    (y,) = t.library(
        flow.PadOp, [x], TensorType.of((5, 6)), low=(1, 0), high=(0, 0), value=float("-inf")
    )
    plan = from_json(to_json(build_plan(t.finish(y))))
    (pad,) = plan.actions
    assert isinstance(pad, Library)
    assert pad.attrs == {"low": (1, 0), "high": (0, 0), "value": float("-inf")}


def test_a_size_that_is_not_a_number_is_refused() -> None:
    from irc.dialects.text import load

    module = load(
        """func.func @forward(%x: !flow.tensor<[B, 4], f32>) -> !flow.tensor<[B, 4], f32> {
             func.return %x : !flow.tensor<[B, 4], f32>
           }"""
    )
    with pytest.raises(IrcError, match="size 'B' is not bound"):
        build_plan(module)
