"""The executor on one device: numbers, aliasing, threads, cost of a call."""

import threading
import time

import pytest
import torch

from irc.dialects import flow, searches
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.plan.schema import Kernels
from irc.runtime.executors import executor_of
from tests.plan.programs import Task, loaded, mlp, mlp_eager, reference_segments, sharded


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"up.weight": torch.randn(6, 9), "down.weight": torch.randn(9, 6)}


def test_runs_kernels_on_the_arena() -> None:
    tensors = weights()
    run = executor_of(loaded(mlp()), tensors, load=reference_segments)
    for _ in range(3):
        x = torch.randn(5, 6)
        (y,) = run(x)
        torch.testing.assert_close(y, mlp_eager(x, *tensors.values()))


def test_weights_are_used_in_place() -> None:
    tensors = weights()
    run = executor_of(loaded(mlp()), tensors, load=reference_segments)
    x = torch.randn(5, 6)
    before = run(x)[0]
    tensors["up.weight"].mul_(2)
    torch.testing.assert_close(run(x)[0], mlp_eager(x, *tensors.values()))
    assert not torch.equal(before, run(x)[0])


def test_inputs_need_not_be_contiguous() -> None:
    tensors = weights()
    x = torch.randn(6, 5).T
    (y,) = executor_of(loaded(mlp()), tensors, load=reference_segments)(x)
    torch.testing.assert_close(y, mlp_eager(x, *tensors.values()))


def test_results_are_fresh() -> None:
    run = executor_of(loaded(mlp()), weights(), load=reference_segments)
    first = run(torch.ones(5, 6))[0]
    kept = first.clone()
    run(torch.zeros(5, 6))
    assert torch.equal(first, kept)


def library_program() -> Task:
    """Kernels and library ops in turn, over views, with gaps, of inputs, weights and values."""
    t = Task()
    x = t.argument("input", "x", (4, 6))
    w = t.argument("parameter", "w", (4, 6))
    turned = t.view(x, (6, 4), (1, 6))
    (a,) = t.library(
        flow.ReduceOp, [turned], TensorType.of((6,)), fn="sum", dims=(1,), keep_dims=False
    )
    b = t.pointwise("neg", a)
    top = t.view(w, (2, 3), (6, 2), offset=6)
    (c,) = t.library(
        flow.PointwiseOp, [top, t.view(b, (2, 3), (3, 1))], TensorType.of((2, 3)), fn="mul"
    )
    values, order = t.library(
        searches.SortOp,
        [c],
        TensorType.of((2, 3)),
        TensorType.of((2, 3), "i64"),
        dim=1,
        descending=True,
    )
    t.finish(values, order, t.view(b, (3,), (1,), offset=3), x)
    return t


def test_library_ops_see_views() -> None:
    plan = loaded(library_program().module)
    assert [type(a) for a in plan.plan.actions].count(Kernels) == 1
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    run = executor_of(plan, {"w": w}, load=reference_segments)
    values, order, tail, again = run(x)
    b = -x.sum(0)
    expected = (w[1:3, 0:6:2] * b.view(2, 3)).sort(1, descending=True)
    torch.testing.assert_close(values, expected.values)
    assert torch.equal(order, expected.indices)
    torch.testing.assert_close(tail, b[3:])
    assert torch.equal(again, x)
    assert not values.requires_grad


def test_two_threads_do_not_share_an_arena() -> None:
    t = Task()
    x = t.argument("input", "x", (300,))
    y = t.pointwise("neg", t.pointwise("exp", t.pointwise("neg", x)))
    run = executor_of(loaded(t.finish(y)), {}, load=reference_segments)
    wrong: list[int] = []

    def work(seed: int) -> None:
        value = torch.full((300,), float(seed))
        right = [torch.equal(run(value)[0], -(-value).exp()) for _ in range(100)]
        wrong.extend([seed] * right.count(False))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_plan_of_kernels_is_one_native_call() -> None:
    segments = []

    def load(*args):
        segments.extend(reference_segments(*args))
        return segments

    run = executor_of(loaded(mlp()), weights(), load=load)
    run(torch.ones(5, 6))
    assert [segment.runs for segment in segments] == [1]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((), "takes 1 inputs, not 0"),
        ((torch.ones(6, 5),), r"input 'x' is \[6, 5\]"),
        ((torch.ones(5, 6, dtype=torch.float64),), "float64"),
        ((torch.ones(5, 6, device="meta"),), "on meta"),
    ],
)
def test_other_inputs_are_refused(inputs: tuple[torch.Tensor, ...], expected: str) -> None:
    run = executor_of(loaded(mlp()), weights(), load=reference_segments)
    with pytest.raises(IrcError, match=expected):
        run(*inputs)


def test_other_weights_are_refused() -> None:
    with pytest.raises(IrcError, match=r"weight 'down\.weight'"):
        executor_of(loaded(mlp()), {"up.weight": torch.ones(6, 9)}, load=reference_segments)
    with pytest.raises(IrcError, match=r"\[9, 6\]"):
        executor_of(
            loaded(mlp()), dict.fromkeys(weights(), torch.ones(9, 6)), load=reference_segments
        )


def test_a_plan_for_four_ranks_does_not_run_alone() -> None:
    with pytest.raises(IrcError, match="world-size"):
        executor_of(loaded(sharded()), {}, load=reference_segments)


def test_kernels_of_another_backend_do_not_run_here() -> None:
    with pytest.raises(IrcError, match="backend 'triton'"):
        executor_of(loaded(mlp(), backend="triton"), weights())


def test_a_call_and_an_action_cost_little_python() -> None:
    """Budgets: 3 us for one input and output, 10 us an action; with room for a busy machine.

    They are those of a machine on which one op of torch takes 1 us.
    """

    class Nothing:
        def run(self, table: int) -> None: ...

    t = Task()
    one = loaded(t.finish(t.pointwise("neg", t.argument("input", "x", (16,)))))
    run = executor_of(one, {}, load=lambda *_: [Nothing()])
    x = torch.ones(16)
    pace = max(1.0, seconds(lambda: torch.neg(x)) / 1e-6)
    assert seconds(lambda: run(x)) < 3e-6 * 4 * pace

    t = Task()
    y = t.argument("input", "x", (16,))
    for _ in range(50):
        y = t.pointwise("neg", y)
        (y,) = t.library(flow.PointwiseOp, [y], TensorType.of((16,)), fn="neg")
    run = executor_of(loaded(t.finish(y)), {}, load=lambda *_: [Nothing()] * 50)
    torch_alone = seconds(lambda: x.copy_(torch.neg(x)))
    assert seconds(lambda: run(x)) / 100 < 10e-6 * 2 * pace + torch_alone


def seconds(call) -> float:
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            call()
        best = min(best, (time.perf_counter() - start) / 50)
    return best
