"""Sums of products: contractions, plain, packed and grouped, and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results

if TYPE_CHECKING:
    import torch


def _contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    if inputs[0].dtype == torch.bool:  # einsum has none of bool: whether any product is true
        return torch.einsum(attrs["spec"], *[t.to(torch.int64) for t in inputs]).to(torch.bool)
    return torch.einsum(attrs["spec"], *inputs)


def _packed_contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.packed_weights import contract

    window, groups = attrs.get("window"), attrs.get("groups")
    return contract(inputs, attrs["bits"], attrs.get("zero", 0.0), window, groups)


def _grouped_contract(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.grouped import contract_panels

    return contract_panels(*inputs)


def _grouped_outer(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    from irc.runtime.grouped import outer_products

    x, g, index = inputs
    return outer_products(x, g, index, attrs["count"])


def _attention(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    q, k, v, *mask = inputs
    heads, groups = (q.shape[-3], k.shape[-3]) if q.ndim > 2 and k.ndim > 2 else (1, 1)
    if heads != groups:
        k = k.repeat_interleave(heads // groups, -3)
        v = v.repeat_interleave(heads // groups, -3)
    # No mask with is_causal in torch: join them.
    bias = mask[0] if mask else None
    if bias is not None and bias.dtype.is_floating_point:
        bias = bias.to(q.dtype)
    if bias is not None and attrs["is_causal"]:
        causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        bias = (
            (bias & causal) if bias.dtype == torch.bool else bias.masked_fill(~causal, -torch.inf)
        )
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=attrs["is_causal"] and bias is None, scale=attrs["scale"]
    )


KERNELS: Mapping[str, Kernel] = {
    names.CONTRACT: _contract,
    names.PACKED_CONTRACT: _packed_contract,
    names.GROUPED_CONTRACT: _grouped_contract,
    names.GROUPED_OUTER: _grouped_outer,
    names.ATTENTION: _attention,
}
