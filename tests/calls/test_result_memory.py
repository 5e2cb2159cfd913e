"""Where results of compiled calls lie in memory: as eager's, so that writes to one show in others.

Programs of views and in-place ops are drawn, and each is run by eager and compiled. Compared are
numbers, strides and whose memory it is: after each result and the argument have been written to.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import irc

# With open sizes torch cannot take some in-place ops apart: they are compiled per size.
pytestmark = pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")

CASES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda a: a,
    "t": lambda a: a.t(),
    "reshape": lambda a: a.reshape(2, -1),
    "slice": lambda a: a[1:, ::2],
    "select": lambda a: a[0],
    "expand": lambda a: a[None].expand(3, -1, -1),
    "detach": lambda a: a.detach(),
    "chain": lambda a: a.t()[1:].unsqueeze(0).transpose(0, 2),
    "bits": lambda a: a.view(torch.int32),
    "two views": lambda a: (a.t(), a[1]),
    "itself and a view": lambda a: (a, a.t()),
    "a view beside": lambda a: (a * 2, a.t()),
    "split": lambda a: a.split(2, 1),
    "unbind": lambda a: a.unbind(0),
    "diagonal": lambda a: a.diagonal(),
    "unfold": lambda a: a.unfold(1, 2, 1),
    "nested": lambda a: [a.t(), {"x": a[0]}],
    "broadcast": lambda a: torch.broadcast_tensors(a, a[0])[1],
    "meshgrid": lambda a: torch.meshgrid(a[0], a[1], indexing="ij"),
    "einsum": lambda a: torch.einsum("ij->ji", a),
    "no copy": lambda a: a.to(torch.float32).type_as(a),
    "contiguous": lambda a: a.contiguous(),
    "written": lambda a: a.add_(1),
    "contiguous, written": lambda a: (a.contiguous().add_(1).sum(), a * 2)[1],
    "written, a view": lambda a: a.add_(1).t(),
    "a view, written": lambda a: a.t().add_(1),
    "a part written": lambda a: (a[0].zero_(), a[1:])[1],
    "results in one": lambda a: (lambda y: (y, y.t()))(a * 2),
    "parts of one": lambda a: (lambda y: (y[0], y[1:]))(a * 2),
    "one twice": lambda a: (lambda y: (y, y))(a * 2),
    "three of one": lambda a: (lambda y: (y.t(), y[0], y[1:]))(a + 1),
    "a result, written": lambda a: (lambda y: (y, y[0].zero_()))(a + 1),
    "a renewed one's part": lambda a: (a * 2).add_(1)[:, 1:],
    "a result's part": lambda a: (a * 2)[:, 1:],
    "a result, expanded": lambda a: (a * 2)[0].expand(4, 4),
    "flat, written": lambda a: (lambda y: (y.add_(1)[2:], y))((a.t() * 2).reshape(-1)),
    "dropout off": lambda a: F.dropout(a, 0.5, False),
    "dropout off, a view": lambda a: (F.dropout(a, training=False, p=0.5).t(), a * 2),
    "dropout of nothing": lambda a: torch.dropout(a, 0.0, True)[1:],
    "a turned sum": lambda a: (a.t() + 1, (a + 1).t()),
}

COPIES: dict[str, Callable[[Tensor], Any]] = {
    "contiguous": lambda a: a.contiguous(),
    "reshape": lambda a: a.reshape(2, -1),
    "no copy": lambda a: a.to(torch.float32).type_as(a),
    "turned, contiguous": lambda a: a.t().contiguous(),
    "turned, flat": lambda a: a.t().contiguous().reshape(-1)[2:],
    "flat, turned": lambda a: (a[1:].ravel(), a.flatten(), a.t().reshape_as(a)),
}
"""What gives a view of its operand, or a copy, as that one lies."""

LAID: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(4, 4),
    "columns": lambda: torch.randn(4, 4).t(),
    "gaps": lambda: torch.randn(4, 6)[:, 1:5],
    "columns with gaps": lambda: torch.randn(4, 6)[:, 1:5].t(),
}


def outcome(run: Callable[[Tensor], Any], laid: str, grad: bool, write: int | None) -> Any:
    """Return all that a caller sees: before, and after a write to a result or the argument (-1)."""
    torch.manual_seed(0)
    x = LAID[laid]()
    if grad:
        x = x.requires_grad_() * 1
    results = [each for each in pytree.tree_leaves(run(x)) if isinstance(each, Tensor)]
    told = [
        (each.stride(), each.dtype, each.requires_grad and each.is_floating_point(), each.is_leaf)
        for each in results
    ]
    targets = dict(enumerate(results)) | {-1: x}
    refused = False
    if write is not None and write in targets:
        with torch.no_grad():
            try:
                targets[write].fill_(7)
            except RuntimeError:  # more than one element lies at one place
                refused = True
    return told, refused, [each.detach().clone() for each in (x, *results)]


def compare(run: Callable[[Tensor], Any], fast: Any, laid: str, grad: bool, what: str) -> None:
    """Hold a compiled function against eager."""
    for write in (None, -1, 0, 1, 2):
        with torch.set_grad_enabled(grad):
            wanted, result = (outcome(each, laid, grad, write) for each in (run, fast))
        assert result[:2] == wanted[:2], (what, laid, write)
        for one, other in zip(result[2], wanted[2], strict=True):
            assert torch.allclose(one, other, equal_nan=True), (what, laid, write)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", CASES)
def test_memory_is_eagers(kind: str, grad: bool, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    fast = irc.compile(CASES[kind], dynamic=dynamic)
    for laid in LAID:
        compare(CASES[kind], fast, laid, grad, kind)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_for_one_layout_is_a_view_for_another(kind: str, grad: bool) -> None:
    run = COPIES[kind]
    for first in LAID:
        torch._dynamo.reset()
        fast = irc.compile(run)
        for laid in (first, *LAID):
            compare(run, fast, laid, grad, kind)


def test_a_view_of_what_dropout_leaves_alone() -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        y = irc.compile(lambda a: F.dropout(a, 0.5, False).t())(x)
        x.zero_()
    assert not y.any()


def test_a_gradient_through_dropout_lies_as_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_FIRST_TIMING", "off")  # else torch may run it

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.mT, 0.5, True)

    for through in (function, irc.compile(function), torch.compile(function, backend="irc")):
        x = torch.randn(33, 4, 3, requires_grad=True)
        y = through(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert gradient.stride() == (12, 3, 1)


@pytest.mark.parametrize("through", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_a_write_to_a_copy_is_none_to_arguments_that_share_memory(
    through: Callable[..., Any],
) -> None:
    def copies(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x) + y, x.clone().fill_(1)

    def writes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.tanh(x) + y
        y[1:].t().mul_(2)
        return kept, x.clone()

    for function, count in ((copies, 0), (writes, 1)):
        x = torch.randn(4, 3, requires_grad=function is copies)
        versions: list[list[int]] = []
        for each in (function, through(function)):
            leaf = x.detach().clone().requires_grad_(x.requires_grad)
            arguments = leaf, leaf.detach()
            result = each(*arguments)[0]
            versions.append([argument._version for argument in arguments])
            if x.requires_grad:
                result.sum().backward()
        assert versions == [[count, count]] * 2
