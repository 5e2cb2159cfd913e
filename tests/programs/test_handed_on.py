"""How a value lies that one layer hands to the next, by what the layer saves."""

# pyright: basic
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.programs.blocks import _passed


@pytest.mark.parametrize(
    ("local", "says"),
    [
        ((4, 64, 8), "[data = S(0), tensor = B]"),
        ((4, 16, 8), "[data = S(0), tensor = S(1)]"),
        ((1, 64, 8), "[data = S(0), tensor = S(0, 1)]"),  # samples over both
    ],
)
def test_axes_that_split_one_dim_are_ordered(local: tuple[int, ...], says: str) -> None:
    buffer = SimpleNamespace(source="n3/b0n84", dtype="bf16", shape=local)
    forward: Any = SimpleNamespace(plan=SimpleNamespace(outputs=(0,), buffers=(buffer,)))
    ops: Any = SimpleNamespace(layer=lambda name: 0)
    kind = TensorType.of((8, 64, 8), "bf16")
    passed = _passed(kind, Mesh.parse("data=2,tensor=4"), ops, forward)
    assert str(passed.placement) == says
