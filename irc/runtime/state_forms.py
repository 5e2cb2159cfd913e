"""Forms of a tensor in a state: boxes of the whole for checkpoints, or torch's DTensor."""

from __future__ import annotations

import torch

from irc.runtime.boxes import Box
from irc.runtime.parts import Parts


def in_box(parts: Parts, name: str) -> Box | None:
    """Return what this rank has of a tensor, with its place, in its own memory."""
    pieces = parts.pieces(name)
    own = [parts.local[each] for each in pieces]
    return Box(own, pieces.values(), parts.shape(name)) if own else None


def copied_box(parts: Parts, name: str) -> Box | None:
    """Return a copy, on the host, of what this rank has of a tensor, with its place."""
    pieces = parts.pieces(name)
    own = [parts.local[each].to("cpu", copy=True) for each in pieces]
    return Box(own, pieces.values(), parts.shape(name)) if own else None


def in_torch(parts: Parts, name: str) -> torch.Tensor | None:
    """Return a tensor as a DTensor, or whole where there is none of it; every rank calls it."""
    return parts.in_torch(name) if parts.has_torch_form(name) else parts.whole(name)
