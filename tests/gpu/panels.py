"""Slices ``int4`` and ``grouped``: kernels that read panels, checked and raced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from irc.dialects.task import KernelOp
from irc.kernels.form import integer_bound, read
from irc.runtime.dtypes import dtypes
from tests.backends import gpu_kernels as g
from tests.backends.panel_kernels import grouped, quantised
from tests.gpu import launching

SLICES = ("int4", "grouped")
Inputs = list[torch.Tensor]
PRODUCTS = {"token": (4, 1, 4096, 4096), "token, 8 bits": (8, 1, 4096, 4096),
            "prompt": (4, 64, 4096, 4096)}  # fmt: skip
"""Bits, rows, columns and products of what is raced."""
GROUPS = ((2048, 8, 1024, 1024), (64, 8, 4096, 1024))
"""Rows, matrices, columns and products of what is raced."""


def checks(which: str, target: str) -> Iterator[tuple[str, KernelOp, Inputs]]:
    """Yield name, kernel and inputs of odd sizes."""
    if which == "int4":
        for bits, m, n, k in ((4, 1, 70, 192), (8, 1, 33, 128), (4, 5, 48, 320), (8, 70, 70, 64)):
            kernel = quantised(bits, m, n, k, target=target)
            yield f"int{bits} {m}x{n}x{k}", kernel, _inputs(kernel)
        return
    for rows, count, n, k in ((9, 3, 20, 40), (1, 4, 70, 33), (150, 5, 130, 64)):
        for dtype in ("f32", "f16"):
            kernel = grouped(rows, count, n, k, dtype, target=target)
            yield f"grouped {dtype} {rows} rows, {count}x{n}x{k}", kernel, _inputs(kernel)


def _inputs(kernel: KernelOp) -> Inputs:
    form = read(kernel)
    return g.inputs_for(kernel, lambda i: integer_bound(form, i))


def races(which: str, target: str) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of a race: integer weights against half floats, which torch would read."""
    if which == "int4":
        for name, (bits, m, n, k) in PRODUCTS.items():
            kernel = quantised(bits, m, n, k, target=target)
            peer = {"cuBLAS in float16": _half(m, n, k)}
            yield f"int{bits} {name} {m}x{n}x{k}", kernel, _random(kernel), peer, 2.0 * m * n * k
        return
    for rows, count, n, k in GROUPS:
        kernel = grouped(rows, count, n, k, "bf16", target=target)
        peer = {"torch.bmm of even groups": _batched(rows, count, n, k)}
        name = f"grouped bf16 {rows} rows, {count}x{n}x{k}"
        yield name, kernel, _sorted(kernel), peer, 2.0 * rows * n * k


def _half(m: int, n: int, k: int) -> Callable[[Inputs], object]:
    kept: list[torch.Tensor] = []

    def run(_: Inputs) -> object:
        if not kept:
            kept.extend(torch.randn(s, device=launching.DEVICE).half() for s in ((m, k), (n, k)))
        return F.linear(*kept)

    return run


def _batched(rows: int, count: int, n: int, k: int) -> Callable[[Inputs], object]:
    kept: list[torch.Tensor] = []

    def run(_: Inputs) -> object:
        if not kept:
            shapes = ((count, rows // count, k), (count, k, n))
            kept.extend(torch.randn(s, device=launching.DEVICE).bfloat16() for s in shapes)
        return torch.bmm(*kept)

    return run


def _random(kernel: KernelOp) -> Callable[[], Inputs]:
    kinds = [a.type for a in kernel.args[: kernel.num_inputs.value.data]]

    def made(kind: Any) -> torch.Tensor:
        dtype = dtypes()[kind.dtype]
        if dtype.is_floating_point:
            return torch.randn(kind.num_elements, device=launching.DEVICE).to(dtype)
        return torch.randint(0, 8, (kind.num_elements,), device=launching.DEVICE).to(dtype)

    return lambda: [made(kind) for kind in kinds]


def _sorted(kernel: KernelOp) -> Callable[[], Inputs]:
    """Rows by their matrix, as a router leaves them."""
    return lambda: [x.sort().values if x.dtype == torch.int64 else x for x in _random(kernel)()]
