"""One-hot vectors: a class that there is not is refused, as eager refuses it."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import irc

WAYS: dict[str, Callable[..., Any]] = {
    "irc.compile": irc.compile,
    "torch.compile": lambda function: torch.compile(function, backend="irc"),
}


@pytest.mark.parametrize("learns", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("way", WAYS)
def test_a_class_outside_is_refused(way: str, learns: bool) -> None:
    def rows(classes: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(classes % 9, 5).float() @ table

    torch._dynamo.reset()
    compiled, table = WAYS[way](rows), torch.randn(5, 3, requires_grad=learns)
    with torch.set_grad_enabled(learns):
        inside = torch.tensor([[0, 4], [3, 1]])
        torch.testing.assert_close(compiled(inside, table), rows(inside, table))
        outside = torch.tensor([[0, 5], [3, 1]])
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            rows(outside, table)
        with pytest.raises((RuntimeError, IndexError), match="index-out-of-range"):
            compiled(outside, table)


def test_a_negative_class_is_refused() -> None:
    with pytest.raises(RuntimeError, match="index-out-of-range"):
        irc.compile(lambda x: torch.nn.functional.one_hot(x, 4))(torch.tensor([3, -1]))
