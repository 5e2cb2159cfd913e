"""Programs of real sizes, planned on published hardware and never run, and what plans are asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.train import add_training

BF16 = torch.bfloat16
NODE = "8xH100"


class Plan:
    """A sharded program and questions about it."""

    def __init__(self, module: ModuleOp) -> None:
        self.module = module
        report = module.attributes["irc.plan_cost"]
        assert isinstance(report, StringAttr)
        self.report: dict[str, Any] = json.loads(report.data)

    @property
    def seconds(self) -> float:
        return self.report["added_up_s"]

    def ops(self, name: str, **attrs: Any) -> list[FlowOp]:
        named = [op for op in self.module.walk() if isinstance(op, FlowOp) and op.name == name]
        return [op for op in named if all(op.plain.get(k) == v for k, v in attrs.items())]

    def parameter(self, name: str) -> Any:
        known = {n: v for _, n, v in arguments(entry(self.module))}
        return placed(known[name])

    def boxings(self, size: int = 0) -> Iterator[tuple[Any, Any, int]]:
        """Yield what each boxing changes on the only axis, of tensors of at least ``size``."""
        for op in self.module.walk():
            if isinstance(op, BoxingOp):
                count = 1
                for dim in tensor(op.outputs[0]).static_shape():
                    count *= dim
                if count >= size:
                    yield placed(op.inputs[0]), placed(op.outputs[0]), count

    def reason(self, other: Plan | None = None) -> None:
        """Print the deciding op against its runner-up, and this plan against another."""
        rows = [row for row in self.report["ops"] if "runner_up" in row]
        row = max(rows, key=lambda r: r["seconds"] * r["count"])
        print(f"\n{row['id']}: {row['chosen']} takes {row['seconds'] * 1e6:.0f} us;")
        print(f"  {row['runner_up']} would cost {row['more_s'] * 1e6:.0f} us more")
        if other is not None:
            print(f"  plan {self.seconds * 1e6:.0f} us, the other {other.seconds * 1e6:.0f} us")


def placed(value: Any, axis: int = 0) -> Any:
    placement = tensor(value).placement
    assert isinstance(placement, Placement)
    return placement.axes[axis][1]


def sharded(
    model: nn.Module, *args: Tensor, mesh: str, cluster: str = NODE, **options: Any
) -> Plan:
    module = capture(model.to("meta"), args).program.module
    CanonicalizePass().apply(context(), module)
    AutoShardPass(mesh=mesh, cluster=cluster, **options).apply(context(), module)
    return Plan(module)


def empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


class Mlp(nn.Module):
    """Two matmuls."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False, dtype=BF16)
        self.down = nn.Linear(inner, width, bias=False, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, width, bias=False, dtype=BF16) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, h = x.shape
        projected = [f(x).view(b, t, self.heads, -1) for f in (self.q, self.k, self.v)]
        q, k, v = (value.transpose(1, 2) for value in projected)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, h))


class Layers(nn.Module):
    """A transformer without its ends."""

    def __init__(self, count: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = (nn.RMSNorm(width, eps=1e-5, dtype=BF16) for _ in range(2))
        self.attention, self.mlp = Attention(width, heads), Mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    """A transformer that gives its loss."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=BF16)
        self.body = Layers(layers, width, heads)
        self.norm = nn.RMSNorm(width, eps=1e-5, dtype=BF16)
        self.head = nn.Linear(width, vocabulary, bias=False, dtype=BF16)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        h = self.norm(self.body(self.embed(tokens)))
        return F.cross_entropy(self.head(h).flatten(0, 1).float(), labels.flatten())


def model(*args: Any, **options: Any) -> Model:
    """Return a model without weights."""
    with torch.device("meta"):
        return Model(*args, **options)


def tokens(batch: int, length: int) -> Tensor:
    """Return token numbers without values."""
    return torch.empty(batch, length, dtype=torch.int64, device="meta")


def trained(
    net: nn.Module,
    *args: Tensor,
    mesh: str,
    cluster: str = NODE,
    optimizer: str = "adamw",
    **options: Any,
) -> Plan:
    """Plan one step of training."""
    program = capture(net, args).program
    add_training(program, optimizer=optimizer)
    AutoShardPass(mesh=mesh, cluster=cluster, **options).apply(context(), program.module)
    return Plan(program.module)
