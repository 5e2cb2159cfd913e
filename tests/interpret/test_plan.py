"""The interpreter of plans: all ranks on real offsets; it finds stale buffers."""

from dataclasses import replace

import torch

from irc.dialects import comm
from irc.dialects.task import KernelOp
from irc.interpret.plan import run_plan_ranks
from tests.plan.programs import Task, build_plan, mlp, mlp_eager, sharded, sharded_eager


def kernels(module) -> dict[str, KernelOp]:
    return {op.sym_name.data: op for op in module.ops if isinstance(op, KernelOp)}


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_one_device() -> None:
    module = mlp()
    x, up, down = tensors((5, 6), (6, 9), (9, 6))
    seen: dict[str, torch.Tensor] = {}
    ((y,),) = run_plan_ranks(
        build_plan(module), kernels(module), [x], {"up.weight": up, "down.weight": down},
        trace=lambda name, _, values: seen.update({name: values[0].clone()}),
    )  # fmt: skip
    torch.testing.assert_close(y, mlp_eager(x, up, down))
    assert set(seen) == {f"n{call}/n{i}" for call in range(2) for i in range(4)}
    torch.testing.assert_close(seen["n0/n0"], x @ up)


def test_four_ranks() -> None:
    module = sharded()
    x, w1, w2 = tensors((8, 6), (6, 10), (10, 6))
    by_rank = run_plan_ranks(build_plan(module), kernels(module), [x], {"w1": w1, "w2": w2})
    assert len(by_rank) == 4
    for outputs in by_rank:
        for got, expected in zip(outputs, sharded_eager(x, w1, w2), strict=True):
            torch.testing.assert_close(got, expected)


def test_an_offset_too_early_reused_gives_wrong_numbers() -> None:
    module = mlp()
    plan = build_plan(module)
    x, up, down = tensors((5, 6), (6, 9), (9, 6))
    wrong = 0
    arena = [i for i, b in enumerate(plan.buffers) if b.storage == "arena"]
    for i in arena:
        buffers = list(plan.buffers)
        buffers[i] = replace(buffers[i], offset=0)
        moved = replace(plan, buffers=tuple(buffers))
        ((y,),) = run_plan_ranks(
            moved, kernels(module), [x], {"up.weight": up, "down.weight": down}
        )
        wrong += not torch.allclose(y, mlp_eager(x, up, down))
    assert 0 < wrong < len(arena)


def test_a_buffer_lost_while_a_collective_is_in_flight_is_found() -> None:
    t = Task("data=2")
    x = t.argument("input", "x", (16,))
    a = t.pointwise("relu", x)
    pending = t.start(comm.AllReduceOp, a, (16,), axis="data", fn="sum")
    b = t.pointwise("neg", t.pointwise("exp", x))
    module = t.finish(t.pointwise("add", t.wait(pending), b))
    plan = build_plan(module)
    (x,) = tensors((16,))
    expected = 2 * x.relu() - x.exp()
    assert torch.allclose(run_plan_ranks(plan, kernels(module), [x], {})[1][0], expected)
    held = plan.buffers[1]
    for i in (3, 4):
        buffers = list(plan.buffers)
        buffers[i] = replace(buffers[i], offset=held.offset)
        moved = replace(plan, buffers=tuple(buffers))
        got = run_plan_ranks(moved, kernels(module), [x], {})[1][0]
        assert not torch.allclose(got, expected)
