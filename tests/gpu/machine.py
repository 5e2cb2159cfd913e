"""Slice ``machine``: what the device can do, by torch, for reading the other figures."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.gpu.launching import DEVICE, seconds

COPY_BYTES = 1 << 30
PRODUCT = 8192


def figures() -> Iterator[tuple[str, float]]:
    """Yield what was measured: memory read and written, and products of two dtypes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    taken = seconds(lambda: target.copy_(source), recorded=True)
    yield "copy, GB/s read and written", 2 * COPY_BYTES / taken / 1e9
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(PRODUCT, PRODUCT, device=DEVICE).to(dtype) for _ in range(2))
        taken = seconds(lambda a=a, b=b: a @ b, recorded=True)
        name = str(dtype).removeprefix("torch.")
        yield f"matmul of {PRODUCT} in {name}, TF/s", 2 * PRODUCT**3 / taken / 1e12
