"""Kernels of several parts: the step of an optimiser for tensors of different sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from irc.dialects.task import KernelOp
from irc.interpret.task import run_kernel
from irc.kernels.foreach import join
from irc.runtime.dtypes import dtypes
from tests.backends import gpu_kernels as g

LENGTHS = (5, 1, 4096, 1025, 9001, 64, 1)
"""Odd ones, one that is a chunk, longer ones, and single elements."""


def step(length: int, dtype: str = "f32", name: str = "step") -> KernelOp:
    """AdamW on one tensor: parameter, gradient, two moments, a rate; all but the last move.

    Half types are updated in float32.
    """
    b = g.Builder(name, (length,), 1)
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    kinds = (dtype, dtype, wide, wide)
    p, gradient, m, v = (b.load(b.input(length, kind), (1,)) for kind in kinds)
    rate = b.load(b.input(1, wide), (0,))
    p, gradient = (b.fn("cast", x, dtype=wide) for x in (p, gradient))
    b1, b2, eps = (b.constant(x, wide) for x in (0.9, 0.999, 1e-3))
    m = b.fn("add", b.fn("mul", m, b1), gradient)
    v = b.fn("add", b.fn("mul", v, b2), b.fn("mul", gradient, gradient))
    moved = b.fn("div", b.fn("mul", m, rate), b.fn("add", b.fn("sqrt", v), eps))
    p = b.fn("cast", b.fn("sub", p, moved), dtype=dtype)
    for value in (p, m, v):
        b.store(value, b.output(length, value.type.dtype), (1,))
    return b.kernel(sources=[f"n{length}"])


def steps(
    lengths: Sequence[int] = LENGTHS, dtype: str = "f32", target: str = "cpu"
) -> tuple[KernelOp, list[KernelOp]]:
    """Return one kernel for all lengths, and the kernel of each."""
    parts = [step(length, dtype) for length in lengths]
    joined = join(parts, f"steps_{dtype}", target)
    joined.verify()
    return joined, parts


def inputs_of(parts: Sequence[KernelOp]) -> list[torch.Tensor]:
    """Return inputs for all parts; second moments are not negative."""
    torch.manual_seed(0)
    kinds = [a.type for part in parts for a in part.args[: part.num_inputs.value.data]]
    return [torch.rand(kind.num_elements).to(dtypes()[kind.dtype]) for kind in kinds]


def wanted(parts: Sequence[KernelOp], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run each kernel by itself in float64, in the interpreter."""
    count = parts[0].num_inputs.value.data
    exact: list[torch.Tensor] = []
    for i, part in enumerate(parts):
        kinds = [a.type for a in part.args[count:]]
        outputs = [torch.zeros(kind.num_elements, dtype=torch.float64) for kind in kinds]
        run_kernel(part, list(inputs[i * count :][:count]), outputs, torch.float64)
        exact += outputs
    return exact


TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


def assert_right(
    results: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], dtype: str
) -> None:
    """Hold results against float64."""
    for one, other in zip(results, exact, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def meaning(kernel: KernelOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a kernel of several parts in float64."""
    kinds = [a.type for a in kernel.args[len(inputs) :]]
    outputs = [torch.zeros(kind.num_elements, dtype=torch.float64) for kind in kinds]
    run_kernel(kernel, list(inputs), outputs, torch.float64)
    return outputs
