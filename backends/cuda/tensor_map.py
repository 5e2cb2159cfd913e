"""How TMA sees an operand of a matmul: a tensor of which it copies boxes, zero outside."""

from __future__ import annotations

from dataclasses import dataclass

from irc.kernels.form import Form, Step

DEPTH = 64
"""Halves of k in a tile: 128 bytes, a row of the swizzle."""


@dataclass(frozen=True)
class TensorMap:
    """How TMA sees one operand: dims, the contiguous one first.

    Attributes:
        letter: ``a`` or ``b``.
        buffer: the kernel's argument.
        offset: elements before the first.
        dims: of the kernel's space (its k is the last).
        sizes: of these dims.
        strides: in elements; the first is 1.
        box: elements of one copy.
        copies: of 64 rows each, where the operand runs along m or n; else 1.
    """

    letter: str
    buffer: int
    offset: int
    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    copies: int

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.dims)


def tensor_map(form: Form, letter: str, maker: Step, dim: int, extent: int) -> TensorMap | None:
    """Return how TMA reads an operand, None where it cannot.

    Strides and the start must be multiples of 16 bytes, and there are at most five dims (CUDA
    Driver API, ``cuTensorMapEncodeTiled``).
    """
    if maker.kind != "load" or maker.operands or len(form.reduced) != 1:
        return None
    place, last = maker.place, len(form.sizes) - 1
    if form.buffers[place.buffer].dtype not in ("f16", "bf16") or place.offset % 8:
        return None
    if maker.dtype != form.buffers[place.buffer].dtype:
        return None
    # A dim of one element may have any stride.
    strides = {d: 8 if form.sizes[d] == 1 else place.strides[d] for d in (dim, last)}
    fast = next((d for d in (last, dim) if place.strides[d] == 1), None)
    if fast is None:
        return None
    slow = dim if fast == last else last
    batch = [d for d in range(form.num_parallel - 2) if place.strides[d] and form.sizes[d] > 1]
    dims = (fast, slow, *reversed(batch))
    steps = (1, strides[slow], *(place.strides[d] for d in reversed(batch)))
    sizes = tuple(form.sizes[d] for d in dims)
    if len(dims) > 5 or any(s <= 0 or s % 8 or s >= 2**39 for s in steps[1:]):
        return None
    if any(n >= 2**31 or n < 1 for n in sizes):
        return None
    rows = fast != last
    return TensorMap(
        letter, place.buffer, place.offset, dims, sizes, steps,
        (64, DEPTH if rows else extent, *[1] * len(batch)), extent // 64 if rows else 1,
    )  # fmt: skip


def element_type(dtype: str) -> str:
    """Return the driver's name of the type of a tensor's elements.

    >>> element_type("f16")
    'CU_TENSOR_MAP_DATA_TYPE_FLOAT16'
    """
    return f"CU_TENSOR_MAP_DATA_TYPE_{'FLOAT16' if dtype == 'f16' else 'BFLOAT16'}"
