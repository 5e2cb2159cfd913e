"""torch.compile(backend="irc") trains convolutional nets in kernels of irc's own, as torch does."""

# pyright: basic
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.torch_backend.counts import counters


class Residual(nn.Module):
    """Two convolutions and a way around, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + self.around(x))


class Narrow(nn.Module):
    """An inverted residual, as in MobileNetV2."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        wide = 6 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def stem(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )  # fmt: skip


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


class UNet(nn.Module):
    """Down by a pool, up by a transposed convolution."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()

        def two(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
            )  # fmt: skip

        self.down, self.middle = two(3, channels), two(channels, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.end, self.out = two(2 * channels, channels), nn.Conv2d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        y = self.up(self.middle(F.max_pool2d(a, 2)))
        return self.out(self.end(torch.cat([y, a], 1)))


def resnet() -> nn.Module:
    return nn.Sequential(stem(16), Residual(16, 32, 2), Residual(32, 32, 1), head(32))


def mobilenet() -> nn.Module:
    return nn.Sequential(stem(16), Narrow(16, 2), Narrow(16, 1), head(16))


def gradients(module: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    run(x).square().mean().backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (mobilenet, 45),
        pytest.param(resnet, 47, marks=pytest.mark.slow),
        pytest.param(UNet, 20, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_eagers_and_no_library_computes_them(make: Any, size: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 3, size, size)
    wide = copy.deepcopy(module).double()
    counters.clear()
    compiled_gradients = gradients(module, torch.compile(module, backend="irc"), x)
    assert counters["backward"] == 1
    assert not [name for name in counters if name.startswith("extern")]
    wanted = gradients(wide, wide, x.double())
    largest = max(float(want.abs().max()) for want in wanted)
    for value, want in zip(compiled_gradients, wanted, strict=True):
        assert float((value.double() - want).abs().max()) < 1e-4 * largest


def test_saved_images_go_from_forward_to_backward_channels_last() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    y = torch.compile(module, backend="irc")(x)
    assert y.grad_fn is not None
    saved = [t for t in y.grad_fn.saved_tensors if t.ndim == 4 and t.shape[1] == 8]
    saved = [t for t in saved if t.shape[2:] == (7, 6)]
    assert saved
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in saved)
    y.square().sum().backward()
    other = x.detach().clone().requires_grad_()
    module(other).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-4)
