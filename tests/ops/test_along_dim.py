"""Library ops along one dim, and writes at several indices: split along the other dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from irc import capture
from irc.dialects.flow import ExternOp
from irc.dialects.placement import Mesh
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.ops.custom import assumed
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import signatures

ROWS, COLUMNS = torch.tensor([3, 1, 0, 2]), torch.tensor([0, 5, 2, 1])
put = torch.ops.aten.index_put.default
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "kthvalue": lambda x: x.kthvalue(2, 1),
    "kthvalue kept": lambda x: x.kthvalue(3, 0, keepdim=True),
    "median": lambda x: x.median(1),
    "median kept": lambda x: x.median(-1, keepdim=True),
    "mode": lambda x: x.round().mode(0),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "index_put": lambda x: x.index_put(
        (ROWS, COLUMNS), torch.arange(16.0, dtype=x.dtype).reshape(4, 4)
    ),
    "index_put of rows": lambda x: x.index_put((ROWS, COLUMNS), torch.ones(4, 1, dtype=x.dtype)),
    "index_put of one": lambda x: x.index_put((ROWS, COLUMNS), torch.tensor(2.0, dtype=x.dtype)),
    "index_put added": lambda x: x.index_put((ROWS, COLUMNS), x[:4, 0], accumulate=True),
    "index_put behind": lambda x: put(x, [None, COLUMNS, ROWS], x[:, 0]),
    "index_put apart": lambda x: put(x, [ROWS, None, ROWS], x[:4, :, 0]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mesh", ["data=2", "data=4"])
def test_every_split_is_right(name: str, mesh: str) -> None:
    torch.manual_seed(0)
    x, on = torch.randn(8, 8, 4, dtype=torch.float64), Mesh.parse(mesh)
    module = capture(CALLS[name], (x,)).program.module
    externs = [op for op in module.walk() if isinstance(op, ExternOp)]
    (op,) = externs
    assert assumed(op.plain) == ()
    values = _operands(op, x)
    expected = run_op(op, values)
    candidates = signatures(op, on)
    assert any(s.splits[0] for s in candidates) == (name != "index_put apart")
    for signature in candidates:
        if any(p.partial_axes() for p in signature.operands):
            continue
        held = [shard(v, p, on) for v, p in zip(values, signature.operands, strict=True)]
        outputs = run_ranks(op, signature, on, held)
        for value, parts, placed in zip(expected, outputs, signature.results, strict=True):
            assert combine(parts, placed, on, value.shape).equal(value), signature


def _operands(op: ExternOp, x: Tensor) -> list[Tensor]:
    """Values of the operands' shapes: the tensor, indices inside of it, and what is written."""
    operands: list[Tensor] = []
    for value in op.inputs:
        shape = tuple(int(n) for n in value.type.shape)  # type: ignore[attr-defined]
        if value.type.dtype == "i64":  # type: ignore[attr-defined]
            operands.append(ROWS)
        else:
            operands.append(x if shape == x.shape else torch.randn(shape, dtype=x.dtype))
    return operands
