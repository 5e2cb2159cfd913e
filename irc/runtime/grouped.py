"""Matmuls of groups of rows by a matrix each, on the CPU, in any dtype and differentiable.

Torch's own kernel knows no float64, and leaves rows of no group undefined; here they are zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def grouped_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply as ``torch.nn.functional.grouped_mm``.

    Args:
        x: rows [s, k], or a block of rows a group [e, s, k].
        weight: a matrix a group [e, k, n], or rows [k, n] where k is grouped.
        offs: where each group ends along the dim that is grouped, [e].
        bias: added to each row.
        out_dtype: of the result.
    """
    import torch

    if offs is None:
        product = x @ weight
    else:
        ends = [int(end) for end in offs]
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
        match x.ndim, weight.ndim:
            case 2, 3:
                product = _rows(x, weight, bounds)
            case 2, 2:
                product = torch.stack([x[:, a:b] @ weight[a:b] for a, b in bounds])
            case _:
                parts = [x[i] @ weight[:, a:b] for i, (a, b) in enumerate(bounds)]
                rest = x.new_zeros(x.shape[1], weight.shape[1] - ends[-1])
                product = torch.cat([*parts, rest], 1)
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


def grouped_rows(
    x: torch.Tensor, weight: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Multiply the rows ``starts[e]:ends[e]`` by matrix e; rows of no group are zeros.

    Args:
        x: rows [s, k].
        weight: a matrix a group, [e, k, n].
        starts: the first row of each group, [e], rising.
        ends: the row after the last of each group, [e].
    """
    return _rows(x, weight, [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)])


def contract_panels(x: torch.Tensor, panels: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Multiply each row by the matrix that its index names: ``flow.grouped_contract``.

    Args:
        x: rows [r, k].
        panels: matrices [e, p, k / q, 64, q].
        index: of each row, [r]; one outside of the matrices gives zeros.
    """
    count, panel, steps, columns, pair = panels.shape
    dense = panels.permute(0, 1, 3, 2, 4).reshape(count, panel * columns, steps * pair)
    products = x.new_zeros(len(x), panel * columns)
    for expert in range(count):
        mine = (index == expert).nonzero().flatten()
        if len(mine):
            products[mine] = x[mine] @ dense[expert].T
    return products


def outer_products(
    x: torch.Tensor, g: torch.Tensor, index: torch.Tensor, count: int
) -> torch.Tensor:
    """Sum the products of rows by group: ``flow.grouped_outer``.

    Args:
        x: rows [r, m].
        g: rows [r, n].
        index: the group of each, [r]; one that is none of them counts nothing.
        count: of groups.
    """
    sums = x.new_zeros(count, x.shape[1], g.shape[1])
    for group in range(count):
        mine = (index == group).nonzero().flatten()
        if len(mine):
            sums[group] = x[mine].T @ g[mine]
    return sums


def _rows(x: torch.Tensor, weight: torch.Tensor, bounds: list[tuple[int, int]]) -> torch.Tensor:
    import torch

    first, last = bounds[0][0], bounds[-1][1]
    products = [x[a:b] @ matrix for (a, b), matrix in zip(bounds, weight, strict=True)]
    # Zeros that depend on both, so that both have gradients where no row is left.
    none = (x[:0] @ weight[0]).sum(0, keepdim=True)
    before, after = none.expand(first, -1), none.expand(len(x) - last, -1)
    return torch.cat([before, *products, after])
