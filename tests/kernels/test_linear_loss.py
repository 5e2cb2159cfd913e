"""A linear layer's cross-entropy by blocks of rows: kernels equal float64, in three matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ContractOp, ExternOp, TransposeOp
from irc.dialects.launches import LaunchOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, execute
from irc.ops.linear_loss import BACKWARD, LOSS, arguments, block_rows
from irc.passes.fuse import FusePass
from irc.passes.lower_externs import LowerExternsPass
from irc.passes.map_tasks import MapTasksPass
from irc.runtime import linear_loss as reference

SIZES = [(600, 7, 50), (513, 3, 2), (257, 1, 1), (1, 5, 3), (523, 11, 13)]


def program(
    n: int,
    d: int,
    v: int,
    *,
    bias: bool = False,
    waits: bool = False,
    smooth: bool = False,
    dtype: str = "f32",
) -> ModuleOp:
    """Loss and gradients of rows.

    waits: the gradients start from the loss itself; smooth: and the log-sums have one, -g / 2.
    """
    wide = "f32"
    kinds = [TensorType.of((n,), wide), TensorType.of((d, n), dtype), TensorType.of((v, d), dtype)]
    kinds += [TensorType.of((n,), "i64"), *([TensorType.of((v,), dtype)] if bias else [])]
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    g, turned, w, index, *more = block.args
    h = b.op(TransposeOp, [turned], perm=(1, 0))
    row = TensorType.of((n,), wide)
    biased = ("bias",) if bias else ()
    operands: list[SSAValue] = [h, w, index, *more]
    call = arguments(LOSS, ("h", "w", "index", *biased))
    loss, sums = b.ops(ExternOp, operands, results=[row, row], target=LOSS, arguments=call)
    start = b.pointwise("mul", g, loss if waits else b.scalar(2.0, wide))
    operands = [start, h, w, index, sums, *more]
    roles = ("g", "h", "w", "index", "sums", *biased)
    if smooth:
        roles, operands = (*roles, "gs"), [*operands, b.pointwise("mul", g, b.scalar(-0.5, wide))]
    call = arguments(BACKWARD, roles)
    kinds = [TensorType.of((n, d), dtype), *kinds[2:3], *kinds[4:]]
    gradients = b.ops(ExternOp, operands, results=kinds, target=BACKWARD, arguments=call)
    return ModuleOp([finish_function("forward", block, [loss, *gradients])])


def values(n: int, d: int, v: int, *, bias: bool = False) -> list[Tensor]:
    draw = torch.Generator().manual_seed(n + v)
    index = torch.randint(0, v, (n,), generator=draw)
    g = torch.rand(n, generator=draw) * (torch.rand(n, generator=draw) > 0.3)
    operands = [g, torch.randn(d, n, generator=draw), torch.randn(v, d, generator=draw) * 3, index]
    return [*operands, *([torch.randn(v, generator=draw)] if bias else [])]


def by_torch(
    operands: Sequence[Tensor], *, waits: bool = False, smooth: bool = False
) -> list[Tensor]:
    """The same in float64 by autograd."""
    g, h, w, index, *bias = [t.double() if t.is_floating_point() else t for t in operands]
    h = h.T
    leaves = [t.requires_grad_() for t in (h, w, *bias)]
    logits = torch.nn.functional.linear(*leaves)
    loss = torch.nn.functional.cross_entropy(logits, index, reduction="none")
    start = g * (loss.detach() if waits else 2.0)
    total = (loss * start).sum()
    if smooth:
        total = total - 0.5 * (logits.logsumexp(1) * g).sum()
    return [loss.detach(), *torch.autograd.grad(total, leaves)]


def mapped(module: ModuleOp, target: str = "cpu") -> None:
    for each in (LowerExternsPass(target=target), FusePass(), MapTasksPass(target=target)):
        each.apply(context(), module)
        module.verify()


def contractions(module: ModuleOp) -> int:
    return sum(isinstance(op, ContractOp) for op in module.walk())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("bias", "waits", "smooth"), [(False, True, True), (True, False, False), (True, False, True)]
)
def test_blocks_give_what_torch_gives(
    sizes: tuple[int, int, int], bias: bool, waits: bool, smooth: bool
) -> None:
    operands = values(*sizes, bias=bias)
    want = by_torch(operands, waits=waits, smooth=smooth)
    module = program(*sizes, bias=bias, waits=waits, smooth=smooth)
    for got in (run_function(module, operands, dtype=torch.float64), _mapped_run(module, operands)):
        for mine, theirs in zip(got, want, strict=True):
            assert difference(mine, theirs) < 1e-12


def _mapped_run(module: ModuleOp, operands: Sequence[Tensor]) -> list[Tensor]:
    mapped(module)
    return execute(module, operands)


def test_a_known_start_joins_loss_and_gradients() -> None:
    """Of one block: three matmuls; where the gradients wait for the loss, four."""
    for waits, count in ((False, 3), (True, 4)):
        module = program(200, 7, 50, waits=waits)
        LowerExternsPass().apply(context(), module)
        assert contractions(module) == count
        assert not any(isinstance(op, ExternOp) for op in module.walk())


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_a_block_is_four_kernels(target: str) -> None:
    """Logits; softmax, look-up and slopes; dh; dw. A second block adds to the first's dw."""
    module = program(512, 7, 50)
    mapped(module, target)
    names = [op.kernel_name for op in module.walk() if isinstance(op, LaunchOp)]
    inner = [name for name in names if "matmul" in name or "softmax" in name]
    assert [name.split("_", 1)[1] for name in inner] == [
        "matmul", "softmax", "matmul", "matmul", "matmul", "softmax", "matmul", "matmul_add",
    ]  # fmt: skip
    operands = values(512, 7, 50)
    for mine, theirs in zip(execute(module, operands), by_torch(operands), strict=True):
        assert difference(mine, theirs) < 1e-12


