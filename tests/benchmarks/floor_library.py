"""What a library computes: bags, complex numbers, linear algebra, Fourier transforms, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.floor_case import Case, Tensors, f64, ints, module, of, randn, spd

# Embedding bags.


def _bag(mode: str, rows: int, width: int, bags: int, each: int, **options: Any) -> Case:
    table, index, offsets = randn(rows, width), ints(rows, bags * each), torch.arange(bags) * each
    weighted = options.pop("weighted", False)
    weights = randn(bags * each) if weighted else None

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(
            index, x, offsets, mode=mode, per_sample_weights=weights, **options
        )  # fmt: skip

    return of(run, table)


def _bag_2d(mode: str, rows: int, width: int, bags: int, each: int) -> Case:
    index = ints(rows, bags, each)
    return of(lambda x: F.embedding_bag(index, x, mode=mode), randn(rows, width))


BAGS: Mapping[str, Case] = {
    "bag sum 100x16": _bag("sum", 100, 16, 8, 4),
    "bag sum 1000x64": _bag("sum", 1000, 64, 64, 8),
    "bag sum 10000x128": _bag("sum", 10000, 128, 256, 16),
    "bag mean 100x16": _bag("mean", 100, 16, 8, 4),
    "bag mean 1000x64": _bag("mean", 1000, 64, 64, 8),
    "bag max 100x16": _bag("max", 100, 16, 8, 4),
    "bag max 1000x64": _bag("max", 1000, 64, 64, 8),
    "bag weighted 1000x64": _bag("sum", 1000, 64, 64, 8, weighted=True),
    "bag padded 1000x64": _bag("sum", 1000, 64, 64, 8, padding_idx=3),
    "bag 2d sum 1000x64": _bag_2d("sum", 1000, 64, 64, 8),
    "bag 2d mean 1000x64": _bag_2d("mean", 1000, 64, 64, 8),
    "bag 2d max 1000x64": _bag_2d("max", 1000, 64, 64, 8),
    "bag module": module(
        lambda: nn.EmbeddingBag(500, 32, mode="sum"), ints(500, 64), torch.arange(0, 64, 4)
    ),
    "embedding 1000x64": of(lambda w: F.embedding(_INDEX, w), randn(1000, 64)),
    "one-hot product": of(lambda w: F.one_hot(_INDEX[:64], 1000).float() @ w, randn(1000, 64)),
}
_INDEX = ints(1000, 512)


# Complex numbers.


def rope(q: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn pairs of a query by complex numbers, as Llama's first code does it."""
    pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2))
    turned = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turned[None, :, None]).flatten(3)


