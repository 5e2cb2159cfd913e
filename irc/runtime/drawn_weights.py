"""Weights of a rank that is rehearsed: drawn where the plan's folder has none, each its own part.

Of a model of 70 billion parameters nobody has the values here, and a rehearsal needs none: it is
about memory and time. What is no parameter (positions, masks, tables) is read where it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from irc.plan.files import WEIGHTS
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.schema import Buffer, placement_of
from irc.plan.weights import local_slices
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes
from irc.runtime.weights import load_weights, references_in

_open: Any = safe_open
"""Of an extension whose types are unknown."""

PARAMETER_STD = 0.02
"""Standard deviation of drawn parameters, as language models are initialised."""
READ = ("buffer", "constant")
"""Roles of what is read where the folder has it: indices among them have to be valid."""


def drawn_weights(
    loaded: LoadedPlan,
    rank: int,
    device: torch.device,
    held: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Return a rank's parts of what a plan loads, on a device.

    Args:
        loaded: the plan; its folder may hold some values.
        rank: on the plan's mesh.
        device: where they lie.
        held: what is here already, by name; of a plan that is one function of several.
    """
    plan, weights = loaded.plan, dict[str, torch.Tensor]()
    named = _names_in(loaded)
    generator = torch.Generator(device).manual_seed(rank)
    for index in plan.weights:
        buffer = plan.buffers[index]
        if held is not None and buffer.name in held:
            weights[buffer.name] = held[buffer.name]
        elif buffer.role not in READ or buffer.name not in named:
            weights[buffer.name] = _drawn(loaded, index, buffer, rank, device, generator)
    if len(weights) == len(plan.weights):
        return weights
    read = load_weights(loaded, rank, held=weights)
    return {name: each.to(device) for name, each in read.items()}


def _names_in(loaded: LoadedPlan) -> frozenset[str]:
    """Return the names of the weights whose values the plan's folder holds or refers to.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    folder = loaded.folder
    if folder is None:
        return frozenset()
    known = references_in(folder).items()
    named = {name for name, each in known if (folder / each.file).is_file()}
    if (path := folder / WEIGHTS).is_file():
        try:
            with _open(path, framework="pt") as opened:
                named |= set(opened.keys())
        except (SafetensorError, OSError) as error:
            raise corrupt(f"its weights cannot be read: {error}", str(path)) from None
    return frozenset(named)


def _drawn(
    loaded: LoadedPlan,
    index: int,
    buffer: Buffer,
    rank: int,
    device: torch.device,
    generator: torch.Generator,
) -> torch.Tensor:
    room = torch.zeros(buffer.shape, dtype=dtypes()[buffer.dtype], device=device)
    if buffer.role in ("parameter", *READ) and room.is_floating_point():
        room.normal_(std=PARAMETER_STD, generator=generator)
    if not buffer.rows:
        return room
    plan = loaded.plan
    rows = local_slices(placement_of(buffer), plan.device_mesh, rank, whole_shape(plan, index))[0]
    return room[: rows.stop - rows.start]
