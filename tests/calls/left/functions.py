"""Functions that take functions: transforms, control flow of torch, checkpoints, own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, func, nn
from torch._higher_order_ops import associative_scan as associative
from torch._higher_order_ops import scan as scanned
from torch._higher_order_ops import while_loop as looped
from torch._higher_order_ops.map import map as mapped
from torch.utils.checkpoint import checkpoint

from tests.calls.left.case import Call, numbers


def vmap() -> Call:
    return Call(lambda x, y: func.vmap(torch.dot)(x, y), (numbers(3, 4), numbers(3, 4)))


def vmap_itself() -> Call:
    return Call(func.vmap(lambda a, b: a @ b), (numbers(3, 4, 4), numbers(3, 4, 4)))


def grad() -> Call:
    return Call(lambda x: func.grad(lambda v: (v.sin() ** 2).sum())(x), (numbers(3, 4),))


def grad_itself() -> Call:
    return Call(func.grad(lambda v: (v.sin() ** 2).sum()), (numbers(3, 4),))


def jacrev() -> Call:
    return Call(lambda x: func.jacrev(lambda v: v.sin() * v.sum())(x), (numbers(4),))


def jacfwd() -> Call:
    return Call(lambda x: func.jacfwd(lambda v: v.sin() * v.sum())(x), (numbers(4),))


def hessian() -> Call:
    return Call(lambda x: func.hessian(lambda v: (v.sin() ** 3).sum())(x), (numbers(4),))


def jvp() -> Call:
    def along(x: Tensor, tangent: Tensor) -> Any:
        return func.jvp(lambda v: v.sin() * v.sum(), (x,), (tangent,))

    return Call(along, (numbers(4), numbers(4) + 1))


def vjp() -> Call:
    def back(x: Tensor, weight: Tensor) -> Any:
        value, pull = func.vjp(lambda v: v.sin() * v.sum(), x)
        return value, pull(weight)

    return Call(back, (numbers(4), numbers(4) + 1))


def gradients_of_samples() -> Call:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    held = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return func.functional_call(layer, weights, (x,)).pow(2).sum()

    per_sample = func.vmap(func.grad(loss), (None, 0))
    return Call(lambda weights, x: per_sample(weights, x), (held, numbers(5, 4)))


class Checkpointed(nn.Module):
    """Two layers, of which the first is computed again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        kept = checkpoint(lambda v: self.first(v).relu(), x, use_reentrant=self.reentrant)
        return self.second(kept)


def checkpointed() -> Call:
    return Call(Checkpointed(reentrant=False), (numbers(3, 4),))


def checkpointed_reentrant() -> Call:
    return Call(Checkpointed(reentrant=True), (numbers(3, 4),))


def autograd_inside() -> Call:
    def derivative(x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            return torch.autograd.grad(v.sin().sum(), v)[0] + 1

    return Call(derivative, (numbers(3, 4),))


def autograd_function() -> Call:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp() * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * x.exp() * 2

    return Call(lambda x: Twice.apply(x) + 1, (numbers(3, 4),))


def cond() -> Call:
    def either(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v.sin() + 1, lambda v: v.cos() * 2, (x,)) * 2

    return Call(either, (numbers(3, 4),))


def cond_of_layers() -> Call:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            def one(v: Tensor) -> Tensor:
                return self.first(v).relu()

            return torch.cond(x.sum() > 0, one, self.second.forward, (x,)).exp()

    return Call(Either(), (numbers(3, 4),))


def cond_in_cond() -> Call:
    def inner(v: Tensor) -> Tensor:
        return torch.cond(v.sum() > 1, lambda w: w * 3, lambda w: w - 1, (v,))

    def outer(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 0, lambda v: inner(v) + 1, lambda v: v.cos(), (x * 2,))

    return Call(outer, (numbers(3, 4),))


def while_loop() -> Call:
    def grown(x: Tensor) -> Tensor:
        def goes_on(i: Tensor, _: Tensor) -> Tensor:
            return i < 5

        def body(i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, v * 1.1 + 1

        return looped(goes_on, body, (torch.tensor(0), x * 2))[1] + 1

    return Call(grown, (numbers(3, 4),))


def scan() -> Call:
    def step(carry: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return carry * 0.5 + v, carry + v.sin()

    return Call(lambda x: scanned(step, torch.zeros(4), x * 2, dim=0), (numbers(5, 4),))


def associative_scan() -> Call:
    def summed(x: Tensor) -> Tensor:
        return associative(lambda a, b: a * b + a, x * 2, dim=0, combine_mode="generic")

    return Call(summed, (numbers(5, 4),))


def map_over_rows() -> Call:
    def rows(x: Tensor, y: Tensor) -> Tensor:
        return mapped(lambda v, w: v.sin() @ w, x, y)

    return Call(rows, (numbers(5, 4, 4), numbers(4, 4)))


def _own_ops() -> None:
    if hasattr(torch.ops.irc_tests_left, "scale_"):
        return

    @torch.library.custom_op("irc_tests_left::scale_", mutates_args=("x",))
    def scale_(x: Tensor, by: float) -> None:
        x.mul_(by)

    @torch.library.custom_op("irc_tests_left::doubled_into", mutates_args=("out",))
    def doubled_into(x: Tensor, out: Tensor) -> Tensor:
        out.copy_(x * 2)
        return x.sum(0)

    @doubled_into.register_fake
    def _(x: Tensor, _: Tensor) -> Tensor:
        return x.new_empty(x.shape[1:])


def mutating_op() -> Call:
    _own_ops()

    def scaled(x: Tensor) -> Tensor:
        y = x * 2
        torch.ops.irc_tests_left.scale_(y, 3.0)
        return y + 1

    return Call(scaled, (numbers(3, 4),))


def mutating_op_on_an_input() -> Call:
    _own_ops()

    def scaled(x: Tensor) -> Tensor:
        torch.ops.irc_tests_left.scale_(x, 3.0)
        return x + 1

    return Call(scaled, (numbers(3, 4),))


def mutating_op_with_a_result() -> Call:
    _own_ops()

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.empty_like(x)
        total = torch.ops.irc_tests_left.doubled_into(x, y)
        return total + y.sum(0), y

    return Call(both, (numbers(3, 4),))


def overload_packets() -> Call:
    aten = torch.ops.aten

    def function(x: Tensor) -> Tensor:
        return aten.to(aten.add(x, 1) + aten.sum(x, [0]), torch.float64)

    return Call(function, (numbers(3, 4),))


def overload_packet_in_a_graph() -> Call:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.to, (x, torch.float64)),))
    return Call(torch.fx.GraphModule(nn.Module(), graph), (numbers(3, 4),))


def nested_150_deep() -> Call:
    class Around(nn.Module):
        def __init__(self, inner: Callable[..., Any]) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 0.1

    torch.manual_seed(0)
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(150):
        model = Around(model)
    return Call(model, (numbers(3, 4),))
