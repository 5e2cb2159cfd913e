"""Slices of templates: kernels of every one, checked and raced.

Checks are against float64; races against what torch calls: cuBLAS, FlashAttention and cuDNN, its
backward, grouped matmuls, and torch's own softmax and norms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from irc.dialects.task import KernelOp
from irc.kernels.form import integer_bound, read
from irc.kernels.gpu.attention import backward_candidates
from irc.kernels.gpu.attention import candidates as attention_tiles
from irc.kernels.gpu.limits import gpu
from irc.kernels.gpu.matmul import Problem, candidates
from irc.kernels.gpu.split import parts_of
from irc.kernels.gpu.tiles import alternatives, with_tile
from irc.runtime.dtypes import dtypes
from tests.backends import attention_backward_kernels as backward
from tests.backends import attention_kernels as attention
from tests.backends import gpu_kernels as g
from tests.gpu import launching, panels, updates

SLICES = ("matmul", "rows", "attention", "backward", "int4", "grouped", "foreach")
MATMULS = (
    (4096, 4096, 4096),
    (1024, 1024, 1024),
    (512, 768, 3072),
    (16, 4096, 4096),
    (1, 4096, 4096),
)
"""Rows, columns and products of what is raced."""
ATTENTIONS = ((4, 16, 2048, 64), (4, 16, 2048, 128), (1, 12, 512, 64))
"""Batch, heads, rows and features of what is raced."""


@dataclass(frozen=True)
class Check:
    """A kernel and inputs that it is checked on; ``is_first`` with the model's choice of a tile."""

    name: str
    kernel: KernelOp
    inputs: list[torch.Tensor]
    is_first: bool = True


@dataclass(frozen=True)
class Race:
    """A kernel of real size beside a call of torch.

    Attributes:
        name: what and how large.
        kernel: irc's.
        inputs: made on the device when they are needed.
        peers: torch's calls, by name; each takes the inputs.
        work: floating-point operations, or bytes where ``is_bytes``.
        is_recorded: peers can be recorded as a CUDA graph; autograd keeps to the stream of its
            forward pass, so it cannot.
    """

    name: str
    kernel: KernelOp
    inputs: Callable[[], list[torch.Tensor]]
    peers: dict[str, Callable[[list[torch.Tensor]], object]]
    work: float
    is_bytes: bool = False
    is_recorded: bool = True


def checks(which: str, target: str) -> Iterator[Check]:
    """Yield the checks of a slice, with the tiles that the target is given."""
    if which in panels.SLICES:
        yield from (Check(*each) for each in panels.checks(which, target))
        return
    if which == "foreach":
        yield from (Check(*each) for each in updates.checks(target))
        return
    tiled = {"matmul": _matmuls, "attention": _attentions, "backward": _gradients}
    for number, (name, kernel, inputs) in enumerate({**tiled, "rows": _rows}[which]()):
        tiles = alternatives(kernel, target) if which in tiled else [kernel.tile_sizes]
        # The model's choice, and another of the space, a different one for each check.
        for tile in [tiles[0], tiles[number % len(tiles)]][: 2 if number % len(tiles) else 1]:
            mapped = with_tile(kernel, tile)
            yield Check(f"{name} {_shown(tile)}".strip(), mapped, inputs, tile is tiles[0])


def _shown(tile: dict[str, int]) -> str:
    sizes = [str(tile[key]) for key in ("block_m", "block_n", "block_k") if key in tile]
    return "x".join(sizes)


def _matmuls() -> Iterator[tuple[str, KernelOp, list[torch.Tensor]]]:
    shapes = [
        ("odd", {"m": 37, "n": 53, "k": 29}), ("one row", {"m": 1, "n": 129, "k": 257}),
        ("skinny", {"m": 16, "n": 200, "k": 300}), ("tiles", {"m": 256, "n": 256, "k": 128}),
        ("batched", {"m": 33, "n": 65, "k": 70, "batch": (2, 3)}),
        ("transposed", {"m": 70, "n": 90, "k": 110, "transposed": True}),
        ("a transposed", {"m": 70, "n": 90, "k": 110, "a_transposed": True}),
    ]  # fmt: skip
    for dtype in ("f32", "f16", "bf16", "f64"):
        for name, shape in shapes:
            kernel = g.matmul(dtype=dtype, **shape)
            yield f"matmul {dtype} {name}", kernel, _inputs(kernel)


def _rows() -> Iterator[tuple[str, KernelOp, list[torch.Tensor]]]:
    kernels = [
        g.softmax(), g.softmax(dtype="f16"), g.softmax(rows=3, columns=20000), g.layer_norm(),
        g.layer_norm(dtype="bf16"), g.layer_norm(columns=9000, rows=3), g.gelu_bias(),
        g.flat_add(), g.embedding(), g.transposed_copy(), g.iota(), g.causal_any(),
        g.column_sums(), g.whole_product(), g.empty(),
        *[g.reductions(d) for d in ("f32", "f64", "f16", "i64", "i32", "i8", "u8", "i1")],
        *[g.random_kernel(seed) for seed in range(24)],
    ]  # fmt: skip
    for kernel in kernels:
        yield kernel.sym_name.data, kernel, _inputs(kernel)


def _attentions() -> Iterator[tuple[str, KernelOp, list[torch.Tensor]]]:
    for name, case in attention.attend_cases().items():
        kernel = attention.kernel_of(case)
        yield f"attention {name}", kernel, attention.inputs_of(case, kernel)


