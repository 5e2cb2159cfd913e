"""Attention's derivative as task kernels: what the mapper makes of it, and training through it."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

import irc
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.attributes import to_attribute
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ExternOp, TransposeOp
from irc.dialects.launches import LaunchOp
from irc.dialects.text import context, dump, load
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, execute, random_inputs
from irc.kernels.attention_backward import is_attention_backward
from irc.ops.attention_ops import Form
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass

PERM = (0, 2, 1, 3)


def program(*, turned: bool = False, dtype: str = "f32", **sizes: int) -> ModuleOp:
    """The derivative of causal attention; turned: operands and results are [B, S, H, D]."""
    size = {"heads": 8, "groups": 8, "rows": 9, "keys": 11, **sizes}
    lead, (h, g, s, t) = (2,), size.values()
    y, q, k, v = (*lead, h, s, 3), (*lead, h, s, 5), (*lead, g, t, 5), (*lead, g, t, 3)
    shapes = [y, q, k, v, y]
    shown = [tuple(x[d] for d in PERM) if turned else x for x in shapes]
    kinds = [*(TensorType.of(x, dtype) for x in shown), TensorType.of((*lead, h, s), "f32")]
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    operands = [b.op(TransposeOp, [x], perm=PERM) if turned else x for x in block.args[:5]]
    result_types = [TensorType.of(x, dtype) for x in (q, k, v)]
    form = Form(is_causal=True, scale=0.5)
    results = b.ops(ExternOp, [*operands, block.args[5]], results=result_types, **form.backward())
    if turned:
        results = [b.op(TransposeOp, [x], perm=PERM) for x in results]
    return ModuleOp([finish_function("forward", block, results)])


def mapped(module: ModuleOp, target: str = "cpu") -> float:
    """Fuse and map a module; returns the error of its results in float64."""
    inputs = random_inputs(module)
    want = run_function(module, inputs, dtype=torch.float64)
    for each in (FusePass(), MapTasksPass(target=target)):
        each.apply(context(), module)
        module.verify()
    got = execute(module, inputs)
    return max(difference(a, b) for a, b in zip(got, want, strict=True))


def found(module: ModuleOp, kind: type) -> list:
    return [op for op in module.walk() if isinstance(op, kind)]


@pytest.mark.parametrize("turned", [False, True])
def test_it_is_delta_and_one_launch_without_copies(turned: bool) -> None:
    module = program(turned=turned)
    assert mapped(module) < 1e-9
    names = [op.kernel_name for op in found(module, LaunchOp)]
    assert names == ["k0_mul_reduce_sum", "k1_attention_backward"]
    assert load(dump(module)).is_structurally_equivalent(module)
    (op,) = found(module, KernelAttentionBackwardOp)
    assert op.form.space == (2, 8, 1, 9, 1, 11)
    if turned:
        assert op.form.places["dq"].strides == (360, 5, 5, 40, 0, 0)
        assert op.form.places["dk"].strides == (440, 5, 0, 0, 440, 40)


def test_a_gpu_gets_keys_and_queries_by_themselves() -> None:
    module = program(turned=True)
    assert mapped(module, "sm_80") < 1e-9
    outputs = [
        tuple(role for role in op.form.places if role in ("dq", "dk", "dv"))
        for op in found(module, KernelAttentionBackwardOp)
    ]
    assert outputs == [("dk", "dv"), ("dq",)]


@pytest.mark.parametrize(
    ("sizes", "kernels"),
    [
        ({"groups": 4}, ["attention_backward"]),
        ({"groups": 1}, ["attention_backward", "reduce_sum", "reduce_sum"]),
        ({"heads": 2, "groups": 2, "keys": 301}, ["attention_backward", "reduce_sum"]),
        ({"heads": 2, "groups": 1, "keys": 301}, ["attention_backward", *["reduce_sum"] * 3]),
    ],
)
def test_few_heads_are_divided(sizes: dict[str, int], kernels: list[str]) -> None:
    module = program(**sizes)
    assert mapped(module) < 1e-9
    names = [op.kernel_name.partition("_")[2] for op in found(module, LaunchOp)]
    assert names[1:] == kernels


def test_other_dtypes_and_empty_heads_stay_with_the_library() -> None:
    (kept,) = found(program(dtype="f64"), ExternOp)
    assert not is_attention_backward(kept, "cpu")
    (kept,) = found(program(rows=0), ExternOp)
    assert not is_attention_backward(kept, "cpu")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("strides", lambda s: (*s[:3], 1000, *s[4:]), "touches elements"),
        ("strides", lambda s: s[1:], "each role has"),
        ("offsets", lambda s: (-1, *s[1:]), "touches elements"),
        ("keys", lambda t: t + 1, "parts of 11 keys are not 12 keys"),
        ("roles", lambda r: ("q", "g", *r[2:]), "has roles q, g"),
        ("roles", lambda r: (*r[:6], "dq0", *r[7:]), "dq0 is added to dq, which is not there"),
        ("features", lambda f: (f[0], f[1] + 1), "touches elements"),
    ],
)
def test_the_verifier_says_what_is_wrong(
    name: str, change: Callable[[tuple[object, ...]], object], message: str
) -> None:
    module = program()
    mapped(module)
    (op,) = found(module, KernelAttentionBackwardOp)
    op.properties[name] = to_attribute(change(op.plain[name]))
    with pytest.raises(VerifyException, match=message):
        op.verify()


class Layer(nn.Module):
    """One projection, attention over heads, and a loss."""

    def __init__(self, *, causal: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.causal, self.masked = causal, masked
        torch.manual_seed(0)
        self.project = nn.Linear(48, 144)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            t.view(*x.shape[:2], 4, 12).transpose(1, 2) for t in self.project(x).chunk(3, -1)
        )
        y = attend(q, k, v, attn_mask=mask if self.masked else None, is_causal=self.causal)
        return y.transpose(1, 2).reshape(x.shape).square().sum()


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    mask = torch.rand(2, 1, 7, 7) > 0.3
    mask[1, 0, 3] = False
    return torch.randn(2, 7, 48), mask


MODES = [{"causal": False}, {"causal": True}, {"masked": True}]
LIBRARY = "irc.runtime.attention.backward"


def wanted(**mode: bool) -> Tensor:
    module = Layer(**mode)
    module(*batch()).backward()
    gradient = module.project.weight.grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("mode", MODES)
def test_torch_compile_trains_through_the_kernel(mode: dict[str, bool]) -> None:
    torch._dynamo.reset()
    module = Layer(**mode)
    with mock.patch(LIBRARY, side_effect=AssertionError("the library was called")):
        torch.compile(module, backend="irc")(*batch()).backward()
    grad = module.project.weight.grad
    assert grad is not None
    assert torch.allclose(grad, wanted(**mode), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_trains_through_the_kernel(mode: dict[str, bool]) -> None:
    module = Layer(**mode)
    before = module.project.weight.detach().clone()
    step = irc.compile_step(module, optimizer="sgd")
    with mock.patch(LIBRARY, side_effect=AssertionError("the library was called")):
        step(*batch(), lr=1.0)
    moved = before - module.project.weight.detach()
    assert torch.allclose(moved, wanted(**mode), rtol=1e-4, atol=1e-3)
