"""Mixture-of-experts layers of Hugging Face models, captured as one op that can be planned.

Their ``eager`` form loops over the experts that some token chose, which no graph can say, and the
grouped forms sort the tokens, so that no rank's rows are a shard. While a model is traced, layers
written with transformers' ``use_experts_implementation`` call ``irc::experts`` instead, whatever
implementation their config names. A layer that this op cannot express (biases, a gate of its own)
keeps its implementation, except ``eager``, which becomes ``grouped_mm``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from irc.frontends.torch.activations import activation
from irc.frontends.torch.listed_experts import listed_experts
from irc.ops.experts import EXPERTS
from irc.runtime.experts import experts as reference

MOE = "transformers.integrations.moe"
GROUPED = "grouped_mm"


@torch.library.custom_op(EXPERTS, mutates_args=())
def experts(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    act: str,
    num_experts: int,
) -> torch.Tensor:
    """Send each token through its experts (`irc.ops.experts`)."""
    return reference(hidden, index, weights, gate_up, down, act, num_experts)


@experts.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    act: str,
    num_experts: int,
) -> torch.Tensor:
    return hidden.new_empty(hidden.shape[0], down.shape[1])


@contextmanager
def whole_experts(module: nn.Module) -> Generator[None]:
    """Trace the expert layers of a module as ``irc::experts``."""
    with listed_experts(module, torch.ops.irc.experts), _stacked_experts():
        yield


@contextmanager
def _stacked_experts() -> Generator[None]:
    """Trace layers of transformers that store their experts as one tensor, if any are loaded."""
    moe: Any = sys.modules.get(MOE)
    interface = getattr(moe, "ExpertsInterface", None)
    if interface is None or not hasattr(moe, "grouped_mm_experts_forward"):
        yield
        return
    before = interface.get_interface

    def get_interface(known: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        def forward(layer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if expressible(layer, moe):
                return _call(layer, *args, **kwargs)
            chosen = GROUPED if name in (None, "eager") else name
            return before(known, chosen, default)(layer, *args, **kwargs)

        return forward

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = before


def expressible(layer: Any, moe: Any) -> bool:
    """Return whether a layer of experts is what ``irc::experts`` computes."""
    plain = layer.has_gate and layer.is_concatenated and not layer.has_bias
    post = getattr(layer, "has_post_expert_norm", False) or layer._is_expert_parallel
    kind: object = layer
    default = getattr(type(kind), "_apply_gate", None) is moe._default_apply_gate
    return bool(plain and not post and default and activation(layer.act_fn))


def _call(
    layer: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    gate_up, down = layer.gate_up_proj, layer.down_proj
    if layer.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    count, both, width = gate_up.shape
    gate_up = gate_up.reshape(count, 2, both // 2, width)
    name = activation(layer.act_fn)
    return torch.ops.irc.experts(
        hidden_states, top_k_index, top_k_weights, gate_up, down, name, count
    )