def _gradients() -> Iterator[tuple[str, KernelOp, list[torch.Tensor]]]:
    for name, case in backward.backward_cases().items():
        for side in backward.SIDES:
            kernel = backward.backward_of(case, side)
            inputs = backward.backward_inputs(case, kernel)
            yield f"{'+'.join(side)} {name}", kernel, inputs


def _inputs(kernel: KernelOp) -> list[torch.Tensor]:
    form = read(kernel)
    return g.inputs_for(kernel, lambda i: integer_bound(form, i))


def one_of_each(target: str) -> Iterator[tuple[str, KernelOp]]:
    """Yield a kernel of each template, of the size that is raced first."""
    for which in SLICES:
        race = next(races(which, target))
        yield race.name, race.kernel


def races(which: str, target: str) -> Iterator[Race]:
    """Yield the races of a slice."""
    if which in panels.SLICES:
        yield from (Race(*each) for each in panels.races(which, target))
        return
    if which == "foreach":
        yield from (Race(*each, is_bytes=True) for each in updates.races(target))
        return
    yield from {
        "matmul": _matmul_races, "rows": _row_races, "attention": _attention_races,
        "backward": _backward_races,
    }[which](target)  # fmt: skip


def _matmul_races(target: str) -> Iterator[Race]:
    for dtype in ("f32", "f16", "bf16"):
        for m, n, k in MATMULS:
            kernel = g.matmul(m, n, k, dtype=dtype, transposed=True, epilogue=False)
            tile = candidates(Problem(1, m, n, k, dtype), gpu(target))[0]
            kernel = with_tile(kernel, tile.options())
            note = f" ({parts} parts)" if (parts := parts_of(kernel, target)) > 1 else ""
            yield Race(
                f"matmul {dtype} {m}x{n}x{k}{note}",
                kernel,
                _random(kernel),
                {"cuBLAS": lambda x, m=m, n=n, k=k: F.linear(x[0].view(m, k), x[1].view(n, k))},
                2.0 * m * n * k,
            )


def _random(kernel: KernelOp) -> Callable[[], list[torch.Tensor]]:
    kinds = [a.type for a in kernel.args[: kernel.num_inputs.value.data]]
    return lambda: [
        torch.randn(kind.num_elements, device=launching.DEVICE).to(dtypes()[kind.dtype])
        for kind in kinds
    ]


def _row_races(target: str) -> Iterator[Race]:
    rows, columns = 4096, 4096
    for dtype in ("f32", "bf16"):
        size = dtypes()[dtype].itemsize * rows * columns
        softmax = g.softmax(rows, columns, dtype, tile=1)
        yield Race(
            f"softmax {dtype} {rows}x{columns}", softmax, _random(softmax),
            {"torch": lambda x: x[0].view(rows, columns).softmax(-1)}, 2.0 * size, True,
        )  # fmt: skip
        norm = g.layer_norm(rows, columns, dtype, tile=1)
        yield Race(
            f"norm of a sum {dtype} {rows}x{columns}", norm, _random(norm),
            {"torch": lambda x: F.layer_norm((x[0] + x[2]).view(rows, columns), (columns,), x[1])},
            3.0 * size, True,
        )  # fmt: skip


def _attention_races(target: str) -> Iterator[Race]:
    for dtype in ("f16", "bf16", "f32"):
        for batch, heads, rows, features in ATTENTIONS:
            case = attention.Attend(
                batch=batch, groups=heads, rows=rows, keys=rows, depth=features, width=features,
                dtype=dtype, causal=True, scale=features**-0.5,
            )  # fmt: skip
            kernel = attention.kernel_of(case)
            tile = attention_tiles(rows, rows, features, dtype)[0]
            shape = (batch, rows, heads, features)
            yield Race(
                f"attention {dtype} {batch}x{heads}x{rows}x{features}",
                with_tile(kernel, tile.options()),
                _random(kernel),
                {"scaled_dot_product_attention": lambda x, s=shape: _sdpa(x, s)},
                2.0 * batch * heads * rows * rows * features,
            )


def _backward_races(target: str) -> Iterator[Race]:
    """Both gradient kernels against the whole backward of torch's best attention."""
    for dtype in ("f16", "bf16"):
        for batch, heads, rows, features in ATTENTIONS:
            case = attention.Attend(
                batch=batch, groups=heads, rows=rows, keys=rows, depth=features, width=features,
                dtype=dtype, causal=True, scale=features**-0.5,
            )  # fmt: skip
            shape = (batch, rows, heads, features)
            for side, share in zip(backward.SIDES, (4, 3), strict=True):
                kernel = backward.backward_of(case, side)
                tile = backward_candidates(rows, rows, features, dtype)[0]
                yield Race(
                    f"{'+'.join(side)} {dtype} {batch}x{heads}x{rows}x{features}",
                    with_tile(kernel, tile.options()),
                    _random(kernel),
                    {"scaled_dot_product_attention's backward": _sdpa_backward(shape)},
                    share * batch * heads * rows * rows * features,
                    is_recorded=False,
                )


def _sdpa_backward(shape: tuple[int, ...]) -> Callable[[list[torch.Tensor]], object]:
    """Return torch's backward of attention; the forward runs once, when it is first called."""
    kept: list[torch.Tensor] = []

    def run(x: list[torch.Tensor]) -> object:
        if not kept:
            q, k, v = (part.view(shape).transpose(1, 2).requires_grad_() for part in x[1:4])
            kept.extend((F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v))
        y, *leaves = kept
        return torch.autograd.grad(y, leaves, x[0].view(shape).transpose(1, 2), retain_graph=True)

    return run


def _sdpa(x: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    q, k, v = (part.view(shape).transpose(1, 2) for part in x)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
