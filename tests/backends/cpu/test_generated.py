"""Random rows kernels against the interpreter: any mix of dims, strides, stages and results."""

import random
from typing import Any

import pytest
import torch

CHEAP = ("add", "sub", "mul", "maximum", "minimum")
UNARY = ("exp", "tanh", "neg", "sigmoid", "abs", "gelu", "relu", "copy")


def random_kernel(make: Any, rng: random.Random) -> tuple[Any, list[torch.Tensor]]:
    """Draw a space, some strided inputs, a few ops and reductions, and contiguous results."""
    ndim = rng.randint(1, 4)
    parallel = rng.randint(0, ndim)
    space = tuple(rng.choice((1, 2, 3, 5, 16, 17, 33, 40)) for _ in range(ndim))
    inputs, strides = [], []
    for _ in range(rng.randint(1, 3)):
        order = rng.sample(range(ndim), ndim)
        step, stride = rng.choice((1, 1, 1, 2)), [0] * ndim
        for d in order:
            if rng.random() < 0.8:
                stride[d], step = step, step * space[d]
        strides.append(tuple(stride))
        size = 1 + sum(s * (n - 1) for s, n in zip(stride, space, strict=True))
        inputs.append((size, rng.choice(("f32", "f32", "bf16", "f64"))))
    wide = any(dtype == "f64" for _, dtype in inputs)
    results = rng.randint(1, 3)
    dtype = "f64" if wide else "f32"
    rows = [rng.random() < 0.4 and parallel < ndim for _ in range(results)]
    sizes = [torch.Size(space[:parallel] if row else space).numel() for row in rows]
    k = make(space, parallel, inputs, [(size, dtype) for size in sizes])
    values = []
    for i, stride in enumerate(strides):
        value = k.load(i, stride)
        values.append(value if inputs[i][1] == dtype else k.fn("cast", value, dtype=dtype))
    for _ in range(rng.randint(1, 8)):
        kind, value = rng.random(), rng.choice(values)
        if kind < 0.3 and value.type.is_full and parallel < ndim:
            values.append(k.reduce(rng.choice(("sum", "max", "min")), value))
        elif kind < 0.6:
            values.append(k.fn("tanh", k.fn(rng.choice(UNARY), value)))
        else:
            values.append(k.fn("tanh", k.fn(rng.choice(CHEAP), value, rng.choice(values))))
    for i, row in enumerate(rows):
        fitting = [v for v in values if row != v.type.is_full] or [k.constant(1.5, dtype)]
        value = fitting[-1]
        if not row and parallel < ndim and not value.type.is_full:
            continue  # nothing fills the result: it keeps what it held
        natural = list(torch.empty(space[:parallel] if row else space, device="meta").stride())
        k.store(value, i, natural + [0] * (ndim - len(natural)))
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
    return k.kernel(), [torch.randn(size).to(kinds[d]) for size, d in inputs]


@pytest.mark.parametrize("seed", range(16))
def test_random_kernel(seed: int, make: Any, run: Any, reference: Any, features: Any) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kernel, inputs = random_kernel(make, rng)
    for got, want in zip(run(kernel, inputs, 2, features), reference(kernel, inputs), strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-4, atol=2e-5)
