"""ResNeXt (Xie et al. 2017, arXiv:1611.05431): residual blocks of grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


def _convolved(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """A convolution and batch normalisation."""
    layer = nn.Conv2d(
        in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(layer, nn.BatchNorm2d(out_channels))


class Bottleneck(nn.Module):
    """1x1, 3x3 in groups, 1x1, and a way around them."""

    def __init__(
        self, in_channels: int, inner: int, out_channels: int, stride: int, groups: int
    ) -> None:
        super().__init__()
        self.reduce = _convolved(in_channels, inner, 1)
        self.grouped = _convolved(inner, inner, 3, stride, groups)
        self.expand = _convolved(inner, out_channels, 1)
        turned = in_channels != out_channels or stride != 1
        self.around = _convolved(in_channels, out_channels, 1, stride) if turned else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        y = F.relu(self.grouped(F.relu(self.reduce(x))))
        return F.relu(self.expand(y) + self.around(x))


class ResNeXt(nn.Module):
    """ResNeXt-50 (32x4d) unless told otherwise.

    Args:
        depths: blocks of each stage.
        groups: of the 3x3 convolutions.
        width: channels of a group in the first stage; each stage doubles them.
        classes: scores.
    """

    def __init__(
        self,
        depths: Sequence[int] = (3, 4, 6, 3),
        groups: int = 32,
        width: int = 4,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        inner = groups * width
        stem = 64 * inner // 128
        self.stem = nn.Sequential(
            _convolved(3, stem, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks: list[nn.Module] = []
        in_channels = stem
        for stage, depth in enumerate(depths):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(in_channels, inner, 2 * inner, stride, groups))
                in_channels = 2 * inner
            inner *= 2
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(in_channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Return class scores."""
        x = self.blocks(self.stem(image))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
