"""Language-model losses without logits, whole: compile_step, irc.compile and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.frontends.torch import linear_loss as dynamo
from irc.kernels import linear_loss

B, T, D, V = 2, 300, 12, 101
Loss = Callable[[nn.Linear, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stream however little it saves."""
    torch._dynamo.reset()
    monkeypatch.setattr(linear_loss, "MIN_BYTES", 1)
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Tokens, a layer, a head that may be tied to the tokens' table, and the loss."""

    def __init__(self, loss: Loss, *, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tokens = nn.Embedding(V, D)
        self.inner = nn.Linear(D, D)
        self.head = nn.Linear(D, V, bias=bias)
        if tied:
            self.head.weight = self.tokens.weight
        self.loss = loss

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.head, torch.tanh(self.inner(self.tokens(ids))), labels)


def mean(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).view(-1, V), labels.view(-1))


def shifted(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    """As Hugging Face's older models have it: cut, upcast, flat."""
    logits = head(h).float()[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, V), labels[..., 1:].contiguous().view(-1))


def padded(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    """As its newer ones do: labels are shifted, and the loss is a sum over a count."""
    moved = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    total = F.cross_entropy(head(h).float().view(-1, V), moved, ignore_index=-100, reduction="sum")
    return total / 77


def single(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(head(h).view(-1, V), labels.view(-1), reduction="none")
    return (each * torch.linspace(0, 1, B * T)).sum()


def smoothed(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).view(-1, V), labels.view(-1), label_smoothing=0.1)


def smoothed_single(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    logits = head(h).view(-1, V)
    each = F.cross_entropy(logits, labels.view(-1), label_smoothing=0.2, reduction="none")
    return (each * torch.linspace(0, 1, B * T)).sum()


def batch(seed: int = 0, *, ignored: str = "some") -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(0, V, (B, T), generator=draw) for _ in range(2))
    labels[0, 5:40] = -100
    return ids, torch.full_like(labels, -100) if ignored == "all" else labels


def eager(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = model(ids, labels)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return loss.detach(), dict(zip(names, grads, strict=True))


@pytest.mark.parametrize(
    ("loss", "tied"),
    [
        (mean, True),
        (shifted, False),
        (single, True),
        (smoothed, False),
        (smoothed_single, True),
        *(
            pytest.param(loss, tied, marks=pytest.mark.slow)
            for loss, tied in ((mean, False), (shifted, True), (padded, False), (padded, True),
                               (single, False))
        ),
    ],
)  # fmt: skip
def test_torch_compile_trains_as_eager(loss: Loss, tied: bool) -> None:
    model, (ids, labels) = Model(loss, tied=tied, bias=not tied), batch()
    want, grads = eager(model, ids, labels)
    fast = torch.compile(model, backend="irc")
    got = fast(ids, labels)
    got.backward()
    torch.testing.assert_close(got.detach(), want, rtol=1e-5, atol=1e-6)
    for name, value in model.named_parameters():
        assert value.grad is not None
        assert (value.grad - grads[name]).norm() < 1e-5 * grads[name].norm(), name


def test_torch_compile_hands_no_logits_to_its_backward_pass() -> None:
    """Its forward graph gives gradients of weights, and nothing as large as the logits."""
    model, (ids, labels) = Model(mean), batch()
    graphs: list[torch.fx.GraphModule] = []
    original = dynamo.stream_losses

    def spy(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[str]]:
        streamed = original(gm)
        graphs.append(streamed[0])
        return streamed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("irc.torch_backend.tracing.stream_losses", spy)
        torch.compile(model, backend="irc")(ids, labels).backward()
    assert [any(node.target is dynamo.linear_cross_entropy for node in gm.graph.nodes)
            for gm in graphs] == [True]  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "because"),
    [
        (lambda head, h, y: _with_logits(head, h, y), "others read its logits"),
        (
            lambda head, h, y: F.cross_entropy(
                head(h).view(-1, V), y.view(-1), torch.linspace(0.1, 1, V)
            ),
            "weights of classes",
        ),
        (
            lambda head, h, y: F.cross_entropy(torch.relu(head(h)).view(-1, V), y.view(-1)),
            "logits",
        ),
    ],
)
def test_torch_compile_keeps_logits_that_it_needs(loss: Loss, because: str) -> None:
    model, (ids, labels) = Model(loss), batch()
    want, grads = eager(model, ids, labels)
    reasons: list[str] = []
    original = dynamo.stream_losses

    def spy(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[str]]:
        streamed = original(gm)
        reasons.extend(streamed[1])
        return streamed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("irc.torch_backend.tracing.stream_losses", spy)
        got = torch.compile(model, backend="irc")(ids, labels)
    got.backward()
    assert because in str(reasons)
    torch.testing.assert_close(got.detach(), want, rtol=1e-5, atol=1e-6)
    weight = model.get_parameter("head.weight")
    assert weight.grad is not None
    assert (weight.grad - grads["head.weight"]).norm() < 1e-5 * weight.grad.norm()


