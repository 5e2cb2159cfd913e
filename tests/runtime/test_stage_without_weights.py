"""Ranks of a stage that has no weights take part where whole tensors are put together."""

# pyright: basic
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from irc.dialects.placement import Mesh
from irc.runtime.training_state import TrainingState
from irc.training.recipe import recipe_of


def test_what_other_stages_hold_is_shown() -> None:
    """The others send to it, and would wait."""
    weights = nn.Linear(3, 2).state_dict()
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    state = TrainingState(module, recipe_of("sgd"), Mesh.parse("pipe=2"), 0)
    held: Any = SimpleNamespace(
        local={}, roles=dict.fromkeys(weights, "parameter"), names=list(weights),
        whole=weights.__getitem__,
    )  # fmt: skip
    state.parts = held
    state.show()
    assert torch.equal(module.weight, weights["weight"])
    state.hide()
    assert module.weight.is_meta
