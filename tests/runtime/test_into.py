"""Library ops that write where a plan lays their results give what the others copy, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from irc.errors import IrcError
from irc.runtime import library
from irc.runtime.dtypes import dtype_names
from irc.runtime.index_bounds import INDEXED
from irc.runtime.into import EXTERN, writer

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
AT = torch.randint(0, 5, (4, 7), generator=torch.Generator().manual_seed(1))

FLOW: list[tuple[str, dict[str, Any], list[Tensor]]] = [
    ("flow.sort", {"dim": 1, "descending": True}, [X]),
    ("flow.arg_reduce", {"fn": "max", "dim": 0, "keep_dims": True}, [X]),
    ("flow.arg_reduce", {"fn": "min", "dim": 1, "keep_dims": False}, [X]),
    ("flow.cumulative", {"fn": "sum", "dim": 1, "exclusive": False, "reverse": False}, [X]),
    ("flow.concat", {"dim": 1}, [X, X[:, :2], X[:, :0], X.flip(1)]),
    ("flow.take", {"dim": 1}, [X, torch.tensor([[3, 0], [6, 3], [1, 1]])]),
    ("flow.gather", {"dim": 0}, [X, AT]),
    ("flow.scatter", {"dim": 0, "fn": "set"}, [X, AT, X[:4] * 2]),
    ("flow.scatter", {"dim": 0, "fn": "sum"}, [X, AT, X[:4] * 2]),
    ("flow.scatter", {"dim": 0, "fn": "max"}, [X, AT, X[:4] * 2]),
]
SQUARE = X[:, :5]
OPERAND = {"operand": 0}
ARGUMENTS: dict[str, tuple[list[Any], list[Tensor]]] = {
    "aten::kthvalue": ([OPERAND, 2, 1], [X]),
    "aten::mode": ([OPERAND, 1], [X.round()]),
    "aten::median.dim": ([OPERAND, 1], [X]),
    "aten::nanmedian.dim": ([OPERAND, 1], [X]),
    "aten::searchsorted.Tensor": ([OPERAND, {"operand": 1}], [X.sort(1).values, X]),
    "aten::bucketize.Tensor": ([OPERAND, {"operand": 1}], [X, X[0].sort().values]),
    "aten::mm": ([OPERAND, {"operand": 1}], [X, X.t()]),
    "aten::bmm": ([OPERAND, {"operand": 1}], [X[None], X.t()[None]]),
    "aten::addmm": ([OPERAND, {"operand": 1}, {"operand": 2}], [SQUARE, X, X.t()]),
    "aten::baddbmm": ([OPERAND, *[{"operand": i} for i in (1, 2)]], [SQUARE, X[None], X.t()[None]]),
    "aten::tril": ([OPERAND], [X]),
    "aten::triu": ([OPERAND, 1], [X]),
    "aten::cross": ([OPERAND, {"operand": 1}, 0], [X[:3], X[1:4]]),
    "aten::renorm": ([OPERAND, 2, 0, 1.0], [X]),
}


OUTSIDE = [(name, {**attrs, "dim": 1}) for name, attrs, _ in FLOW if name in INDEXED]


@pytest.mark.parametrize(("name", "attrs"), OUTSIDE)
@pytest.mark.parametrize("index", [-1, 7])
def test_an_index_outside_is_told(name: str, attrs: dict[str, Any], index: int) -> None:
    """By both ways to run an op, with the number; what torch refuses otherwise stays torch's."""
    at = torch.full((5, 2), 3)
    at[4, 1] = index
    inputs = [X, at, X[:, :2]][: 3 if name == "flow.scatter" else 2]
    write, out = writer(name, attrs), torch.zeros(X.shape if len(inputs) == 3 else (5, 2))
    assert write is not None
    if name == "flow.take":
        inputs[1], out = at[4], torch.zeros(5, 2)
    for run in (lambda: write(inputs, [out]), lambda: library.run(name, attrs, inputs, [])):
        with pytest.raises(IrcError, match=f"index {index} lies outside the 7 elements") as error:
            run()
        assert error.value.code == "index-out-of-range"
    with pytest.raises(RuntimeError):
        library.run(name, attrs, [X, inputs[1].clamp(0, 6).float(), *inputs[2:]], [])


GUARD = 64
"""Elements on either side of a result that must stay as they are."""


def check(name: str, attrs: dict[str, Any], inputs: list[Tensor]) -> None:
    write = writer(name, attrs)
    assert write is not None
    copied = [x.clone() for x in inputs]
    wanted = library.run(name, attrs, copied, [])
    assert all(dtype_names()[x.dtype] for x in wanted)
    regions = [torch.full((w.numel() + 2 * GUARD,), 7, dtype=w.dtype) for w in wanted]
    out = [r[GUARD:-GUARD].view(w.shape) for r, w in zip(regions, wanted, strict=True)]
    places = [x.data_ptr() for x in out]
    write(copied, out)
    assert [x.data_ptr() for x in out] == places
    for output, want in zip(out, wanted, strict=True):
        assert output.shape == want.shape
        assert torch.equal(output, want)
    for region in regions:
        beyond = torch.cat([region[:GUARD], region[-GUARD:]])
        assert torch.equal(beyond, torch.full_like(beyond, 7)), "it wrote beyond its results"
    assert all(torch.equal(a, b) for a, b in zip(copied, inputs, strict=True))


@pytest.mark.parametrize(("name", "attrs", "inputs"), FLOW)
def test_flow_ops(name: str, attrs: dict[str, Any], inputs: list[Tensor]) -> None:
    check(name, attrs, inputs)


@pytest.mark.parametrize("target", sorted(EXTERN))
def test_aten_ops(target: str) -> None:
    positional, inputs = ARGUMENTS[target]
    check("flow.extern", {"target": target, "arguments": json.dumps([positional, {}])}, inputs)


def test_what_torch_cannot_write_there_is_copied() -> None:
    reverse = {"fn": "sum", "dim": 0, "exclusive": False, "reverse": True}
    assert writer("flow.cumulative", reverse) is None
    assert writer("flow.convolution", {}) is None
    assert writer("flow.extern", {"target": "aten::erfinv", "arguments": "[[], {}]"}) is None