def _with_logits(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    logits = head(h)
    return F.cross_entropy(logits.view(-1, V), labels.view(-1)) + 1e-3 * logits.square().mean()


@pytest.mark.parametrize(
    ("loss", "tied", "count"), [(shifted, True, 1), (shifted, False, 2), (smoothed, True, 1)]
)
def test_a_step_is_that_of_torch(loss: Loss, tied: bool, count: int) -> None:
    model, (ids, labels) = Model(loss, tied=tied), batch()
    ids, labels = (torch.cat([x, x.roll(7, 1)]) for x in (ids, labels))
    _, grads = _mean_of_parts(model, ids, labels, count)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    step = irc.compile_step(model, optimizer="sgd", micro_batches=count)
    step(ids, labels, lr=0.5)
    plan: Any = step.plan
    rows = ids.numel() // count - len(ids) // count
    parts = [plan] if count == 1 else [each for part in plan.parts for each in part.values()]
    assert max(prod(buffer.shape) for each in parts for buffer in each.plan.buffers) < rows * V
    for name, value in model.named_parameters():
        moved = before[name] - 0.5 * grads[name]
        torch.testing.assert_close(value.detach(), moved, rtol=1e-5, atol=1e-6, msg=name)


def _mean_of_parts(
    model: nn.Module, ids: Tensor, labels: Tensor, count: int
) -> tuple[Tensor, dict[str, Tensor]]:
    parts = [
        eager(model, *part) for part in zip(ids.chunk(count), labels.chunk(count), strict=True)
    ]
    mean_of = {name: sum(g[name] for _, g in parts) / count for name in parts[0][1]}
    return sum(loss for loss, _ in parts) / count, mean_of  # type: ignore[return-value]


def test_where_no_row_counts_the_mean_is_no_number_and_gradients_are_zero() -> None:
    model, (ids, labels) = Model(mean), batch(ignored="all")
    want, grads = eager(model, ids, labels)
    got = torch.compile(model, backend="irc")(ids, labels)
    got.backward()
    assert torch.isnan(want)
    assert torch.isnan(got)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.grad, grads[name], msg=name)


def test_bfloat16_is_as_close_as_torch_is() -> None:
    model, (ids, labels) = Model(shifted), batch()
    want, exact = eager(model.double(), ids, labels)
    model = model.bfloat16()
    _, theirs = eager(model, ids, labels)
    got = torch.compile(model, backend="irc")(ids, labels)
    got.backward()
    assert abs(float(got.detach()) - float(want)) < 2e-2
    for name, value in model.named_parameters():
        assert value.grad is not None
        own, other = (
            (g.double() - exact[name]).norm() / exact[name].norm()
            for g in (value.grad, theirs[name])
        )
        assert own < 1.5 * other + 1e-2, name


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_streams_in_bfloat16(inside: bool) -> None:
    """The region is around the call, or in the graph; gradients are as near as torch's own are."""

    def cast(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return mean(head, h, labels)

    model, (ids, labels) = Model(cast if inside else mean, bias=True), batch()
    want, exact = eager(Model(mean, bias=True).double(), ids, labels)
    streams: list[list[str]] = []
    original = dynamo.stream_losses

    def spy(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[str]]:
        streamed = original(gm)
        streams.append(streamed[1])
        return streamed

    fast = torch.compile(model, backend="irc")
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16, not inside):
        patch.setattr("irc.torch_backend.tracing.stream_losses", spy)
        _, theirs = eager(model, ids, labels)
        got = fast(ids, labels)
    got.backward()
    assert streams == [[]]
    assert got.dtype == torch.float32
    assert abs(float(got.detach()) - float(want)) < 1e-2
    for name, value in model.named_parameters():
        assert value.grad is not None
        assert value.grad.dtype == torch.float32
        own, other = (
            (g.double() - exact[name]).norm() / exact[name].norm()
            for g in (value.grad, theirs[name])
        )
        assert own < 1.5 * other + 1e-2, name


def test_the_loss_alone_has_no_logits() -> None:
    model, (ids, labels) = Model(shifted).eval(), batch()
    with torch.no_grad():
        want = model(ids, labels)
        got = irc.compile(model)(ids, labels)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_labels_outside_the_classes_are_refused() -> None:
    model, (ids, labels) = Model(mean), batch()
    labels[1, 4] = V
    step = irc.compile_step(model, optimizer="sgd")
    before = model.head.weight.detach().clone()
    with pytest.raises((IndexError, IrcError)):
        step(ids, labels, lr=0.5)
    assert torch.equal(before, model.head.weight)
