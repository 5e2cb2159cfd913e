"""Compiling one graph of Dynamo, for the sizes of its inputs or for all that they may have."""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from irc.collection import collection_held
from irc.frontends.torch.graphs import flat_program, pre_dispatch, returns_inputs, source_name
from irc.frontends.torch.linear_loss import stream_losses
from irc.pipeline import Options
from irc.torch_backend.aot import compile_through_aot
from irc.torch_backend.compiled import Flat, runner_of
from irc.torch_backend.counts import counters


@collection_held()
def compile_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    options: Options,
    *,
    fakes: Sequence[Any] | None = None,
) -> Flat:
    """Compile a graph for the sizes of its inputs, or with ``fakes`` for all that those admit.

    Args:
        gm: torch functions over placeholders.
        inputs: a value for each placeholder.
        options: of the plans.
        fakes: what Dynamo knows of each placeholder, with its symbols for open sizes.

    Raises:
        IrcError: the graph cannot be compiled.
    """
    keep_open = fakes is not None
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        if not keep_open:
            gm = stream_losses(gm)[0]
        return compile_through_aot(gm, fakes or inputs, options, keep_open=keep_open)
    traced = pre_dispatch(gm, _fakes(gm, inputs) if fakes is None else fakes)
    if traced is None or returns_inputs(traced):
        return compile_through_aot(gm, fakes or inputs, options, keep_open=keep_open)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    held = {
        i: (source_name(getattr(node, "_dynamo_source", node.name)), value)
        for i, (node, value) in enumerate(zip(placeholders, inputs, strict=True))
        if isinstance(value, nn.Parameter) and value.is_contiguous()
    }
    counters["forward"] += 1
    return runner_of(flat_program(traced, held, "dynamo", keep_open=keep_open), options)


def _fakes(gm: GraphModule, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return fake tensors for a graph's arguments: those of Dynamo where there are any."""
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    known = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    if all(isinstance(value, FakeTensor) for value in known):
        return known
    mode = detect_fake_mode(list(inputs)) or FakeTensorMode(
        allow_non_fake_inputs=True, static_shapes=True
    )
    return [mode.from_tensor(value, static_shapes=True) for value in inputs]
