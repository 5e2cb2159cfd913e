"""A small residual network: convolutions, batch normalisation, pools."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class CNN(nn.Module):
    """A stem, residual blocks, a head."""

    def __init__(self, channels: int = 12, blocks: int = 3, classes: int = 7) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 5, stride=2, padding=2),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Return class scores."""
        x = self.blocks(self.stem(image))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
