"""Whether a compiled call gives what the eager one gives."""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.memory_layout import layout, lies_alike

RTOL = {
    torch.float16: 1e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 1.3e-6,
    torch.complex64: 1.3e-6,
}
ATOL = 1e-5
"""What torch.testing allows. In double precision it allows what rounding to single costs, so:"""
WIDE_TOLERANCE = 1e-9

ROUNDING = 8.0
"""Beyond that, the error against float64 may be so many times eager's own."""

DRAWS = 16
"""So often a random operator is drawn from, on each side."""

UNDRAWN = 1e-4
"""Results of eager that differ by no more, relatively, were not drawn."""

SIGMAS = 6.0
"""Means of random numbers may differ by so many standard errors."""

LACKS = "memory of its own is lacking"
LIES = "lies otherwise"
"""What a message says of strides and offsets that are not eager's."""


@dataclass(frozen=True)
class Together:
    """Which gradients have elements of which other tensors, beside the tensors.

    That eager's do promises nothing. Where they do not, nobody expects a write to change both.
    """

    pairs: frozenset[tuple[str, str]]


def difference(got: Any, want: Any, exact: Callable[[], Any]) -> str:
    """Return how a result differs from eager's, empty where it does not.

    Args:
        got: compiled.
        want: eager.
        exact: gives eager's in double precision; called where the dtype is too coarse to judge.
    """
    if message := unlike(got, want):
        return message
    pairs = [
        (path, a, b) for path, a, b in _tensor_pairs(got, want) if (a.numel() and not _close(a, b))
    ]
    if not pairs:
        return ""
    try:
        reference = dict(_tensors(exact()))
    except Exception as error:  # the operator has no double precision
        reference, reason = {}, f"; no reference: {type(error).__name__}"
    else:
        reason = ""
    for path, a, b in pairs:
        true = reference.get(path)
        if true is None or true.shape != b.shape or not _within_rounding(a, b, true):
            error = _distance(a, b)
            return f"result{path} is off by {error:.2e}, of {_size(b):.2e}{reason}"
    return ""


def unlike(got: Any, want: Any) -> str:
    """Return how structures, shapes, dtypes or plain values differ, empty where they do not."""
    a, b = pytree.tree_structure(got), pytree.tree_structure(want)
    if a != b:
        return f"a result of structure {a}, eager's is {b}"
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if type(one) is not type(other):
            return f"a {type(one).__name__}, eager's is a {type(other).__name__}"
        if isinstance(one, Together):
            if more := one.pairs - other.pairs:
                return f"{LACKS}: {sorted(more)}"
            continue
        if not isinstance(one, torch.Tensor):
            if one != other and not (one != one and other != other):
                return f"{one!r}, eager's is {other!r}"
            continue
        for what in ("shape", "dtype", "layout", "device", "requires_grad"):
            if getattr(one, what) != getattr(other, what):
                return f"{what} {getattr(one, what)}, eager's is {getattr(other, what)}"
    return ""


def laid_otherwise(got: Any, want: Any, *, apart: bool = False) -> str:
    """Return where strides or storage offsets are not eager's, empty where they are.

    Args:
        got: compiled.
        want: eager, alike but for that.
        apart: tensors have memory of their own where eager's share some.
    """
    leaves = [pytree.tree_leaves(each) for each in (got, want)]
    pairs = [[each.pairs for each in some if isinstance(each, Together)] for some in leaves]
    apart = apart or any(b - a for a, b in zip(*pairs, strict=True))
    for path, one, other in _pairs(got, want):
        if not lies_alike(one, other, apart=apart):
            return f"result{path} {LIES}: {layout(one)}, eager's {layout(other)}"
    return ""


def stray(got: Sequence[Any], want: Sequence[Any]) -> str:
    """Return how draws of random results differ, empty where they do not.

    Welch's test of two statistics of a draw, the mean of arctan x and of its square: bounded, so
    that they have moments where x has none, and one number a draw, since the elements of a draw may
    depend on each other.
    """
    if message := unlike(got[0], want[0]):
        return message
    for path, _ in _tensors(got[0]):
        a, b = (
            torch.stack([dict(_tensors(x))[path].flatten() for x in draws]).to(torch.float64)
            for draws in (got, want)
        )
        if not a.shape[1]:
            continue
        # LAPACK's rounding depends on where its memory lies: that is no draw.
        drawn = (b - b[0]).nan_to_num().abs().max() > UNDRAWN * b.nan_to_num().abs().max()
        if bool(drawn) and not bool((a != a[0]).any()):
            return f"result{path} is the same in every call"
        for power in (1, 2):
            x, y = (draws.nan_to_num().atan().pow(power).mean(1) for draws in (a, b))
            error = math.sqrt(float(x.var() + y.var()) / len(got))
            if abs(float(x.mean() - y.mean())) > SIGMAS * error + 1e-6:
                return f"result{path}: mean of arctan^{power} {x.mean():.3g}, eager {y.mean():.3g}"
    return ""


def same(got: Any, want: Any) -> bool:
    """True where two eager results are bitwise equal, NaN as NaN."""
    return not unlike(got, want) and all(
        torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for _, a, b in _tensor_pairs(got, want)
    )


def _leaves(value: Any) -> list[tuple[str, torch.Tensor]]:
    leaves, _ = pytree.tree_flatten_with_path(value)
    return [(pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _pairs(got: Any, want: Any) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    return [(path, a, b) for (path, a), (_, b) in zip(_leaves(got), _leaves(want), strict=True)]


def _tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    return [(path, _dense(leaf.detach())) for path, leaf in _leaves(value)]


def _tensor_pairs(got: Any, want: Any) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    return [(path, a, b) for (path, a), (_, b) in zip(_tensors(got), _tensors(want), strict=True)]


def _dense(value: torch.Tensor) -> torch.Tensor:
    if value.layout is not torch.strided:
        value = value.to_dense()
    value = value.resolve_conj().resolve_neg()
    return value.to(torch.complex64) if value.dtype is torch.complex32 else value


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b)
    rtol = RTOL.get(a.dtype, WIDE_TOLERANCE)
    atol = ATOL if a.dtype in RTOL else WIDE_TOLERANCE
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def _within_rounding(a: torch.Tensor, b: torch.Tensor, true: torch.Tensor) -> bool:
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return False
    # What eager rounds to half between its steps may overflow there; a kernel's step does not.
    kept = a.isfinite() & true.isfinite() & (a.dtype in (torch.float16, torch.bfloat16))
    if not torch.equal(a.isfinite(), b.isfinite() | kept):
        return False
    allowed = ROUNDING * max(_distance(b, true), torch.finfo(a.dtype).eps * _size(true))
    return _distance(a, true) <= allowed


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    gap = (a.to(torch.complex128) - b.to(torch.complex128)).abs()
    # Infinities agree where both are the same one; that they do is compared apart.
    gap = gap[a.isfinite() & b.isfinite()]
    return float(gap.max()) if gap.numel() else 0.0


def _size(a: torch.Tensor) -> float:
    finite = a.to(torch.complex128).abs()
    finite = finite[a.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0
