"""Each distinct convolution of ResNet-50 against oneDNN on prepacked weights, and the FMA peak.

Targets (exit status 1 when one is missed), float32, 2 threads, batch 1, images of 224:
  peak    at least 80 % of the peak of multiply-adds, weighted by arithmetic
  oneDNN  no slower in sum, each layer counted as often as the model has it (1.00)
  error   at most 4 times oneDNN's own, relative to float64

Both take and give channels-last memory, with weights packed once; irc through its compiled module,
oneDNN through torch's ``mkldnn._convolution_pointwise``. Blocks of calls alternate; the table has
medians. The peak is measured in the same run. ``--grouped`` adds layers of MobileNet and ResNeXt,
without a target.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

from tests.benchmarks.limits import peak_flops

THREADS = 2
LEAST_PEAK, LEAST_SPEED, MOST_ERROR = 0.8, 1.0, 4.0


@dataclass(frozen=True)
class Layer:
    """A convolution: channels in and out, window, stride, image, how often, groups."""

    inputs: int
    outputs: int
    window: int
    stride: int
    size: int
    count: int = 1
    groups: int = 1

    @property
    def places(self) -> int:
        """The size of the result."""
        return (self.size + 2 * (self.window // 2) - self.window) // self.stride + 1

    @property
    def flops(self) -> int:
        """Arithmetic of one call."""
        depth = self.inputs // self.groups * self.window**2
        return 2 * self.places**2 * self.outputs * depth


RESNET50 = (
    Layer(3, 64, 7, 2, 224), Layer(64, 64, 1, 1, 56), Layer(64, 64, 3, 1, 56, 3),
    Layer(64, 256, 1, 1, 56, 4), Layer(256, 64, 1, 1, 56, 2), Layer(256, 128, 1, 1, 56),
    Layer(128, 128, 3, 2, 56), Layer(256, 512, 1, 2, 56), Layer(128, 512, 1, 1, 28, 4),
    Layer(512, 128, 1, 1, 28, 3), Layer(128, 128, 3, 1, 28, 3), Layer(512, 256, 1, 1, 28),
    Layer(256, 256, 3, 2, 28), Layer(512, 1024, 1, 2, 28), Layer(256, 1024, 1, 1, 14, 6),
    Layer(1024, 256, 1, 1, 14, 5), Layer(256, 256, 3, 1, 14, 5), Layer(1024, 512, 1, 1, 14),
    Layer(512, 512, 3, 2, 14), Layer(1024, 2048, 1, 2, 14), Layer(512, 2048, 1, 1, 7, 3),
    Layer(2048, 512, 1, 1, 7, 2), Layer(512, 512, 3, 1, 7, 2),
)  # fmt: skip
GROUPED = (
    Layer(32, 32, 3, 1, 112, 1, 32), Layer(96, 96, 3, 2, 112, 1, 96),
    Layer(144, 144, 3, 1, 56, 1, 144), Layer(384, 384, 3, 1, 14, 1, 384),
    Layer(960, 960, 3, 1, 7, 1, 960), Layer(96, 96, 7, 1, 56, 1, 96),
    Layer(128, 128, 3, 1, 56, 1, 32), Layer(512, 512, 3, 1, 14, 1, 32),
    Layer(64, 128, 3, 1, 28, 1, 4),
)  # fmt: skip
QUICK = tuple(RESNET50[i] for i in (2, 8, 14, 15, 20))


@dataclass(frozen=True)
class Row:
    """What was measured of a layer: seconds of irc and oneDNN, and their errors."""

    layer: Layer
    irc_s: float
    onednn_s: float
    irc_error: float
    onednn_error: float


class ChannelsLast(nn.Module):
    """A convolution of images whose memory is [N, H, W, C]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the result in the same form."""
        return self.inner(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def contenders(layer: Layer) -> tuple[nn.Conv2d, dict[str, Callable[[], torch.Tensor]]]:
    """Return the module, and calls without arguments that give [N, H, W, C]."""
    import irc

    torch.manual_seed(0)
    around, stride = [layer.window // 2] * 2, [layer.stride] * 2
    module = nn.Conv2d(
        layer.inputs, layer.outputs, layer.window, stride=layer.stride, padding=around[0],
        groups=layer.groups,
    ).eval()  # fmt: skip
    x = torch.randn(1, layer.size, layer.size, layer.inputs)
    image = x.permute(0, 3, 1, 2)
    mkldnn = torch.ops.mkldnn
    weight = mkldnn._reorder_convolution_weight(
        module.weight, around, stride, [1, 1], layer.groups, list(image.shape)
    )
    options = (module.bias, around, stride, [1, 1], layer.groups, "none", [], "")
    fast = irc.compile(ChannelsLast(module).eval())
    return module, {
        "irc": lambda: fast(x),
        "onednn": lambda: mkldnn._convolution_pointwise(image, weight, *options).permute(
            0, 2, 3, 1
        ),
        "float64": lambda: ChannelsLast(module.double())(x.double()),
    }


@torch.no_grad()
def measure(layer: Layer, seconds: float) -> Row:
    """Time both, in turns."""
    module, calls = contenders(layer)
    wanted = calls["float64"]()
    module.float()
    scale = float(wanted.abs().max())
    names = ("irc", "onednn")
    errors = [float((calls[n]().double() - wanted).abs().max()) / scale for n in names]
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["irc"]) < 12:
        for name in names:
            calls[name]()
            for _ in range(4):
                start = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - start)
    ours, theirs = (median(times[name]) for name in names)
    return Row(layer, ours, theirs, errors[0], errors[1])


def show(row: Row, peak: float) -> None:
    """Print a line of the table."""
    at = row.layer
    shape = f"{at.inputs}x{at.size}x{at.size} -> {at.outputs}, {at.window}x{at.window}/{at.stride}"
    groups = f", {at.groups} groups" if at.groups > 1 else ""
    print(
        f"{shape + groups:<38}{at.count:>3}{row.irc_s * 1e3:>9.3f}{row.onednn_s * 1e3:>9.3f}"
        f"{at.flops / row.irc_s / 1e9:>8.0f}{at.flops / row.onednn_s / 1e9:>8.0f}"
        f"{at.flops / row.irc_s / peak:>7.0%}{row.onednn_s / row.irc_s:>7.2f}{row.irc_error:>9.1e}",
        flush=True,
    )


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five layers")
    parser.add_argument("--grouped", action="store_true", help="also depthwise and grouped layers")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    peak = peak_flops(THREADS)
    print(f"peak {peak / 1e9:.0f} GF/s, {THREADS} threads")
    print(
        f"{'layer':<38}{'x':>3}{'irc ms':>9}{'1dnn ms':>9}{'GF/s':>8}{'GF/s':>8}"
        f"{'peak':>7}{'speed':>7}{'error':>9}"
    )
    rows: list[Row] = []
    layers = QUICK if args.quick else RESNET50
    for layer in (*layers, *(GROUPED if args.grouped else ())):
        rows.append(measure(layer, 0.1 if args.quick else 0.3))
        show(rows[-1], peak)
    if args.json:
        figures = {"cores": os.cpu_count(), "peak": peak, "rows": [asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return _verdict(rows[: len(layers)], peak)


def _verdict(rows: list[Row], peak: float) -> int:
    ours = sum(row.irc_s * row.layer.count for row in rows)
    theirs = sum(row.onednn_s * row.layer.count for row in rows)
    reached = sum(row.layer.flops * row.layer.count for row in rows) / ours / peak
    error = max(row.irc_error / max(row.onednn_error, 1e-8) for row in rows)
    met = reached >= LEAST_PEAK and theirs / ours >= LEAST_SPEED and error <= MOST_ERROR
    print(
        f"convolution: {ours * 1e3:.1f} ms, {reached:.0%} of the peak (target {LEAST_PEAK:.0%}), "
        f"{theirs / ours:.2f} of oneDNN's speed (target {LEAST_SPEED:.2f}), "
        f"error {error:.1f} of oneDNN's (target {MOST_ERROR:.0f}): {'all met' if met else 'missed'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
