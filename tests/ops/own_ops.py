"""Users' own ops of the three kinds, each declared in one call; what `test_own_ops` runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

import irc

CPP = """
#include <torch/library.h>
#include <ATen/ATen.h>

at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& b, double scale) {
  return at::matmul(a, b) * scale;
}

TORCH_LIBRARY(irc_own_cpp, m) {
  m.def("scaled_product(Tensor a, Tensor b, float scale) -> Tensor");
}
TORCH_LIBRARY_IMPL(irc_own_cpp, CPU, m) { m.impl("scaled_product", &scaled_product); }
TORCH_LIBRARY_IMPL(irc_own_cpp, Meta, m) { m.impl("scaled_product", &scaled_product); }
"""
PRODUCT = "(m k, k n) -> (m n) sum(k) linear(0) linear(1)"


@cache
def library_op() -> Callable[..., Tensor]:
    """torch.library.custom_op, with a derivative that it registers with torch."""

    @torch.library.custom_op("irc_own_library::gated", mutates_args=())
    def gated(x: Tensor, gate: Tensor) -> Tensor:
        # Through numpy, so that only the registered formula can differentiate it.
        product = x.numpy(force=True) * gate.sigmoid().numpy(force=True)
        return torch.from_numpy(product)

    @gated.register_fake
    def _(x: Tensor, gate: Tensor) -> Tensor:
        return torch.empty_like(x)

    def backward(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> tuple[Tensor, Tensor]:
        x, gate = ctx.saved_tensors  # type: ignore[attr-defined]
        open_ = gate.sigmoid()
        return g * open_, g * x * open_ * (1 - open_)

    def keep(
        ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        ctx.save_for_backward(*inputs)

    gated.register_autograd(backward, setup_context=keep)
    irc.register_op(
        gated,
        rule="(a b, a b) -> (a b) linear(0)",
        flops=lambda call: 5 * call["a"] * call["b"],
        bytes=lambda call: 3 * call.item_bytes * call["a"] * call["b"],
    )
    return gated


@cache
def triton_op() -> Callable[..., Tensor]:
    """torch.library.triton_op: the kernel is for GPUs, its CPU reference is declared."""
    import triton
    import triton.language as tl
    from torch.library import triton_op as declare
    from torch.library import wrap_triton

    @triton.jit
    def kernel(x, y, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        place = tl.program_id(0) * block + tl.arange(0, block)
        inside = place < count
        tl.store(y + place, tl.load(x + place, inside) * 2.0 + 1.0, inside)

    @declare("irc_own_triton::twice_and_one", mutates_args={})
    def twice_and_one(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        wrap_triton(kernel)[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
        return y

    @irc.register_op(twice_and_one, rule="(a b) -> (a b)", bytes=lambda call: 8 * call["a"])
    def reference(x: Tensor) -> Tensor:
        return 2 * x + 1

    return twice_and_one


def has_triton() -> bool:
    """Return whether triton ops can be defined in this process."""
    return find_spec("triton") is not None and hasattr(torch.library, "triton_op")


@cache
def cpp_op(folder: Path) -> Callable[..., Tensor]:
    """An op of a C++ library, compiled here, with a derivative that its declaration gives."""
    from torch.utils.cpp_extension import load_inline

    load_inline(
        "irc_own_cpp", CPP, is_python_module=False, build_directory=str(folder), verbose=False
    )

    def derivative(
        gradients: tuple[Tensor], a: Tensor, b: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        (g,) = gradients
        return scale * g @ b.T, scale * a.T @ g

    op: Callable[..., Tensor] = torch.ops.irc_own_cpp.scaled_product
    irc.register_op(
        op,
        rule=PRODUCT,
        flops=lambda call: 2 * call["m"] * call["n"] * call["k"],
        derivative=derivative,
    )
    return op
