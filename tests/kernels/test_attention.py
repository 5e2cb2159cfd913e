"""Attention as task kernels: what the mapper makes of it, its text, its verifier, keys in parts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

import irc
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.attributes import to_attribute
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ExternOp, TransposeOp
from irc.dialects.launches import LaunchOp, ViewOp
from irc.dialects.task import KernelOp
from irc.dialects.text import context, dump, load
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, execute, random_inputs
from irc.kernels.attention_parts import parts_of
from irc.ops.attention_ops import Form
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from tests.backends.cpu.attention_cases import Case

PERM = (0, 2, 1, 3)


def program(*, turned: bool, mask: tuple[int, ...] | None = None, sums: bool = False) -> ModuleOp:
    """Attention of 4 heads, 2 of them to a key; turned: operands and result are [B, S, H, D]."""
    shapes = [(2, 4, 9, 5), (2, 2, 11, 5), (2, 2, 11, 3)]
    shown = [tuple(s[d] for d in PERM) if turned else s for s in shapes]
    kinds = [TensorType.of(s, "f32") for s in shown]
    if mask is not None:
        kinds.append(TensorType.of(mask, "i1"))
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    heads = [b.op(TransposeOp, [x], perm=PERM) if turned else x for x in block.args[:3]]
    operands = [*heads, *block.args[3:]]
    if sums:
        result_types = [TensorType.of((2, 4, 9, 3), "f32"), TensorType.of((2, 4, 9), "f32")]
        form = Form(is_causal=True, scale=0.5, mask=3 if mask is not None else None)
        y, *rest = b.ops(ExternOp, operands, results=result_types, **form.forward())
    else:
        y, rest = b.op(AttentionOp, operands, is_causal=True, scale=0.5), []
    results = [b.op(TransposeOp, [y], perm=PERM) if turned else y, *rest]
    return ModuleOp([finish_function("forward", block, results)])


def mapped(module: ModuleOp) -> float:
    """Fuse and map a module; returns the error of its results in float64."""
    inputs = random_inputs(module)
    want = run_function(module, inputs, dtype=torch.float64)
    for each in (FusePass(), MapTasksPass()):
        each.apply(context(), module)
        module.verify()
    got = execute(module, inputs)
    return max(difference(a, b) for a, b in zip(got, want, strict=True))


def found(module: ModuleOp, kind: type) -> list:
    return [op for op in module.walk() if isinstance(op, kind)]


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_one_launch_without_copies(turned: bool, sums: bool) -> None:
    module = program(turned=turned, sums=sums)
    assert mapped(module) < 1e-9
    assert len(found(module, LaunchOp)) == 1 and not found(module, ExternOp)
    assert load(dump(module)).is_structurally_equivalent(module)
    (op,) = found(module, KernelAttentionOp)
    assert op.form.space == (2, 2, 2, 9, 1, 11)
    # Heads of one width are read where they lie, and y is written so: 4 heads of 5, of 3.
    if turned:
        assert op.form.places["q"].strides == (180, 10, 5, 20, 0, 0)
        assert op.form.places["y"].strides == (108, 6, 3, 12, 0, 0)


def test_a_mask_is_turned_once_for_all_that_read_it() -> None:
    module = program(turned=True, mask=(1, 1, 9, 11))
    assert mapped(module) < 1e-9
    names = [op.kernel_name for op in found(module, LaunchOp)]
    assert len(names) == 2 and "copy" in names[0]
    module = program(turned=True, mask=(2, 1, 1, 11))
    assert mapped(module) < 1e-9 and len(found(module, LaunchOp)) == 1


def test_float64_stays_with_the_library() -> None:
    kinds = [TensorType.of((1, 2, 3, 4), "f64")] * 3
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    y = b.op(AttentionOp, list(block.args), is_causal=False, scale=0.5)
    module = ModuleOp([finish_function("forward", block, [y])])
    assert mapped(module) < 1e-12
    assert found(module, AttentionOp) and not found(module, KernelOp)


def changed(name: str, change: Callable[[tuple], object]) -> KernelAttentionOp:
    kernel, _ = Case(rows=5, keys=7, sums=True).kernel()
    op = kernel.body.block.first_op
    assert isinstance(op, KernelAttentionOp)
    op.properties[name] = to_attribute(change(op.plain[name]))
    return op


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("strides", lambda s: (*s[:3], 1000, *s[4:]), "touches elements"),
        ("strides", lambda s: s[1:], "each role has"),
        ("offsets", lambda s: (-1, *s[1:]), "touches elements"),
        ("keys", lambda t: t + 1, "parts of 7 keys are not 8 keys"),
        ("roles", lambda r: ("k", "q", *r[2:]), "has roles k, q"),
        ("roles", lambda r: (*r[:3], "sums0", r[4]), "has roles"),
        ("features", lambda f: (f[0], f[1] + 1), "touches elements"),
    ],
)
def test_the_verifier_says_what_is_wrong(name: str, change: object, message: str) -> None:
    op = changed(name, change)  # type: ignore[arg-type]
    with pytest.raises(VerifyException, match=message):
        op.verify()


class Attend(nn.Module):
    """Grouped attention and something after it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return attend(q, k, v, attn_mask=mask, enable_gqa=True) * 2


@pytest.mark.parametrize(
    ("heads", "groups", "rows", "keys", "mask", "parts"),
    [
        (8, 1, 1, 2048, None, 4),
        (4, 2, 1, 1501, None, 2),
        (4, 4, 3, 1501, "bool", 2),
        (4, 4, 3, 1501, "additive", 2),
        (12, 12, 1, 2048, None, 1),
        (4, 4, 64, 2048, None, 1),
    ],
)
def test_keys_of_few_heads_are_divided(
    heads: int, groups: int, rows: int, keys: int, mask: str | None, parts: int
) -> None:
    case = Case(heads=heads, groups=groups, rows=rows, keys=keys)
    assert parts_of(case.op()[0], "cpu") == parts
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, n, 64) for h, n in ((heads, rows), (groups, keys), (groups, keys)))
    operands = [q, k, v]
    if mask is not None:
        whole = torch.rand(rows, keys)
        whole[0, 600:] = 0.0  # nothing of the second part takes part
        operands.append(whole > 0.3 if mask == "bool" else whole)
    want, got = Attend()(*operands), irc.compile(Attend())(*operands)
    assert torch.allclose(got, want, atol=2e-6)


def test_parts_compute_the_same_on_level_task() -> None:
    block = Block(arg_types=[TensorType.of((2, 2, 3, 4), "f32")] + [
        TensorType.of((2, 1, 1031, 4), "f32")] * 2)  # fmt: skip
    b = FlowBuilder(block)
    results = b.ops(
        ExternOp, list(block.args),
        results=[TensorType.of((2, 2, 3, 4), "f32"), TensorType.of((2, 2, 3), "f32")],
        **Form(is_causal=False, scale=0.5).forward(),
    )  # fmt: skip
    module = ModuleOp([finish_function("forward", block, results)])
    assert mapped(module) < 1e-9
    (op,) = found(module, KernelAttentionOp)
    assert op.form.parts == 2 and op.form.chunk == 516 and not found(module, ViewOp)
    assert load(dump(module)).is_structurally_equivalent(module)
