"""Each family of ATen ops means in flow what it means in torch."""

# ruff: noqa: E501 - a case is a line
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(7)
X = torch.randn(3, 5, 7)
Y = torch.randn(5, 7)
M = torch.randn(7, 4)
I = torch.randint(-9, 9, (3, 5))  # noqa: E741 - as in linear algebra
IMAGE = torch.randn(2, 6, 9, 11)
HALF = torch.randn(3, 5).to(torch.bfloat16)

# fmt: off
CASES: dict[str, Any] = {
    # pointwise
    "add alpha": lambda: (lambda x, y: torch.add(x, y, alpha=3), X, Y),
    "sub and rsub": lambda: (lambda x, y: (x - y, 2 - x, torch.rsub(x, y, alpha=2)), X, Y),
    "int plus float": lambda: (lambda i, x: (i + 1.5, i * 2, i / 2, i // 2, i % 3, x * i[..., None]), I, X),
    "division": lambda: (lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")), X, Y),
    "powers": lambda: (lambda x: (x ** 2, x.abs() ** 0.5, x ** 3, x.abs() ** 1.7, 2 ** x, (x.abs() + 1) ** -1), X),
    "comparisons": lambda: (lambda x, i: (x > 0, x == x, i >= 2, i != 3.5, x.isnan(), x.isfinite(), i.isinf()), X, I),
    "booleans": lambda: (lambda x: (((x > 0) & (x < 1)) | ~(x > -1), (x > 0) ^ (x > 1), torch.logical_not(x), (x > 0) * (x < 1)), X),
    "unary": lambda: (lambda x: (x.exp(), x.sin(), x.tanh(), x.erf(), x.abs().log1p(), x.floor(), x.sign(), x.neg(), x.rsqrt()), X.abs() + 0.1),
    "activations": lambda: (lambda x: (F.relu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), x.sigmoid(), F.leaky_relu(x, 0.2),
                                       F.elu(x), F.softplus(x), F.mish(x), F.hardswish(x), F.hardsigmoid(x), F.relu6(x), F.logsigmoid(x),
                                       F.hardtanh(x, -0.3, 0.4)), X),
    "more activations": lambda: (lambda x: (F.selu(x), F.celu(x, 0.7), F.softsign(x), F.threshold(x, 0.1, 9.0), F.glu(x[..., :6])), X),
    "clamp": lambda: (lambda x, y: (x.clamp(-0.5, 0.5), x.clamp(min=y), x.clamp_max(0.1)), X, Y),
    "where": lambda: (lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, 1.0, x), x.masked_fill(y > 0, -5.0)), X, Y),
    "lerp": lambda: (lambda x, y: (torch.lerp(x, y.expand_as(x), 0.3), torch.addcmul(x, x, y, value=2), torch.addcdiv(x, x, y.abs() + 1)), X, Y),
    "integers": lambda: (lambda i: (i << 2, i >> 1, i & 3, i | 4, i ^ 5, i.bitwise_not(), i.abs(), i.clamp(-2, 3), i.float().round()), I),
    "dtypes": lambda: (lambda x, i: (x.double() + i[..., None], x.to(torch.int32), i.bool(), x.half().float(), i.type_as(x)), X, I),
    "bools": lambda: (lambda x, y: (torch.add(x > 0, y > 0, alpha=False), torch.add(x > 0, y > 0, alpha=True), (x > 0) + 1), X, Y),
    # shapes
    "views": lambda: (lambda x: (x.view(15, 7), x.reshape(3, -1), x.flatten(1), x.unsqueeze(1), x[:, None].squeeze(1), x.unflatten(1, (5, 1))), X),
    "transposes": lambda: (lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x.mT, x.movedim(0, 2), x[0].t()), X),
    "slices": lambda: (lambda x: (x[1:], x[:, -2:], x[..., ::2], x[:, 1:100:3], x[1], x[:, -1], x.narrow(1, 1, 3), x[2:1]), X),
    "cuts": lambda: (lambda x: (*x.split(2, 1), *x.chunk(2, -1), *x.unbind(0), *x.split([1, 4], 1), *x.tensor_split(3, 2)), X),
    "joins": lambda: (lambda x, y: (torch.cat([x, x[:1]], 0), torch.stack([x, x], -1), torch.cat([x.double(), x], 1), torch.cat([y, y], -1)), X, Y),
    "expand": lambda: (lambda y: (y.expand(2, 5, 7), y.repeat(2, 1, 3), y.repeat_interleave(3, 1), torch.broadcast_to(y, (2, 5, 7)), y.tile(2)), Y),
    "flip and roll": lambda: (lambda x: (x.flip(0, 2), x.roll(2, 1), x.roll((1, -2), (0, 2)), x.roll(4)), X),
    "pads": lambda: (lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=3.0), F.pad(x, (-1, 0)), F.pad(x > 0, (1, 1))), X),
    "pads with elements": lambda: (lambda x: (F.pad(x, (2, 3), mode="reflect"), F.pad(x, (3, 1, 2, 4), mode="reflect"), F.pad(x, (4, 9), mode="replicate"), F.pad(x, (-2, 8), mode="replicate"),
                                              F.pad(x, (7, 2, 1, 0), mode="circular"), F.pad(x, (-2, 3), mode="circular"), F.pad(x, (2, -3, -1, -1), mode="circular"), F.pad(x, (-1, -2), mode="circular"), F.pad(x[None], (1, 0, 0, 2, 1, 1), mode="replicate"), F.pad(x, (-1, 2), mode="reflect"), F.pad(x, (0, 0, 1, 2), mode="reflect")), X),
    "diagonals": lambda: (lambda x, y: (x.diagonal(), x.diagonal(2, 1, 2), x.diagonal(-1, 2, 0), y.diagonal(-4), y.diagonal(6), y.diagonal(7), y.diag(), y[:, :5].trace(), y.diagonal(-5),
                                        torch.einsum("iij->ij", x[:, :3]), torch.einsum("ii", y[:, :5]), torch.einsum("iji,j->i", x[:, :, :3], x[0, :, 0])), X, Y),
    "slices written with steps": lambda: (lambda x: (x.slice_scatter(x[:, :3] + 1, 1, 0, 5, 2), x.slice_scatter(x[..., :2] + 1, 2, 1, 6, 3), x.slice_scatter(x[:1] + 1, 0, 2, 3, 7), x.slice_scatter(x[:, :0], 1, 4, 2, 2),
                                                     x.slice_scatter(x[:, :2] + 1, 1, -4, -1, 2)), X),
    "written diagonals": lambda: (lambda x, y: (y.diagonal_scatter(x[0, 0, :5]), y.diagonal_scatter(x[0, 0, :3], 4), y.diagonal_scatter(x[0, 0, :3], -2), x.diagonal_scatter(y[:, :2], 1, 2, 0)[0],
                                                x.diagonal_scatter(x[0, :3].t(), 0, 1, 0)), X, Y),
    "triangles": lambda: (lambda x: (x.tril(), x.triu(1), x.tril(-2)), X),
    "written slices": lambda: (writes, X, Y),
    # creation
    "evenly spaced": lambda: (lambda x: [torch.linspace(a, b, n, dtype=d) for n in (1, 2, 5, 50) for d in (torch.int64, torch.uint8, torch.float32)
                                         for a, b in ((x[0], 20.7), (0.0, x[1]), (4.3, 9))], torch.tensor([4.3, 17.0])),
    "creation": lambda: (lambda x: (x + torch.arange(7), torch.zeros(3, 1, 1) + x, torch.ones_like(x), torch.full((2,), 7), torch.arange(1, 9, 3),
                                    torch.arange(0.0, 2.0, 0.25), torch.eye(3, 4), x.new_zeros(2), torch.tensor([1, 2, 3]) + 1), X),
    "large constant": lambda: (lambda x: x + LARGE, X),
    # reductions
    "sums": lambda: (lambda x, i: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), i.sum(), (x > 0).sum(1), x.mean(-1), x.prod(1)), X, I),
    "extremes": lambda: (lambda x: (x.max(), x.amax((0, 1)), x.min(1).values, *x.max(2), x.argmax(), x.argmin(1, keepdim=True), (x > 2).any(), (x > -9).all(1)), X),
    "variance": lambda: (lambda x: (x.var(1), x.std(), x.var(-1, unbiased=False), *torch.var_mean(x, 1, keepdim=True), x.norm(), x.norm(dim=1)), X + 100),
    "spread of too few": lambda: (lambda x: (x.var(1, correction=5), x.var(1, correction=6), x.std((0, 1), correction=99)), X),
    "vector norms": lambda: (lambda x: (*(torch.linalg.vector_norm(x, p, d, keepdim=k) for p in (0, 0.5, 1, 2, 3, -1, float("inf"), -float("inf")) for d, k in ((1, False), ((0, 2), True), (None, False))),
                                        x.norm(3), x[0, 0, 0].norm(), torch.linalg.vector_norm(x[0, 0, 0], 0), F.normalize(x, p=3.0, dim=1), torch.linalg.vector_norm(x, dtype=torch.float64)), X),
    "numbers without dims": lambda: (lambda s: (s.softmax(0), s.log_softmax(-1), s.logsumexp(0), s.logsumexp(0, keepdim=True), s.cumsum(0), s.cumprod(-1), s.argmax(), s.argmin(0), *s.max(0), *s.min(0)), X[0, 0, 0]),
    "index of all": lambda: (lambda x: (x.argmax(keepdim=True), x.argmin(None, keepdim=True)), X),
    "softmax": lambda: (lambda x: (x.softmax(-1), x.log_softmax(1), x.logsumexp(1), F.softmin(x, 0), x.logsumexp((0, 1), keepdim=True)), X * 30),
    "running": lambda: (lambda x, i: (x.cumsum(1), x.cumprod(-1), i.cumsum(0)), X, I),
    "sorting": lambda: (lambda x: (*x.sort(1), *x.sort(-1, descending=True), *x.topk(3, -1), *x.topk(2, 1, largest=False), x.argsort(0)), X),
    # norms and losses
    "layer norm": lambda: (lambda x, w: F.layer_norm(x, (7,), w, w), X + 50, Y[0]),
    "rms norm": lambda: (lambda x, w: (F.rms_norm(x, (7,), w), F.rms_norm(x, (5, 7), eps=1e-4)), X, Y[0]),
    "group norm": lambda: (lambda x: (F.group_norm(x, 3), F.instance_norm(x)), IMAGE),
    "batch norm": lambda: (lambda x, m, v: F.batch_norm(x, m, v.abs() + 1, m, v), IMAGE, torch.randn(6), torch.randn(6)),
    "losses": lambda: (lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="sum", ignore_index=2), F.mse_loss(x, x * 2), F.l1_loss(x, x + 1),
                                     F.nll_loss(x.log_softmax(-1), t), F.binary_cross_entropy_with_logits(x, x.sigmoid())), Y, torch.tensor([1, 2, 6, 0, 2])),
    # products
    "products": lambda: (lambda x, y, m: (x @ m, y @ m, y.mT @ y, y[0] @ m, x @ m[:, 0], y[0] @ y[0], torch.outer(y[0], m[0]), torch.bmm(x, x.mT),
                                          torch.addmm(m[0], y, m, alpha=2, beta=0.5), x[:, None] @ m.expand(2, 7, 4)), X, Y, M),
    "linear": lambda: (lambda x, m, b: (F.linear(x, m.t(), b), F.linear(x[0, 0], m.t()), F.linear(x, m[:, 0])), X, M, M[0]),
    "einsum": lambda: (lambda x, y, m: (torch.einsum("abc,bc->ab", x, y), torch.einsum("abc,cd,bc->bd", x, m, y), torch.einsum("ij,kj", y, y)), X, Y, M),
    "einsum with dots": lambda: (lambda x, y, m: (torch.einsum("...c,cd->...d", x, m), torch.einsum("...c,...c", x, y), torch.einsum("a...,a...->...", x, x[:1]),
                                                  torch.einsum("a...,...->a", x, y), torch.einsum("abc->ca", x), torch.einsum("ij->ji", y), torch.einsum("abc,abc,cd->bd", x, x[:, :1], m)), X, Y, M),
    # attention
    "attention": lambda: (lambda q: (F.scaled_dot_product_attention(q, q * 2, q + 1), F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
                                     F.scaled_dot_product_attention(q, q, q, (q @ q.mT).tril() != 0)), torch.randn(2, 4, 5, 8)),
    "grouped attention": lambda: (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), torch.randn(2, 6, 5, 8), torch.randn(2, 2, 9, 8)),
    # indexing
    "lookups": lambda: (lambda x, i: (x.index_select(1, i), F.embedding(i, x[0]), x[:, i], x[i.clamp(max=2), i], x[:, i, i], x[i.clamp(max=2), :, i], x[-i.clamp(max=2)]),
                        X, torch.tensor([1, 0, 4, 2])),
    "gather": lambda: (lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i[:1], 1), F.one_hot(i, 5)), X, torch.randint(0, 5, (3, 2, 7))),
    "scatter": lambda: (lambda x, i: (x.scatter(1, i, 3.0), x.scatter(1, i[:, :1], x[:, :1]), x.scatter_add(1, i, x[:, :2]), x.scatter_reduce(1, i, x[:, :2], "amax")),
                        X, torch.randint(0, 5, (3, 2, 7)).sort(1).values),
    "index writes": lambda: (index_writes, X, torch.tensor([1, 0, 4])),
    # windows
    "convolutions": lambda: (lambda x, w, d, b: (F.conv2d(x, w, b, stride=2, padding=1), F.conv2d(x, d, groups=6, padding="same"), F.conv2d(x, w, dilation=2),
                                                 F.conv1d(x[:, :, 0], w[:, :, 0], padding=2), F.conv2d(x[0], w)),
                             IMAGE, torch.randn(4, 6, 3, 3), torch.randn(6, 1, 3, 2), torch.randn(4)),
    "adaptive pools": lambda: (lambda x: (F.adaptive_avg_pool2d(x, (4, 5)), F.adaptive_avg_pool2d(x, (12, 11)), F.adaptive_avg_pool2d(x, (1, 3)), F.adaptive_max_pool2d(x, (2, 11)), F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (9, 4)),
                                          F.adaptive_max_pool2d(x, (3, 11)), F.adaptive_avg_pool1d(x[0], 4), F.adaptive_max_pool1d(x[0], 7), F.adaptive_avg_pool3d(x[None], (4, 9, 2)), F.adaptive_max_pool3d(x[None], 5)), IMAGE),
    "pools": lambda: (lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2, ceil_mode=True),
                                 F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 11)), F.max_pool1d(x[:, 0], 3)), IMAGE),
}
# fmt: on
LARGE = torch.randn(3, 5, 7)


