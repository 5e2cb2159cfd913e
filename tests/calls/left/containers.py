"""What functions take and return: objects, sparse and nested tensors, subclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.calls.left.case import Call, numbers


@dataclass
class Pair:
    """A dataclass that torch's trees do not know."""

    first: Any
    second: Any


class Named(NamedTuple):
    """A tuple with names."""

    first: Any
    second: Any


class Holder:
    """An object that is nothing else."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Marked(Tensor):
    """A tensor of another class."""


def dataclass_in() -> Call:
    return Call(lambda p: p.first * 2 + p.second, (Pair(numbers(3, 4), numbers(3, 4)),))


def dataclass_out() -> Call:
    return Call(lambda x: Pair(x * 2, [x + 1, None, "a"]), (numbers(3, 4),))


def dataclass_of_a_module() -> Call:
    class Paired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)

        def forward(self, p: Pair) -> Pair:
            return Pair(self.layer(p.first), p.second)

    return Call(Paired(), (Pair(numbers(3, 4), 2),))


def object_in() -> Call:
    return Call(lambda p: p.value * 2, (Holder(numbers(3, 4)),))


def object_out() -> Call:
    return Call(lambda x: Holder(x * 2), (numbers(3, 4),))


def namedtuple() -> Call:
    return Call(lambda p: Named(p.first * 2, p.second), (Named(numbers(3, 4), 3),))


def structures() -> Call:
    def function(a: Any) -> Any:
        other = (a["p"][1], None, "s", 1, 2.5, 1j, True)
        return {"x": a["p"][0] * 2, "y": other, "z": [a["q"]]}

    return Call(function, ({"p": [numbers(3, 4), numbers(2)], "q": None},))


def complex_number() -> Call:
    return Call(lambda x, c: (x * c).real, (numbers(3, 4), 1 + 2j))


def numbers_alone() -> Call:
    return Call(lambda a, b: a + b, (1, 2.5))


def word() -> Call:
    return Call(lambda x, mode: x.relu() if mode == "r" else x, (numbers(3, 4), "r"))


def set_of_numbers() -> Call:
    return Call(lambda x, s: x * len(s), (numbers(3, 4), {1, 2}))


def dtype() -> Call:
    return Call(lambda x, d: x.to(d), (numbers(3, 4), torch.float64))


def device() -> Call:
    return Call(lambda x, d: x.to(d) + 1, (numbers(3, 4), torch.device("cpu")))


def slice_of_rows() -> Call:
    return Call(lambda x, s: x[s] + 1, (numbers(3, 4), slice(0, 2)))


def module_in() -> Call:
    torch.manual_seed(0)
    return Call(lambda m, x: m(x) + 1, (nn.Linear(4, 3), numbers(3, 4)))


def function_in() -> Call:
    return Call(lambda f, x: f(x) + 1, (torch.sin, numbers(3, 4)))


def numpy_in() -> Call:
    return Call(lambda a: torch.as_tensor(a) * 2, (numbers(3, 4).numpy(),))


def on_meta() -> Call:
    return Call(lambda x: x + 1, (torch.empty(3, 4, device="meta"),))


def subclass() -> Call:
    return Call(lambda x: x * 2, (numbers(3, 4).as_subclass(Marked),))


def generator_inside() -> Call:
    return Call(lambda x: [row * 2 for row in x.unbind(0)], (numbers(3, 4),))


def sparse_in() -> Call:
    matrix = numbers(3, 3).relu().to_sparse()
    return Call(lambda x, y: torch.sparse.mm(x, y) + 1, (matrix, numbers(3, 4)))


def csr_in() -> Call:
    return Call(lambda x, y: (x @ y) + 1, (numbers(3, 3).relu().to_sparse_csr(), numbers(3, 4)))


def sparse_inside() -> Call:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.sparse.mm(x.relu().to_sparse(), y).relu()

    return Call(product, (numbers(3, 3), numbers(3, 4)))


def sparse_out() -> Call:
    return Call(lambda x: (x.relu() * 2).to_sparse(), (numbers(3, 3),))


def jagged_in() -> Call:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    rows = torch.nested.nested_tensor([numbers(3, 4), numbers(2, 4)], layout=torch.jagged)
    return Call(lambda n: layer(n).values().relu(), (rows,))


def jagged_through() -> Call:
    rows = torch.nested.nested_tensor([numbers(3, 4), numbers(2, 4)], layout=torch.jagged)
    return Call(lambda n: n.relu() * 2, (rows,))


def jagged_inside() -> Call:
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return (torch.nested.nested_tensor([x, y], layout=torch.jagged) * 2).values()

    return Call(joined, (numbers(3, 4), numbers(2, 4)))


def nested_in() -> Call:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    rows = torch.nested.nested_tensor([numbers(3, 4), numbers(2, 4)])
    return Call(lambda n: layer(n).to_padded_tensor(0.0).relu(), (rows,))


def quantized_inside() -> Call:
    def rounded(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1

    return Call(rounded, (numbers(3, 4),))


def quantized_layers() -> Call:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return Call(torch.ao.quantization.quantize_dynamic(model, {nn.Linear}), (numbers(3, 8),))


def float8() -> Call:
    return Call(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) * 2, (numbers(3, 4),))
