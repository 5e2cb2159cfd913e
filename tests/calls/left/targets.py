"""What can be compiled: modules, functions of every sort, exported programs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.calls.left.case import Call, numbers

WEIGHT = numbers(3, 4)


class Plain:
    """An object that can be called, and that has methods of each sort."""

    factor: ClassVar[int] = 3

    def __init__(self) -> None:
        self.weight = numbers(3, 4)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight

    @staticmethod
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @classmethod
    def scaled(cls, x: Tensor) -> Tensor:
        return x * cls.factor


def exported_program() -> Call:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return Call(torch.export.export(model, (numbers(3, 4),)), (numbers(3, 4),))


def exported_module() -> Call:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return Call(torch.export.export(model, (numbers(3, 4),)).module(), (numbers(3, 4),))


def scripted() -> Call:
    def function(x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x * 2
        return x

    return Call(torch.jit.script(function), (numbers(3, 4),))


def generator_function() -> Call:
    def rows(x: Tensor) -> Iterator[Tensor]:
        for row in x.unbind(0):
            yield row * 2

    return Call(rows, (numbers(3, 4),))


def closure() -> Call:
    weight = numbers(3, 4)
    return Call(lambda x: x * weight, (numbers(3, 4),))


def closure_over_a_parameter() -> Call:
    weight = nn.Parameter(numbers(3, 4))
    return Call(lambda x: x * weight, (numbers(3, 4),))


def closure_over_a_module() -> Call:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    return Call(lambda x: layer(x).relu(), (numbers(3, 4),))


def global_tensor() -> Call:
    return Call(lambda x: x * WEIGHT, (numbers(3, 4),))


def keywords_alone() -> Call:
    def function(*, x: Tensor, y: int = 2) -> Tensor:
        return x * y

    return Call(function, (), {"x": numbers(3, 4)})


def stars() -> Call:
    class Stars(nn.Module):
        def forward(self, *parts: Tensor, **named: Any) -> Any:
            return sum(parts) * named.get("z", 1)

    return Call(Stars(), (numbers(3, 4), numbers(3, 4)), {"z": numbers(3, 4)})


def no_arguments() -> Call:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)

        def forward(self) -> Tensor:
            return self.layer.weight * 2

    return Call(Alone())


def returns_none() -> Call:
    def write(x: Tensor) -> None:
        x.mul_(2)

    return Call(write, (numbers(3, 4),))


def does_nothing() -> Call:
    return Call(lambda x: None, (numbers(3, 4),))


def partial() -> Call:
    def function(a: Tensor, x: Tensor, b: int = 1) -> Tensor:
        return a * x + b

    return Call(functools.partial(function, numbers(3, 4), b=3), (numbers(3, 4),))


def partial_of_torch() -> Call:
    return Call(functools.partial(F.softmax, dim=-1), (numbers(3, 4),))


def method_of_a_module() -> Call:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)

        def encode(self, x: Tensor) -> Tensor:
            return self.layer(x).relu()

    return Call(Encoder().encode, (numbers(3, 4),))


def callable_object() -> Call:
    return Call(Plain(), (numbers(3, 4),))


def static_method() -> Call:
    return Call(Plain.doubled, (numbers(3, 4),))


def class_method() -> Call:
    return Call(Plain.scaled, (numbers(3, 4),))


def builtin_of_torch() -> Call:
    return Call(torch.ones_like, (numbers(3, 4),))


def builtin_with_a_number() -> Call:
    return Call(torch.max, (numbers(3, 4), 1))


def builtin_of_python() -> Call:
    return Call(operator.add, (numbers(3, 4), numbers(3, 4)))


def length() -> Call:
    return Call(len, (numbers(3, 4),))


def tensor_method() -> Call:
    return Call(Tensor.relu, (numbers(3, 4),))


def functional() -> Call:
    return Call(F.interpolate, (numbers(1, 2, 4, 4),), {"scale_factor": 2.0})


def functional_loss() -> Call:
    return Call(F.mse_loss, (numbers(3, 4), numbers(3, 4) + 1))


def overload() -> Call:
    return Call(torch.ops.aten.add.Tensor, (numbers(3, 4), numbers(3, 4)))


def packet() -> Call:
    return Call(torch.ops.aten.add, (numbers(3, 4), numbers(3, 4)))


def lazy_layer() -> Call:
    torch.manual_seed(0)
    return Call(nn.LazyLinear(4), (numbers(3, 4),))


def weight_norm() -> Call:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    return Call(layer, (numbers(3, 4),))
