"""Smallest programs of what the fuzzer has found and what has been mended since."""

import pytest
import torch

from tests.fuzz.check import check, check_with
from tests.fuzz.cuda import Shim, is_available
from tests.fuzz.program import Input, Node, Program


def program(inputs: list[Input], *nodes: Node) -> Program:
    return Program(3, tuple(inputs), nodes, (nodes[-1].name,))


FOUND = {
    # Sums of halves were rounded before the division.
    "average pool of halves": program(
        [Input("x0", (2, 3, 9, 8), "f16")],
        Node("v0", "avg_pool2d", ("x0",), {"window": 3, "stride": 2, "pad": 1}),
    ),
    # A slice of no columns was loaded by scalars and stored by vectors.
    "slice of nothing": program(
        [Input("x0", (64, 1), "bf16"), Input("x1", (8, 1), "bf16", "transposed")],
        Node("v0", "concat", ("x0", "x1"), {"dim": 0}),
        Node("v1", "slice", ("v0",), {"dim": 1, "start": 0, "stop": 0, "step": 1}),
    ),
    # Truth was the largest or smallest element.
    "any of negative integers": program(
        [Input("x0", (5, 2, 5), "i32")], Node("v0", "any", ("x0",), {"dim": 1, "keep": True})
    ),
    "all of negative integers": program(
        [Input("x0", (5, 2, 5), "i32")], Node("v0", "all", ("x0",), {"dim": 1, "keep": True})
    ),
    # A tile of one row stored all of its rows.
    "product of one row": program(
        [Input("x0", (1, 2), "f32"), Input("x1", (2, 2), "f32")],
        Node("v0", "matmul", ("x0", "x1")),
    ),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("target", ["cpu", "generic"])
def test_cpu(name: str, target: str) -> None:
    assert (failure := check(FOUND[name], target)) is None, failure


@pytest.mark.skipif(not is_available(), reason="needs g++")
def test_cuda() -> None:
    shim = Shim()
    shim.prepare(list(FOUND.values()))
    for name, each in FOUND.items():
        assert (failure := check_with(each, shim)) is None, f"{name}: {failure}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_any_and_all_of_what_is_no_truth_value(dtype: torch.dtype) -> None:
    """Kernels see truth values: 0.5 is true, and so is -3 beside 0 for any, not for all."""
    import irc

    x = torch.tensor([[-3, 0, 0], [-3, -3, -2], [0, 0, 0]]).to(dtype)
    x = x * 0.25 if dtype.is_floating_point else x

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.any(1), x.all(1)

    with torch.no_grad():
        for one, other in zip(irc.compile(both)(x), both(x), strict=True):
            assert torch.equal(one, other)
