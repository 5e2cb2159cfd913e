"""Slice ``foreach``: the step of an optimiser over all parameters of a model, checked and raced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from irc.dialects.task import KernelOp
from irc.runtime.dtypes import dtypes
from tests.backends.foreach_kernels import inputs_of, steps
from tests.gpu import launching

Inputs = list[torch.Tensor]
LAYERS, HIDDEN = 12, 768
"""GPT-2 small: 148 tensors, 124 million parameters."""


def gpt2_lengths() -> list[int]:
    """Return the sizes of GPT-2 small's parameters.

    >>> len(gpt2_lengths()), sum(gpt2_lengths())
    (148, 124439808)
    """
    h = HIDDEN
    layer = [h, h, 3 * h * h, 3 * h, h * h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h]
    return [50257 * h, 1024 * h, *(LAYERS * layer), h, h]


def checks(target: str) -> Iterator[tuple[str, KernelOp, Inputs]]:
    """Yield name, kernel and inputs."""
    for dtype in ("f32", "f16", "bf16", "f64"):
        kernel, parts = steps(dtype=dtype, target=target)
        yield f"foreach {dtype}, {len(parts)} parts", kernel, inputs_of(parts)
    many = [1 + 37 * i % 5000 for i in range(500)]
    kernel, parts = steps(many, target=target)
    yield "foreach f32, 500 parts", kernel, inputs_of(parts)


def races(target: str) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of a race against torch's fused AdamW."""
    lengths = gpt2_lengths()
    for dtype in ("f32", "bf16"):
        kernel, parts = steps(lengths, dtype, target)
        moved = [a.type for part in parts for a in part.args]
        size = sum(kind.num_elements * dtypes()[kind.dtype].itemsize for kind in moved)
        yield (
            f"foreach {dtype}, GPT-2 small",
            kernel,
            _random(kernel),
            {"torch's fused AdamW": _fused(lengths, dtypes()[dtype])},
            float(size),
        )


def _random(kernel: KernelOp) -> Callable[[], Inputs]:
    kinds = [a.type for a in kernel.args[: kernel.num_inputs.value.data]]
    return lambda: [
        torch.rand(kind.num_elements, device=launching.DEVICE).to(dtypes()[kind.dtype])
        for kind in kinds
    ]


def _fused(lengths: list[int], dtype: torch.dtype) -> Callable[[Inputs], object]:
    """Return torch's step, whose moments have the dtype of the parameter."""
    kept: list[torch.optim.Optimizer] = []

    def run(_: Inputs) -> object:
        if not kept:
            parameters = [torch.rand(n, device=launching.DEVICE, dtype=dtype) for n in lengths]
            for one in parameters:
                one.requires_grad_().grad = torch.rand_like(one)
            kept.append(torch.optim.AdamW(parameters, fused=True, capturable=True))
        return kept[0].step()

    return run
