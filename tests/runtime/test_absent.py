"""Parameters whose parts ranks hold: shapes are answered, values are told where they are."""

# pyright: basic
from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from irc.errors import IrcError
from irc.runtime.absent import AbsentParameter
from irc.runtime.module_tensors import canonical_names, release


def net() -> Any:
    module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    release(
        module, canonical_names(module), dict.fromkeys(dict(module.named_parameters()), "parameter")
    )
    return module


IDS = torch.zeros(2, 3, dtype=torch.int64)
ASKED: dict[str, Callable[[Any], object]] = {
    "a call": lambda m: m(IDS),
    "a call of a layer": lambda m: m[1](torch.ones(2, 4)),
    "its parameter": lambda m: torch.ones(2, 4) @ m[1].weight,
    "a copy": lambda m: m.to("cpu"),
    "a number": lambda m: m[1].bias.tolist(),
    "writing": lambda m: m[1].bias.detach().copy_(torch.ones(4)),
    "saving": lambda m: torch.save(m.state_dict(), io.BytesIO()),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_asks_for_values_is_told_where_they_are(name: str) -> None:
    module = net()
    with pytest.raises(IrcError, match=r"step\.evaluate.*step\.materialize") as caught:
        ASKED[name](module)
    assert caught.value.code == "weights-apart"


def test_shapes_are_answered() -> None:
    module = net()
    weight = module[1].weight
    assert isinstance(weight, AbsentParameter)
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((4, 4), torch.float32, True)
    assert sum(p.numel() for p in module.parameters()) == 36 + 20 + 8
    assert "meta" in repr(weight)
    assert weight.detach().is_meta
    again = copy.deepcopy(module)
    assert isinstance(again[1].weight, AbsentParameter)
    assert again[1].weight.own_name == "1.weight"