def rope_kept(q: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn pairs of a query by complex numbers that are given as pairs of reals."""
    pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.view_as_complex(turns)[None, :, None]).flatten(3)


def rope_complex(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys by complex numbers, an argument, as Llama's first code does it."""
    a = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    b = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    turned = freqs.view(1, freqs.shape[0], 1, freqs.shape[1])
    return (
        torch.view_as_real(a * turned).flatten(3).type_as(q),
        torch.view_as_real(b * turned).flatten(3).type_as(k),
    )


def rope_half(q: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn the two halves of a query, as Hugging Face does it."""
    both = torch.cat((angles, angles), -1)[None, :, None]
    a, b = q.chunk(2, -1)
    return q * both.cos() + torch.cat((-b, a), -1) * both.sin()


def _freqs(tokens: int, pairs: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(tokens).float(), 1e4 ** -(torch.arange(pairs) / pairs))
    return torch.polar(torch.ones_like(angles), angles)


COMPLEX: Mapping[str, Case] = {
    "rope 1x1x8x64": of(rope, randn(1, 1, 8, 64), randn(1, 32)),
    "rope 1x32x8x64": of(rope, randn(1, 32, 8, 64), randn(32, 32)),
    "rope 2x128x8x64": of(rope, randn(2, 128, 8, 64), randn(128, 32)),
    "rope kept 1x32x8x64": of(rope_kept, randn(1, 32, 8, 64), randn(32, 32, 2)),
    "rope complex 1x1x8x64": of(
        rope_complex, randn(1, 1, 8, 64), randn(1, 1, 2, 64), _freqs(1, 32)
    ),
    "rope complex 1x32x8x64": of(
        rope_complex, randn(1, 32, 8, 64), randn(1, 32, 2, 64), _freqs(32, 32)
    ),
    "rope complex 2x128x8x64": of(
        rope_complex, randn(2, 128, 8, 64), randn(2, 128, 2, 64), _freqs(128, 32)
    ),
    "rope halves 1x32x8x64": of(rope_half, randn(1, 32, 8, 64), randn(32, 32)),
    "complex product 32x32": of(
        lambda a, b: torch.view_as_real(torch.complex(a, b) * torch.complex(b, a)),
        randn(32, 32),
        randn(32, 32),
    ),
    "complex abs 64x64": of(lambda a, b: torch.complex(a, b).abs(), randn(64, 64), randn(64, 64)),
    "complex angle 64x64": of(
        lambda a, b: torch.complex(a, b).angle(), randn(64, 64), randn(64, 64), trains=False
    ),
    "complex exp 64x64": of(
        lambda a, b: torch.complex(a, b).exp().real, randn(64, 64), randn(64, 64)
    ),
    "complex conj 64x64": of(
        lambda a, b: (torch.complex(a, b).conj() * torch.complex(a, b)).real,
        randn(64, 64),
        randn(64, 64),
    ),
    "complex matmul 64x64": of(
        lambda a, b: torch.view_as_real(torch.complex(a, b) @ torch.complex(b, a)),
        randn(64, 64),
        randn(64, 64),
    ),
}


# Sampling and resizing.


def _sample(n: int, c: int, size: int, out: int, mode: str = "bilinear", **options: Any) -> Case:
    grid = randn(n, out, out, 2).clamp(-1.2, 1.2)
    return of(
        lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False, **options),
        randn(n, c, size, size), grid,
    )  # fmt: skip


SAMPLING: Mapping[str, Case] = {
    "grid sample 1x3x8": _sample(1, 3, 8, 8),
    "grid sample 1x3x32": _sample(1, 3, 32, 32),
    "grid sample 4x16x16": _sample(4, 16, 16, 16),
    "grid sample 2x64x32": _sample(2, 64, 32, 32),
    "grid sample nearest": _sample(1, 3, 32, 32, "nearest"),
    "grid sample bicubic": _sample(1, 3, 16, 16, "bicubic"),
    "grid sample border": _sample(1, 8, 16, 16, padding_mode="border"),
    "grid sample reflection": _sample(1, 8, 16, 16, padding_mode="reflection"),
    "grid sample 3d": of(
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        randn(1, 2, 8, 8, 8),
        randn(1, 8, 8, 8, 3).clamp(-1, 1),
    ),
    "affine warp 1x3x32": of(
        lambda x, t: F.grid_sample(
            x, F.affine_grid(t, [1, 3, 32, 32], align_corners=False), align_corners=False
        ),
        randn(1, 3, 32, 32),
        randn(1, 2, 3),
    ),
    "interpolate bilinear 3x32": of(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), randn(1, 3, 32, 32)
    ),
    "interpolate bicubic 3x16": of(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), randn(1, 3, 16, 16)
    ),
    "interpolate nearest 8x16": of(
        lambda x: F.interpolate(x, scale_factor=2.0), randn(1, 8, 16, 16)
    ),
    "interpolate area 8x32": of(
        lambda x: F.interpolate(x, size=(8, 8), mode="area"), randn(1, 8, 32, 32)
    ),
    "pixel shuffle 16x16": of(lambda x: F.pixel_shuffle(x, 2), randn(1, 16, 16, 16)),
    "unfold 3x32": of(lambda x: F.unfold(x, 3, padding=1), randn(1, 3, 32, 32)),
    "fold 27x32": of(lambda x: F.fold(x, (32, 32), 3, padding=1), randn(1, 27, 1024)),
    "max pool 16x32": of(lambda x: F.max_pool2d(x, 2), randn(1, 16, 32, 32)),
    "adaptive pool 16x7": of(lambda x: F.adaptive_avg_pool2d(x, 3), randn(1, 16, 7, 7)),
}


# Linear algebra in float64.


def _lstsq(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(a.T @ a + 1e-3 * torch.eye(a.shape[1], dtype=a.dtype), a.T @ b)


def _chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b @ a.T) @ b.T


def _kalman(x: torch.Tensor, p: torch.Tensor, h: torch.Tensor, z: torch.Tensor) -> Tensors:
    s = h @ p @ h.T + torch.eye(h.shape[0], dtype=x.dtype)
    k = torch.linalg.solve(s, h @ p).T
    return x + k @ (z - h @ x), p - k @ h @ p


def _newton_schulz(x: torch.Tensor) -> torch.Tensor:
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def _gaussian(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    chol = torch.linalg.cholesky(a)
    y = torch.linalg.solve_triangular(chol, x[:, None], upper=False)
    return -0.5 * (y * y).sum() - chol.diagonal().log().sum()


LINEAR_ALGEBRA: Mapping[str, Case] = {
    "f64 chain 8": of(_chain, f64(8, 8), f64(8, 8)),
    "f64 chain 32": of(_chain, f64(32, 32), f64(32, 32)),
    "f64 chain 128": of(_chain, f64(128, 128), f64(128, 128)),
    "f64 chain 300": of(_chain, f64(300, 300), f64(300, 300)),
    "f32 chain 32": of(_chain, randn(32, 32), randn(32, 32)),
    "f32 chain 128": of(_chain, randn(128, 128), randn(128, 128)),
    "f64 normal equations": of(_lstsq, f64(64, 16), f64(64, 1)),
    "f64 kalman": of(_kalman, f64(8), spd(8), f64(4, 8), f64(4)),
    "f64 cholesky 32": of(_gaussian, spd(32), f64(32)),
    "f64 inverse 16": of(lambda a: torch.linalg.inv(a) @ a.T, spd(16)),
    "f64 det 16": of(lambda a: torch.linalg.slogdet(a)[1] + a.trace(), spd(16)),
    "f64 eigh 16": of(lambda a: torch.linalg.eigvalsh(a).log().sum(), spd(16)),
    "f64 svd 16": of(lambda a: torch.linalg.svdvals(a).sum(), f64(16, 16)),
    "f64 qr 16": of(lambda a: torch.linalg.qr(a)[1].diagonal().sum(), f64(16, 16)),
    "f64 matrix exp 16": of(lambda a: torch.linalg.matrix_exp(a * 0.1), f64(16, 16)),
    "f64 matrix power 32": of(lambda a: torch.linalg.matrix_power(a * 0.1, 6), f64(32, 32)),
    "newton-schulz 64": of(_newton_schulz, randn(64, 64)),
    "newton-schulz f64 64": of(_newton_schulz, f64(64, 64)),
    "f64 batched 32x16x16": of(lambda a, b: (a @ b).tanh() @ a, f64(32, 16, 16), f64(32, 16, 16)),
    "f64 mlp 16x64": module(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).double(), f64(16, 64)
    ),
    "f64 mlp 256x512": module(
        lambda: nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)).double(),
        f64(256, 512),
    ),
    "f64 gram 200x64": of(lambda x: torch.exp(-(x @ x.T)), f64(200, 64) * 0.1),
    "cdist 64x16": of(torch.cdist, randn(64, 16), randn(48, 16)),
    "einsum bilinear": of(
        lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y),
        randn(16, 12),
        randn(8, 12, 12),
        randn(16, 12),
    ),
    "matvec 256": of(lambda a, x: (a @ x).relu(), randn(256, 256), randn(256)),
    "dot 4096": of(torch.dot, randn(4096), randn(4096)),
    "outer 128": of(lambda a, b: torch.outer(a, b).tanh(), randn(128), randn(128)),
    "kron 8": of(torch.kron, randn(8, 8), randn(8, 8)),
    "baddbmm 8x32": of(torch.baddbmm, randn(8, 32, 32), randn(8, 32, 32), randn(8, 32, 32)),
}


# Fourier transforms.


def _power(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x).abs().square().mean(-1)


def _filtered(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    size = x.shape[-1] + h.shape[-1] - 1
    return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(h, size), size)


def _mel(x: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    frames = torch.stft(x, 256, 64, window=_WINDOW, return_complex=True)
    return (bank @ frames.abs().square() + 1e-6).log()


def _there_and_back(x: torch.Tensor) -> torch.Tensor:
    frames = torch.stft(x, 256, 64, window=_WINDOW, return_complex=True)
    return torch.istft(frames * 0.5, 256, 64, window=_WINDOW)


def _istft(re: torch.Tensor, im: torch.Tensor) -> torch.Tensor:
    return torch.istft(torch.complex(re, im), 256, 64, window=_WINDOW)


_WINDOW = torch.hann_window(256)

FOURIER: Mapping[str, Case] = {
    "rfft power 8x256": of(_power, randn(8, 256)),
    "rfft power 64x1024": of(_power, randn(64, 1024)),
    "fft filter 4x1000": of(_filtered, randn(4, 1000), randn(4, 64)),
    "fft2 16x32": of(lambda x: torch.fft.fft2(x).abs(), randn(16, 32, 32)),
    "fft shift 64": of(
        lambda x: torch.fft.fftshift(torch.fft.fft2(x)).abs().log1p(), randn(64, 64)
    ),
    "mixing of FNet": of(
        lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, randn(2, 64, 64)
    ),
    "stft mel 1x8000": of(_mel, randn(1, 8000), randn(40, 129).abs()),
    "stft istft 1x8000": of(_there_and_back, randn(1, 8000)),
    "istft 1x126 frames": of(_istft, randn(1, 129, 126), randn(1, 129, 126)),
    "istft 4x32 frames": of(_istft, randn(4, 129, 32), randn(4, 129, 32)),
    "hilbert 4x512": of(
        lambda x: torch.fft.ifft(torch.fft.fft(x) * _ANALYTIC).abs(), randn(4, 512)
    ),
    "dct by fft 16x64": of(
        lambda x: torch.fft.rfft(torch.cat([x, x.flip(-1)], -1)).real, randn(16, 64)
    ),
}
_ANALYTIC = torch.cat([torch.ones(1), torch.full((255,), 2.0), torch.ones(1), torch.zeros(255)])