def test_what_nobody_reads_is_not_computed() -> None:
    module = program(600, 7, 50)
    (func,) = module.body.block.ops
    end = func.body.block.last_op  # type: ignore[attr-defined]
    loss, dh, _ = end.operands
    end.operands = [loss, dh, dh]
    func.function_type = type(func.function_type).from_lists(  # type: ignore[attr-defined]
        list(func.function_type.inputs),
        [loss.type, dh.type, dh.type],  # type: ignore[attr-defined]
    )
    LowerExternsPass().apply(context(), module)
    module.verify()
    assert contractions(module) == 2  # the logits and dh of one function for all blocks


def test_blocks_are_even_where_they_can_be() -> None:
    assert [block_rows(n, 768) for n in (1, 767, 4096, 1000, 997)] == [
        1, 767, 512, 500, 504,
    ]  # fmt: skip
    for rows in range(1, 3000, 37):
        step = block_rows(rows, 300)
        assert 0 < step <= 1024
        assert -(-rows // step) * step - rows < step


def test_empty_operands_stay_in_the_library() -> None:
    module = program(0, 7, 5)
    LowerExternsPass().apply(context(), module)
    operands = values(0, 7, 5)
    loss, dh, dw = run_function(module, operands, dtype=torch.float64)
    assert (loss.shape, dh.shape, float(dw.abs().sum())) == ((0,), (0, 7), 0.0)


def test_an_index_outside_the_classes_is_refused() -> None:
    h, w = torch.randn(3, 2), torch.randn(5, 2)
    with pytest.raises(IndexError, match="outside of the 5 classes"):
        reference.losses(h, w, torch.tensor([0, 5, 1]))


@pytest.mark.parametrize("planted", ["sign", "block", "top"])
def test_planted_bugs_are_seen(planted: str) -> None:
    """The one-hot's sign, a block that is not added, a softmax without its maximum's place."""
    from irc.kernels.linear_loss_block import RowBlock

    bugs = {
        "sign": ("_slopes", lambda self: self.value("chances")),
        "block": ("_added", lambda self, role, value: self.b.cast(value, self.wide)),
        "top": ("_sums", lambda self: self.b.reshape(self.value("log"), (self.rows,))),
    }
    operands = values(600, 7, 50)
    with mock.patch.object(RowBlock, *bugs[planted]):
        module = program(600, 7, 50, waits=planted == "top")
        got = _mapped_run(module, operands)
    want = by_torch(operands, waits=planted == "top")
    assert max(difference(a, b) for a, b in zip(got, want, strict=True)) > 1e-3
