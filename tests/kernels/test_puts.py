"""Writes by several index tensors as scatters."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import irc
from irc.calls.compiled import dispatcher_of
from irc.errors import IrcError
from irc.plan.libraries import library_calls

torch.manual_seed(4)
X = torch.randn(5, 6, 7)
ROWS, COLUMNS = torch.randint(-5, 5, (4,)), torch.randint(-6, 6, (3, 1))
put = torch.ops.aten.index_put.default


def run(function: Callable[..., Any], *operands: Tensor) -> tuple[Any, dict[str, int]]:
    fast = irc.compile(function)
    result = fast(*operands)
    return result, library_calls(fast._irc_dispatcher.versions[-1].plan)


CASES: dict[str, tuple[list[Tensor | None], Sequence[int]]] = {
    "rows and columns": ([ROWS, COLUMNS], (3, 4, 7)),
    "broadcast values": ([ROWS, COLUMNS], (4, 1)),
    "one value": ([ROWS, COLUMNS], ()),
    "all dims": ([ROWS, COLUMNS, torch.randint(0, 7, (1,))], (3, 4)),
    "behind": ([None, COLUMNS, ROWS], (5, 3, 4)),
    "apart": ([ROWS, None, COLUMNS], (3, 4, 6)),
    "a matrix of rows": ([torch.randint(0, 5, (2, 3))], (2, 3, 6, 7)),
    "i32": ([ROWS.int(), COLUMNS.int()], (3, 4, 7)),
}


@pytest.mark.parametrize("name", CASES)
def test_sums(name: str) -> None:
    """With duplicates: sums do not depend on their order beyond rounding."""
    indices, shape = CASES[name]
    values = torch.randn(shape)
    result, library = run(lambda x, v: put(x, indices, v, True), X, values)
    torch.testing.assert_close(result, put(X.double(), indices, values.double(), True).float())
    assert not library


@pytest.mark.parametrize("name", ["behind", "apart", "all dims"])
def test_replaces(name: str) -> None:
    """Places that differ, as which of two values stays is not said."""
    places = torch.randperm(5 * 6)[:9]
    case = {
        "behind": ([None, places // 7, places % 7], (5, 9)),
        "apart": ([places // 7, None, places % 7], (9, 6)),
        "all dims": ([places // 6, places % 6, places % 7], (9,)),
    }[name]
    values = torch.randn(case[1])
    result, library = run(lambda x, v: put(x, case[0], v), X, values)
    assert torch.equal(result, put(X, case[0], values))
    assert not library


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x, values = (X > 0).to(dtype), torch.ones((), dtype=dtype)
    result, library = run(lambda x, v: put(x, [ROWS, COLUMNS], v), x, values)
    assert torch.equal(result, put(x, [ROWS, COLUMNS], values))
    assert not library


def test_an_index_outside_is_refused_and_names_no_other_place() -> None:
    """Column 6 of row 0 would be column 0 of row 1 in memory."""
    rows, columns = torch.tensor([0]), torch.tensor([6])
    with pytest.raises(IrcError, match="index"):
        run(lambda x, r, c: put(x, [r, c], torch.ones(())), X, rows, columns)


def test_masks() -> None:
    """The same under all of a mask is a choice; a value for each place is left to the library."""
    mask = X[..., 0] > 0
    result, library = run(lambda x, m: put(x, [m], torch.tensor(2.0)), X, mask)
    assert torch.equal(result, put(X, [mask], torch.tensor(2.0)))
    assert not library
    behind = X[0] > 0
    result, library = run(lambda x, m: put(x, [None, m], torch.tensor([2.0]), True), X, behind)
    assert torch.equal(result, put(X, [None, behind], torch.tensor([2.0]), True))
    assert not library
    rows = torch.randn(5, 1, 7), X[0, :, 0] > 0
    result, library = run(lambda x, v, m: put(x, [None, m], v), X, *rows)
    assert torch.equal(result, put(X, [None, rows[1]], rows[0]))
    assert not library
    values = torch.randn(int(mask.sum()), 7)
    result, library = run(lambda x, m, v: put(x, [m], v), X, mask, values)
    assert torch.equal(result, put(X, [mask], values))
    assert library == {"aten::index_put": 1}


def test_a_state_is_written_where_it_lies() -> None:
    """A paged cache: a token goes to its block and place, and nothing is copied."""

    class Cache(torch.nn.Module):
        pages: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pages", torch.zeros(64, 16, 8))

        def forward(self, block: Tensor, place: Tensor, kept: Tensor) -> Tensor:
            self.pages[block, place] = kept
            return self.pages.sum()

    module, again = Cache(), Cache()
    fast = irc.compile(module)
    operands = torch.tensor([3, 63]), torch.tensor([0, 15]), torch.randn(2, 8)
    torch.testing.assert_close(fast(*operands), again(*operands))
    assert torch.equal(module.pages, again.pages)
    dispatcher = dispatcher_of(fast)
    assert dispatcher is not None
    plan = dispatcher.versions[-1].plan
    assert not library_calls(plan)
    assert plan.updated() and not [a for a in plan.actions if a.kind == "copy"]
