"""Dtypes that kernels do not know, mixtures that eager refuses, ops that are called by packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.frontends.torch.capture import capture

EIGHT = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
X = torch.tensor([[1.3, -0.7, 3.9], [100.0, -2.25, 0.01]])


def _bits(value: Any) -> Any:
    return value.view(torch.uint8) if value.dtype in EIGHT else value


def _same(function: Callable[..., Any], *operands: torch.Tensor) -> None:
    with torch.no_grad():
        results = irc.compile(function)(*operands)
        for got, want in zip(results, function(*operands), strict=True):
            assert got.dtype is want.dtype
            torch.testing.assert_close(_bits(got), _bits(want))


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_numbers_of_eight_bits_are_cast_by_torch(dtype: torch.dtype) -> None:
    def casts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = (x * 2).to(dtype)
        there = small.t().reshape(2, 3)[:, 1:].to(torch.float32) * 3
        return small, there, x.double().to(dtype), y.to(torch.bfloat16) + 1, small.view(torch.uint8)

    _same(casts, X, X.to(dtype))


def test_gradients_go_through_a_cast_to_eight_bits() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float8_e4m3fn).to(torch.float32) * x).sum()

    torch._dynamo.reset()
    gradients: list[torch.Tensor] = []
    for function in (torch.compile(loss, backend="irc"), loss):
        x = X.clone().requires_grad_()
        gradients += torch.autograd.grad(function(x), x)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_wide_unsigned_integers(dtype: torch.dtype) -> None:
    def casts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        literal = torch.tensor([-1, 5, 70000]).to(dtype)
        return x.abs().to(dtype).to(torch.float32) * 2, y.long() + 1, literal.to(torch.int64) + 1

    _same(casts, X, torch.arange(6).to(dtype))


def test_a_dtype_without_a_name_is_refused_by_name() -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.bits16).view(torch.int32).reshape(1, -1) + 1

    with pytest.raises(IrcError, match=r"no type for a tensor of torch\.bits16") as refused:
        capture(viewed, (torch.arange(8, dtype=torch.int16),))
    assert refused.value.codes == ("op-unsupported",)
    with pytest.raises(IrcError, match=r"no type for quantised tensors"):
        capture(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), (X,))


A, W = torch.randn(4, 6), torch.randn(6, 4, dtype=torch.bfloat16)
ROW = torch.tensor([0])
# fmt: off
MIXED: dict[str, Callable[[], Any]] = {
    "mm": lambda: (lambda a, w: a @ w, A, W),
    "linear": lambda: (F.linear, A, W.t().contiguous()),
    "addmm": lambda: (lambda a, w: torch.addmm(a[:, :4], a, w), A, W),
    "mv": lambda: (lambda a, w: a @ w[:, 0], A, W),
    "a module": lambda: (torch.nn.Linear(6, 2), A.double()),
    "a norm": lambda: (torch.nn.LayerNorm(6), A.double()),
    "statistics": lambda: (torch.nn.BatchNorm1d(6), A.double()),
    "a half norm": lambda: (lambda a: F.layer_norm(a, (6,), W[:, 0]), A),
    "half statistics": lambda: (lambda a: F.batch_norm(a, W[:, 0], W[:, 1].abs()), A),
    "half groups": lambda: (lambda a: F.group_norm(a, 2, W[:, 0], W[:, 0]), A),
    "a bias": lambda: (lambda a: F.linear(a, A, W[0]), A),
    "an addend": lambda: (lambda a: torch.addmm(W[0].double(), a, A.t()), A),
    "cross": lambda: (lambda a: torch.cross(a[:, :3], a[:, :3].double(), dim=1), A),
    "conv1d": lambda: (lambda a: F.conv1d(a[None], a[:, :, None].double()), A),
    "bce": lambda: (lambda a: F.binary_cross_entropy(a.sigmoid(), a.sigmoid().double()), A),
    "class weights": lambda: (
        lambda a: F.cross_entropy(a, torch.zeros(4, dtype=torch.int64), W[:, 0]), A),
    "index_select": lambda: (lambda a: a.index_select(0, a[0, :2]), A),
    "where index_add adds": lambda: (lambda a: a.index_add(0, a[0, :1], a[:1]), A),
    "index_add": lambda: (lambda a: a.index_add(0, ROW, a[:1].double()), A),
    "index_copy": lambda: (lambda a: a.index_copy(0, ROW, a[:1].double()), A),
    "index_put": lambda: (lambda a: a.index_put((ROW,), a[:1].double()), A),
}
# fmt: on


@pytest.mark.parametrize("name", MIXED)
def test_mixtures_are_refused_as_in_eager(name: str) -> None:
    function, *operands = MIXED[name]()
    _refused(function, *operands)


# fmt: off
DOMAINS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax of integers": lambda a: torch.softmax(a.long(), 0),
    "log_softmax of integers": lambda a: torch.log_softmax(a.long(), 0),
    "bits of floats": lambda a: a & a, "relu of booleans": lambda a: torch.relu(a > 0),
    "largest of booleans": lambda a: (a > 0).argmax(0),
    "targets of int32": lambda a: F.cross_entropy(a, torch.zeros(4, dtype=torch.int32)),
    "integers by zero": lambda a: a.long() // 0, "rests by zero": lambda a: a.long() % 0,
    "hardshrink of integers": lambda a: F.hardshrink(a.long()),
    "nansum of complex numbers": lambda a: torch.nansum(a * 1j),
    "nanmean of complex numbers": lambda a: torch.nanmean(a * 1j),
    "topk of booleans": lambda a: (a > 0).topk(2)[0], "glu of integers": lambda a: F.glu(a.long()),
    "prelu of integers": lambda a: F.prelu(a.long(), a[0, :1].long()),
    "trace of booleans": lambda a: torch.trace(a > 0),
    "windows of integers": lambda a: F.unfold(a.long()[None, None], 2),
    "sizes of integers": lambda a: F.interpolate(a.long()[None], scale_factor=2),
    "random integers between 0 and 1": lambda a: torch.rand_like(a.long()),
    "classes of integers": lambda a: F.cross_entropy(a.long(), torch.zeros(4, dtype=torch.int64)),
    "an out of another dtype": lambda a: torch.complex(a.double(), a.double(), out=a * 1j),
    "an out of aminmax": lambda a: torch.aminmax(a, dim=1, out=(a[:, 0] * 2, a[:, 0].double())),
    "slices to broadcast": lambda a: a.index_add(0, torch.tensor([0, 1]), a[:2, :1]),
    "margins of two dtypes": lambda a: F.soft_margin_loss(a > 0, a),
    "the largest of nothing": lambda a: a[:0].max(),
    "probabilities above 1": lambda a: F.binary_cross_entropy(a.abs() + 1, a.sigmoid()),
    "targets below 0": lambda a: F.binary_cross_entropy(a.sigmoid(), -a.abs()),
}
# fmt: on


@pytest.mark.parametrize("name", DOMAINS)
def test_what_an_op_is_not_for_is_refused_as_in_eager(name: str) -> None:
    _refused(DOMAINS[name], A)


def _refused(function: Callable[..., Any], *operands: torch.Tensor) -> None:
    with torch.no_grad():
        with pytest.raises(RuntimeError) as eager:
            function(*operands)
        torch._dynamo.reset()
        for compiled in (irc.compile(function), torch.compile(function, backend="irc")):
            with pytest.raises(RuntimeError) as refused:
                compiled(*operands)
            assert str(eager.value) in str(refused.value)


# fmt: off
NARROW: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "huber": F.huber_loss, "soft margin": F.soft_margin_loss,
    "huber, element by element": lambda a, b: F.huber_loss(a, b, reduction="none") * 2,
}
# fmt: on


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", NARROW)
def test_results_have_eagers_dtype_where_fakes_have_another(name: str, grad: bool) -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return NARROW[name](a, b)

    a, b = A.bfloat16().requires_grad_(grad), A.flip(0)
    wanted = run(a, b)
    torch._dynamo.reset()
    for compiled in (irc.compile(run), torch.compile(run, backend="irc")):
        result = compiled(a, b)
        assert result.dtype is torch.bfloat16
        torch.testing.assert_close(result, wanted)


def test_a_transposed_convolution_of_two_dtypes_is_refused() -> None:
    compiled = irc.compile(lambda a: F.conv_transpose1d(a[None], W.t()[:4, :, None]))
    with torch.no_grad(), pytest.raises(RuntimeError, match="expected scalar type"):
        compiled(A[:, :4].t()[:4])


@pytest.mark.parametrize("way", ["irc.compile", "torch.compile"])
def test_autocast_makes_products_of_two_dtypes(way: str) -> None:
    layer = torch.nn.Linear(6, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x) @ x

    torch._dynamo.reset()
    with torch.no_grad():
        own = way == "irc.compile"
        compiled = irc.compile(forward) if own else torch.compile(forward, backend="irc")
        got, want = compiled(A), forward(A)
    assert got.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("gradients", [False, True])
def test_ops_called_by_packet_and_ops_of_prims(gradients: bool) -> None:
    aten, prims = torch.ops.aten, torch.ops.prims

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = {"dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}
        count = prims.iota(3, start=2, step=3, **places)
        wide = aten.to(x, torch.float64)
        return wide, aten.add(x, 2), aten.max(x, 0)[0], count + x, torch.xlogy(x.abs(), 0.5)

    torch._dynamo.reset()
    with torch.set_grad_enabled(gradients):
        x = X.clone().requires_grad_(gradients)
        for compiled in (irc.compile(call), torch.compile(call, backend="irc")):
            for got, want in zip(compiled(x), call(x), strict=True):
                torch.testing.assert_close(got, want)
