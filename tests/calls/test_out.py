"""``out=``: what eager refuses to write there is refused, and what it resizes is resized."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import irc

pytestmark = pytest.mark.filterwarnings("ignore")

WAYS: dict[str, Callable[..., Callable[..., Any]]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}
DOUBLE, FLOAT = torch.float64, torch.float32

REFUSED: dict[str, tuple[Callable[..., Any], torch.dtype, tuple[int, ...]]] = {
    "multinomial": (lambda x, out: torch.multinomial(x, 3, out=out), DOUBLE, (2, 3)),
    "sort": (lambda x, out: torch.sort(x, 1, out=(torch.empty(2, 5), out)), FLOAT, (2, 5)),
    "searchsorted": (lambda x, out: torch.searchsorted(x, x, out=out), FLOAT, (2, 5)),
    "kthvalue": (lambda x, out: torch.kthvalue(x, 2, out=(torch.empty(2), out)), FLOAT, (2,)),
    "any": (lambda x, out: torch.any(x, out=out), DOUBLE, ()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_out_of_a_dtype_that_eager_refuses(name: str, way: str, dtype: torch.dtype) -> None:
    call, of, shape = REFUSED[name]
    x = torch.rand(2, 5).to(dtype)
    with pytest.raises(RuntimeError) as eager:
        call(x, torch.empty(shape, dtype=of))
    torch._dynamo.reset()
    with pytest.raises(RuntimeError) as raised:
        WAYS[way](call)(x, torch.empty(shape, dtype=of))
    assert f"{eager.value}".split("\n")[0] in f"{raised.value}"


@pytest.mark.parametrize("way", WAYS)
def test_out_is_refused_where_sizes_are_open_too(way: str) -> None:
    call, of, _ = REFUSED["multinomial"]
    torch._dynamo.reset()
    run = WAYS[way](call, dynamic=True)
    for rows in (2, 4):
        with pytest.raises(RuntimeError, match="multinomial expects Long tensor out"):
            run(torch.rand(rows, 5), torch.empty(rows, 3, dtype=of))


@pytest.mark.parametrize("way", WAYS)
def test_out_of_a_dtype_that_eager_takes(way: str) -> None:
    def call(x: Tensor, total: Tensor, root: Tensor) -> Tensor:
        torch.cumsum(x, 1, out=total)
        # Of ones, as the question is put to eager, there is no such root.
        return torch.linalg.cholesky(x @ x.T + torch.eye(2), out=root)

    x = torch.rand(2, 5)
    wanted, targets = (
        (torch.empty(2, 5, dtype=torch.float64), torch.empty(2, 2)) for _ in range(2)
    )
    call(x, *wanted)
    torch._dynamo.reset()
    assert WAYS[way](call)(x, *targets) is targets[1]
    torch.testing.assert_close(targets, wanted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 3, 9])
def test_out_of_another_size_is_resized(way: str, size: int) -> None:
    def call(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mul(x, 2, out=out), out + 1

    x, out = torch.rand(5), torch.empty(size)
    torch._dynamo.reset()
    twice, more = WAYS[way](call)(x, out)
    assert twice is out
    torch.testing.assert_close((out, more), (x * 2, x * 2 + 1))