def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = x.clone(), x.clone()
    a[1, 2:4] = y[:2]
    a[:, 0].mul_(2)
    b[..., ::2] = 0
    b += 1
    b.transpose(0, 1).add_(1)
    return a, b


def index_writes(x: torch.Tensor, i: torch.Tensor) -> Any:
    a = x.clone()
    a[:, i] = 7.0
    a.index_add_(1, i, x[:, :3])
    return (
        a,
        x.index_copy(1, i, x[:, :3]),
        x.index_put((i % 3,), x[:, 0, :1].expand(3, 7)[:, None], accumulate=True),
    )


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("case", CASES)
def test_family(case: str, check: Any) -> None:
    fn, *args = CASES[case]()
    check(fn, *args, tolerance=2e-5)


@pytest.mark.parametrize(
    "case",
    [
        "variance",
        "softmax",
        "layer norm",
        "products",
        "linear",
        "attention",
        "batch norm",
        "losses",
    ],
)
def test_family_in_double(case: str, check: Any) -> None:
    fn, *args = CASES[case]()
    check(fn, *[a.double() if a.is_floating_point() else a for a in args], tolerance=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_round_where_torch_rounds(dtype: torch.dtype, check: Any) -> None:
    x = torch.randn(3, 5, 8).to(dtype)
    check(lambda x: (x * 0.1 + 3, x.mean(-1), x.softmax(-1), F.gelu(x), x / 3), x, tolerance=1e-3)
    check(nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6)).to(dtype), x, tolerance=2e-2)


def test_what_has_no_flow_form_becomes_extern(check: Any) -> None:
    captured = check(lambda x: (x.cummax(1)[1], torch.linalg.det(x[:, :5, :5])), X, externs=2)
    assert set(captured.externs) == {"aten::cummax", "aten::_linalg_det"}
